"""HunYuan (dense): a Llama whose queries and keys are normed per head, after rotary positions have entered them.

Source: transformers 5.23 ``models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py``.
"""

from dataclasses import replace

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.modules import RMSNorm
from vlmplan.architecture.tensor import Tensor


class HunYuanAttention(Attention):
    """``HunYuanDenseV1Attention``."""

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        self.query_layernorm = RMSNorm(shape.head_dim)
        self.key_layernorm = RMSNorm(shape.head_dim)

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q, k = super().positioned(q, k, context)
        q = self.query_layernorm(q)
        k = self.key_layernorm(k)
        return q, k


class HunYuanLayer(DecoderLayer):
    """``HunYuanDenseV1DecoderLayer``."""

    attention = HunYuanAttention


def decoder(config: Config) -> Decoder:
    shape = replace(decoder_shape(config), mlp_bias=False)
    return Decoder(shape, stack_of_kinds(shape.windows, lambda window: HunYuanLayer(shape, window)))
