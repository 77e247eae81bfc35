"""FlexOlmo: an OLMo 2 with OLMoE's mixture of experts in every layer.

Source: transformers 5.23 ``models/flex_olmo/modeling_flex_olmo.py``.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderShape, decoder_shape
from vlmplan.architecture.families.moe import Experts, SparseMoeBlock, TopKRouter
from vlmplan.architecture.families.olmo import OlmoAttention, PostNormLayer
from vlmplan.architecture.modules import Stack, WideRMSNorm
from vlmplan.units import DType


class FlexOlmoLayer(PostNormLayer):
    """``FlexOlmoDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(shape, OlmoAttention(shape, None))
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        num_per_token, normalizes = config.integer("num_experts_per_tok"), config.boolean("norm_topk_prob")
        router = TopKRouter(num_experts, width, num_per_token, casts_scores=True, normalizes=normalizes)
        experts = Experts(num_experts, width, shape.intermediate_size, activation=shape.activation)
        self.mlp = SparseMoeBlock(router, experts, registers_gate_first=True)


class FlexOlmoDecoder(Decoder):
    """``FlexOlmoModel``."""

    rotary_dtype = DType.FLOAT32

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(shape, Stack.of(FlexOlmoLayer(config, shape), shape.num_layers, label="layers"))
        self.norm = WideRMSNorm(shape.hidden_size)


def decoder(config: Config) -> FlexOlmoDecoder:
    return FlexOlmoDecoder(config, decoder_shape(config))


causal_lm = NamedExpertsLM
