"""FlexOlmo: an OLMo 2 with OLMoE's mixture of experts in every layer.

Source: transformers 5.23 ``models/flex_olmo/modeling_flex_olmo.py``.
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM
from vlmplan.architecture.families.llama import Decoder, DecoderShape, decoder_shape
from vlmplan.architecture.families.olmo import OlmoAttention, PostNormLayer
from vlmplan.architecture.families.olmoe import softmax_experts
from vlmplan.architecture.modules import Stack, WideRMSNorm
from vlmplan.units import DType


class FlexOlmoLayer(PostNormLayer):
    """``FlexOlmoDecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        super().__init__(shape, OlmoAttention(shape, None))
        self.mlp = softmax_experts(config, shape)


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    layers = Stack.of(FlexOlmoLayer(config, shape), shape.num_layers, label="layers")
    return Decoder(shape, layers, norm=WideRMSNorm, rotary_dtype=DType.FLOAT32)


causal_lm = NamedExpertsLM
