"""Seed-OSS: a Llama with dropout in attention, behind it and behind the MLP.

Source: transformers 5.23 ``models/seed_oss/modeling_seed_oss.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import Scores
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
from vlmplan.architecture.modules import Stack
from vlmplan.architecture.tensor import Tensor


class SeedOssAttention(Attention):
    """``SeedOssAttention``."""

    def __init__(self, shape: DecoderShape, dropout: float) -> None:
        super().__init__(shape, None)
        self.dropout = dropout

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        return ops.dropout(super().forward(x, context), self.dropout, is_module=False)


class SeedOssMlp(GatedMlp):
    """``SeedOssMLP``."""

    def __init__(self, shape: DecoderShape, dropout: float) -> None:
        super().__init__(shape.hidden_size, shape.intermediate_size, activation=shape.activation, bias=shape.mlp_bias)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """The last operation of a layer that saves anything is this module's own dropout: there backward runs the layer
        again, and what that gathers goes when this module's backward is over."""
        x.tape.enter_block()
        x = ops.dropout(super().forward(x), self.dropout, is_module=False)
        x.tape.leave_block()
        return x


class SeedOssLayer(DecoderLayer):
    """``SeedOssDecoderLayer``."""

    def __init__(self, shape: DecoderShape, dropout: float) -> None:
        super().__init__(shape, attention=SeedOssAttention(shape, dropout), mlp=SeedOssMlp(shape, dropout))


def decoder(config: Config) -> Decoder:
    shape = replace(
        decoder_shape(config),
        output_bias=config.boolean("attention_out_bias"),
        scores=Scores(dropout=config.number("attention_dropout")),
    )
    layer = SeedOssLayer(shape, config.number("residual_dropout"))
    return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"))
