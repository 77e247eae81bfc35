"""OLMoE: a Llama whose whole queries and keys are normed, with a mixture of experts in every layer.

Source: transformers 5.23 ``models/olmoe/modeling_olmoe.py``.
"""

from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, TopKRouter
from vlmplan.architecture.families.olmo import WholeNormAttention
from vlmplan.architecture.modules import Stack
from vlmplan.files.json_reader import not_allowed


def softmax_experts(config: Config, shape: DecoderShape) -> SparseMoeBlock:
    """``OlmoeSparseMoeBlock``: experts chosen by the softmax of their scores."""
    num_experts, width = config.integer("num_experts"), shape.hidden_size
    num_per_token, normalizes = config.integer("num_experts_per_tok"), config.boolean("norm_topk_prob")
    router = TopKRouter(num_experts, width, num_per_token, casts_scores=True, normalizes=normalizes)
    experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)
    return SparseMoeBlock(router, experts, registers_gate_first=True)


class OlmoeLayer(DecoderLayer):
    """``OlmoeDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(shape)
        self.self_attn = WholeNormAttention(shape, None)
        self.mlp = softmax_experts(config, shape)


def decoder(config: Config) -> Decoder:
    """Raises InputError where it clips."""
    if config.get("clip_qkv") is not None:
        raise not_allowed(CONFIG, "clip_qkv", config.get("clip_qkv"), "null: clipping is not described")
    shape = decoder_shape(config)
    return Decoder(shape, Stack.of(OlmoeLayer(config, shape), shape.num_layers, label="layers"))


causal_lm = NamedExpertsLM
