"""Kimi Linear: three layers of Kimi delta attention to one of latent attention without positions, and experts.

Source: transformers 5.23 ``models/kimi_linear/modeling_kimi_linear.py`` and ``configuration_kimi_linear.py``. The
mixture of experts is DeepSeek-V3's.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.causal_lm import CausalLM
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.deepseek_v3 import latent_decoder_shape
from vlmplan.architecture.families.group_router import shared_experts_block
from vlmplan.architecture.families.kimi_delta import KimiDeltaAttention, kimi_delta_shape
from vlmplan.architecture.families.latent_attention import LatentAttention, latent_shape
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, RotaryContext, stack_of_kinds
from vlmplan.architecture.families.moe import sparse_by_name
from vlmplan.architecture.families.qwen3_5 import FULL, LINEAR
from vlmplan.architecture.modules import Module
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed

INTERVAL = 4
"""Every how many layers one behind the first has full attention where the file does not say (``__post_init__``)."""
LISTS = {"full_attn_layers": FULL, "kda_layers": LINEAR}
"""Of ``linear_attn_config``: the layers of each kind, counted from 1."""


class PlainLatentAttention(LatentAttention):
    """``KimiLinearAttention``: queries and keys as they are projected."""

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        batch, num_tokens, _ = x.shape
        shape, one = self.shape, (batch, 1, num_tokens)
        q = self.projected_queries(x).view(batch, shape.num_heads, num_tokens, shape.head_dim)
        compressed = self.kv_a_proj_with_mqa(x)
        latent, shared = ops.split(compressed, (*one, shape.kv_rank), (*one, shape.rotary_width))
        latent = self.kv_a_layernorm(latent)
        if x.tape.key_cache is not None:
            latent, shared = x.tape.key_cache.kept_pair(latent, shared)
        k, v = self.expanded(latent, shared)
        mask = context.masks.get(None)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=shape.scores, is_cached=False)
        return self.o_proj(out)


class KimiDecoder(Decoder):
    """``KimiLinearModel``."""

    ROTARY_MODULES = ()

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two empty tensors: there are no positions."""
        nothing = x.tape.tensor((0,), x.dtype)
        return nothing, nothing

    def windows_of(self, layer: Any) -> Sequence[int | None]:
        """None for a layer of Kimi delta attention, which takes no mask."""
        return () if isinstance(layer.self_attn, KimiDeltaAttention) else (None,)


def layer_types(config: Config) -> Sequence[str]:
    """The token mixer of each layer: ``layer_types``, else the lists of published files, else every fourth."""
    num_layers, names = config.integer("num_hidden_layers"), config.layer_types()
    own = config.mapping("linear_attn_config")
    if names is None and all(key in own for key in LISTS):
        types: dict[int, str] = {}
        for key, name in LISTS.items():
            types |= dict.fromkeys(own.integers(key), name)
        if sorted(types) != list(range(1, num_layers + 1)):
            allowed = f"each layer from 1 to {num_layers} in one of {' and '.join(LISTS)}"
            raise not_allowed(CONFIG, "linear_attn_config", sorted(types), allowed)
        return [types[index + 1] for index in range(num_layers)]
    if names is None:
        return [FULL if index and index % INTERVAL == 0 else LINEAR for index in range(num_layers)]
    if not set(names) <= {LINEAR, FULL}:
        raise not_allowed(CONFIG, "layer_types", sorted(set(names)), f"names out of {LINEAR} and {FULL}")
    return names


def sparse_layers(config: Config) -> list[bool]:
    """Whether each layer has experts: by ``mlp_layer_types``, else all behind ``first_k_dense_replace``."""
    num_dense = config.count("first_k_dense_replace") if "first_k_dense_replace" in config else 1
    return sparse_by_name(config, num_dense=num_dense)


def decoder(config: Config) -> KimiDecoder:
    latent, delta = latent_shape(config), kimi_delta_shape(config)
    shape = latent_decoder_shape(config, latent)

    def layer(kind: tuple[str, bool]) -> DecoderLayer:
        name, is_sparse = kind
        mixer = KimiDeltaAttention(delta) if name == LINEAR else PlainLatentAttention(latent)
        return DecoderLayer(shape, attention=mixer, mlp=shared_experts_block(config, shape) if is_sparse else None)

    kinds = list(zip(layer_types(config), sparse_layers(config), strict=True))
    return KimiDecoder(shape, stack_of_kinds(kinds, layer))


class KimiLinear(CausalLM):
    """``KimiLinearForCausalLM``, whose head is always its own (``_tied_weights_keys`` is empty). peft knows no names of
    experts in it: names mean Linears alone."""


def causal_lm(decoder: Module, config: Config) -> KimiLinear:
    """``KimiLinearForCausalLM``."""
    causal = KimiLinear(decoder, config, ties_weights=False)
    if LINEAR not in layer_types(config):
        causal.attention_linears = latent_shape(config).linears
    return causal
