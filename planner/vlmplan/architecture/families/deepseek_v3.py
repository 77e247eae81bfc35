"""DeepSeek-V2 and V3, GLM-4.7-Flash, Mistral 4, Youtu-LLM: latent attention, and some experts that see all tokens.

Source: transformers 5.23 ``models/{deepseek_v2,deepseek_v3,glm4_moe_lite,mistral4,youtu}/modeling_*.py``. Youtu's
layers are all dense. The layer of published checkpoints that predicts more than one token is left out by transformers
(``_keys_to_ignore_on_load_unexpected``), unless generation asks for it. peft takes the names of the experts of
DeepSeek and GLM-4.7 for those of Qwen2-MoE's in transformers 4; it knows none of Mistral 4.
"""

from collections.abc import Sequence

from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import (
    DEEPSEEK_V2,
    NamedExpertsLM,
    SharedExpertsBlock,
    shared_experts_block,
)
from vlmplan.architecture.families.latent_attention import LatentAttention, LatentShape, complex_positions, latent_shape
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, stack_of_kinds
from vlmplan.architecture.families.moe import sparse_by_name
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor

WITH_MLP_BIAS = (*DEEPSEEK_V2, "minicpm3")
"""Types whose MLP reads ``mlp_bias``."""


def sparse_layers(config: Config) -> list[bool]:
    """Whether each layer has experts: by ``mlp_layer_types``, or all behind the first ones; none in Youtu."""
    num_layers = config.integer("num_hidden_layers")
    if config.model_type == "youtu":
        return [False] * num_layers
    if config.model_type == "glm4_moe_lite":
        return sparse_by_name(config)
    num_dense = config.count("first_k_dense_replace")
    return [index >= num_dense for index in range(num_layers)]


class ComplexDecoder(Decoder):
    """``DeepseekV2Model``: positions are one complex tensor."""

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        positions = complex_positions(x, self.rotary_width)
        return positions, positions


def latent_decoder_shape(config: Config, latent: LatentShape) -> DecoderShape:
    """The shape of a decoder with latent attention, in which every head has keys and values of its own.

    Of ``mlp_bias`` the classes with sparse attention have the key too, but their MLPs do not read it
    (``DeepseekV32MLP``, ``GlmMoeDsaMLP``).
    """
    return DecoderShape(
        hidden_size=latent.hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=latent.num_heads,
        num_kv_heads=latent.num_heads,
        head_dim=latent.head_dim,
        vocab_size=config.integer("vocab_size"),
        mlp_bias=config.model_type in WITH_MLP_BIAS and config.boolean("mlp_bias"),
        activation=config.text("hidden_act"),
    )


def decoder(config: Config) -> Decoder:
    return latent_decoder(config, sparse_layers(config))


def latent_decoder(
    config: Config, is_sparse: Sequence[bool], block: type[SharedExpertsBlock] = SharedExpertsBlock
) -> Decoder:
    """``is_sparse``: whether each layer has experts; ``block`` is what they and their router are held by."""
    latent = latent_shape(config)
    shape = latent_decoder_shape(config, latent)
    layers = stack_of_kinds(
        is_sparse,
        lambda sparse: DecoderLayer(
            shape, attention=LatentAttention(latent), mlp=shared_experts_block(config, shape, block) if sparse else None
        ),
    )
    kind = ComplexDecoder if latent.rotates_complex else Decoder
    return kind(shape, layers, rotary_width=latent.rotary_width)


def causal_lm(decoder: Module, config: Config) -> CausalLM:
    """``DeepseekV3ForCausalLM`` and its copies; names of Mistral 4 and Youtu mean Linears alone."""
    names_experts = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "sarvam_mla")
    family = NamedExpertsLM if config.model_type in names_experts else CausalLM
    causal = family(decoder, config)
    causal.attention_linears = latent_shape(config).linears
    return causal
