"""Nemotron (Minitron): a Llama with Jais 2's MLP, layer norms of ``1 + weight``, and positions on half of each head.

Source: transformers 5.23 ``models/nemotron/modeling_nemotron.py``.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.jais2 import Jais2Mlp
from vlmplan.architecture.families.llama import Decoder, DecoderLayer, decoder_shape
from vlmplan.architecture.families.partial_rotary import PartlyRotatedAttention, rotary_fraction
from vlmplan.architecture.modules import LayerNorm, Stack
from vlmplan.architecture.tensor import Tensor

ROTARY_FRACTION = 0.5
"""``partial_rotary_factor`` that ``NemotronConfig`` sets where the file has none."""


class NemotronNorm(LayerNorm):
    """``NemotronLayerNorm1P``, which casts to autocast's type and has autocast off in its kernel."""

    def forward(self, x: Tensor) -> Tensor:
        tape, bias = x.tape, self.bias
        assert bias is not None
        weight = ops.shift_weight(self.weight, self.weight.dtype, tape)
        dtype = tape.autocast or x.dtype
        shift = ops.cast_weight(bias, tape.autocast or bias.dtype, tape)
        return ops.layer_norm(ops.to(x, dtype), ops.to(weight, tape.autocast or weight.dtype), shift, autocasts=False)


class NemotronLayer(DecoderLayer):
    """``NemotronDecoderLayer``."""

    attention = PartlyRotatedAttention
    norm = NemotronNorm


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    layer = NemotronLayer(shape, mlp=Jais2Mlp(shape))
    width = int(shape.head_dim * rotary_fraction(config, ROTARY_FRACTION))
    layers = Stack.of(layer, shape.num_layers, label="layers")
    return Decoder(shape, layers, norm=NemotronNorm, rotary_width=width)
