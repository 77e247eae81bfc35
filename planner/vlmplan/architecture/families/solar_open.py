"""Solar Open: a Llama with DeepSeek-V3's mixture of experts in every layer.

Source: transformers 5.23 ``models/solar_open/modeling_solar_open.py`` and ``configuration_solar_open.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.group_router import NamedExpertsLM, SharedExpertsBlock, shared_experts_block
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape
from vlmplan.architecture.modules import Stack


class SolarOpenLayer(DecoderLayer):
    """``SolarOpenDecoderLayer``."""

    def __init__(self, shape: DecoderShape, block: SharedExpertsBlock) -> None:
        super().__init__(shape)
        self.mlp = block


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), output_bias=False)
    layer = SolarOpenLayer(shape, shared_experts_block(config, shape))
    return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"))


causal_lm = NamedExpertsLM
