"""GLM-4: norms before and behind attention and MLP, gate and up in one projection, positions on half of each head.

Source: transformers 5.23 ``models/glm4/modeling_glm4.py``.
"""

from collections.abc import Callable
from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.glm4v import Attention, DecoderLayer
from vlmplan.architecture.families.llama import Decoder, DecoderShape, RotaryContext, decoder_shape
from vlmplan.architecture.families.partial_rotary import rotary_fraction
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor`` that ``Glm4Config`` sets where the file has none."""


class Glm4Attention(Attention):
    """``Glm4Attention``: each layer interleaves cos and sin anew, which its backward keeps."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        cos, sin = (q.tape.tensor(x.shape, x.dtype) for x in (context.cos, context.sin))
        return super().positioned(q, k, RotaryContext(context.backend, cos, sin))


class Glm4Layer(DecoderLayer):
    """``Glm4DecoderLayer``."""

    attention = Glm4Attention


def glm_decoder(config: Config, layer: Callable[[DecoderShape], Module]) -> Decoder:
    """The decoder of equal layers, each made by ``layer`` of a shape."""
    shape = replace(decoder_shape(config), output_bias=False)
    width = int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION))
    return Decoder(shape, Stack.of(layer(shape), shape.num_layers, label="layers"), rotary_width=width)


def decoder(config: Config) -> Decoder:
    return glm_decoder(config, Glm4Layer)
