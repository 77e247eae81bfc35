"""Helium: a Llama that rotates neighbouring elements of each head, with norms whose weights are applied in float32.

Source: transformers 5.23 ``models/helium/modeling_helium.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import Stack, WideRMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError


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
    """Raises InputError where heads are together not as wide as a layer, which is what ``o_proj`` takes."""
    shape = replace(decoder_shape(config), output_bias=False)
    if shape.num_heads * shape.head_dim != shape.hidden_size:
        raise InputError(
            f"{CONFIG}: num_attention_heads {shape.num_heads:,} of head_dim {shape.head_dim:,} are not hidden_size, "
            f"{shape.hidden_size:,}, which helium's o_proj takes"
        )
    return Decoder(shape, Stack.of(HeliumLayer(shape), shape.num_layers, label="layers"), norm=WideRMSNorm)
