"""GLM (GLM-4-9B): GLM-4's attention in a layer with norms before attention and MLP alone.

Source: transformers 5.23 ``models/glm/modeling_glm.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4 import ROTARY_FRACTION, Glm4Attention
from vlmplan.architecture.families.glm4v import rotary_fraction
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, DecoderShape, decoder_shape, with_head
from vlmplan.architecture.families.phi3 import Phi3Mlp
from vlmplan.architecture.model import CausalLM
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor


class GlmLayer(DecoderLayer):
    """``GlmDecoderLayer``."""

    def __init__(self, shape: DecoderShape, rotary_width: int) -> None:
        super().__init__(shape)
        self.self_attn = Glm4Attention(shape, rotary_width)
        self.mlp = Phi3Mlp(shape)


class GlmDecoder(Decoder):
    """``GlmModel``."""

    def __init__(self, shape: DecoderShape, rotary_width: int) -> None:
        super().__init__(shape, Stack.of(GlmLayer(shape, rotary_width), shape.num_layers, label="layers"))
        self.rotary_width = rotary_width

    def positions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (1, 1, x.shape[1], self.rotary_width)
        return x.tape.tensor(shape, x.dtype), x.tape.tensor(shape, x.dtype)


def decoder(config: Config) -> GlmDecoder:
    """The decoder alone, as composite models hold it (``families.text``)."""
    shape = replace(decoder_shape(config), output_bias=False)
    return GlmDecoder(shape, int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION)))


def build(config: Config) -> CausalLM:
    """``GlmForCausalLM``."""
    return with_head(decoder(config), config)
