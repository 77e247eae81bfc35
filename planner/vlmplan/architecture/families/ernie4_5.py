"""ERNIE 4.5: a Llama that rotates neighbouring elements of each head, in float32.

Source: transformers 5.23 ``models/ernie4_5/modeling_ernie4_5.py``. One key says whether all Linears have biases.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import PLAIN_SCORES
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class ErnieAttention(Attention):
    """``Ernie4_5Attention``."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb``: each layer interleaves cos and sin anew, which its backward keeps."""
        cos, sin = (q.tape.tensor(x.shape, x.dtype) for x in (context.cos, context.sin))
        q_rotated = rotated(q, cos, sin)
        k_rotated = rotated(k, cos, sin)
        return ops.to(q_rotated, q.dtype), ops.to(k_rotated, k.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x.float() * cos + rotate_half(x).float() * sin``."""
    first = ops.mul(ops.to(x, DType.FLOAT32), cos)
    return ops.add(first, ops.mul(ops.to(ops.rotate_half(x, x.shape[-1] // 2), DType.FLOAT32), sin))


class ErnieLayer(DecoderLayer):
    """``Ernie4_5DecoderLayer``."""

    attention = ErnieAttention


def decoder(config: Config) -> Decoder:
    bias = config.boolean("use_bias")
    shape = replace(decoder_shape(config), qkv_bias=bias, output_bias=bias, mlp_bias=bias, scores=PLAIN_SCORES)
    layers = Stack.of(ErnieLayer(shape), shape.num_layers, label="layers")
    return Decoder(shape, layers, rotary_dtype=DType.FLOAT32)
