"""Helium: a Llama that rotates neighbouring elements of each head, with norms whose weights are applied in float32.

Source: transformers 5.23 ``models/helium/modeling_helium.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import Stack, WideRMSNorm
from vlmplan.architecture.tensor import Tensor


class HeliumAttention(Attention):
    """``HeliumAttention``."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb``: each layer interleaves cos and sin anew, which its backward keeps."""
        cos, sin = (q.tape.tensor(x.shape, x.dtype) for x in (context.cos, context.sin))
        return ops.rotate(q, cos, sin), ops.rotate(k, cos, sin)


class HeliumLayer(DecoderLayer):
    """``HeliumDecoderLayer``."""

    attention = HeliumAttention
    norm = WideRMSNorm


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), output_bias=False)
    return Decoder(shape, Stack.of(HeliumLayer(shape), shape.num_layers, label="layers"), norm=WideRMSNorm)
