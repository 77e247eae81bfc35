"""Ministral 3: a Llama whose queries are scaled by a number for each position.

Source: transformers 5.23 ``models/ministral3/modeling_ministral3.py``. Ministral 3 with vision has it too.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.tensor import Tensor


class Ministral3Attention(Attention):
    """``Ministral3Attention``."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q, k = super().positioned(q, k, context)
        scale = q.tape.tensor((1, 1, q.shape[2], 1), q.dtype)  # get_llama_4_attn_scale
        return ops.mul(q, scale), k


class Ministral3Layer(DecoderLayer):
    """``Ministral3DecoderLayer``."""

    attention = Ministral3Attention


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    return Decoder(shape, stack_of_kinds(shape.windows, lambda window: Ministral3Layer(shape, window)))
