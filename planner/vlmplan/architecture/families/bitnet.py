"""BitNet b1.58: a Llama with a norm more in attention and MLP, before what each returns is projected.

Source: transformers 5.23 ``models/bitnet/modeling_bitnet.py``. What is described are its weights in 16 bit, as they are
trained: the ternary ones of the published checkpoint are made of them.
"""

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.modules import RMSNorm, Stack
from vlmplan.architecture.tensor import Tensor


class BitNetAttention(Attention):
    """``BitNetAttention``."""

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        self.attn_sub_norm = RMSNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v, window=self.window)
        q, k = self.positioned(q, k, context)
        mask = context.masks.get(self.window)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=self.shape.scores)
        out = self.attn_sub_norm(out)
        return self.o_proj(out)


class BitNetMlp(GatedMlp):
    """``BitNetMLP``."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.ffn_sub_norm = RMSNorm(shape.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.ffn_sub_norm(ops.mul(self.act_fn(self.gate_proj(x)), self.up_proj(x))))


class BitNetLayer(DecoderLayer):
    """``BitNetDecoderLayer``."""

    attention = BitNetAttention


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    return Decoder(shape, Stack.of(BitNetLayer(shape, mlp=BitNetMlp(shape)), shape.num_layers, label="layers"))
