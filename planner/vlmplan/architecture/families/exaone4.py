"""EXAONE 4: queries and keys normed per head, norms behind attention and MLP, no positions where a layer sees all.

Source: transformers 5.23 ``models/exaone4/modeling_exaone4.py``.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
    with_head,
)
from vlmplan.architecture.families.smollm3 import PositionlessAttention
from vlmplan.architecture.model import CausalLM
from vlmplan.architecture.modules import Module, RMSNorm
from vlmplan.architecture.tensor import Tensor


class Exaone4Layer(Module):
    """``Exaone4DecoderLayer``; of a model with windows, layers without one have no rotary positions."""

    def __init__(self, shape: DecoderShape, window: int | None, *, has_positions: bool) -> None:
        super().__init__()
        attention = Attention if has_positions else PositionlessAttention
        self.self_attn = attention(shape, window)
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)
        self.post_feedforward_layernorm = RMSNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.self_attn(x, context)
        x = self.post_attention_layernorm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.mlp(x)
        x = self.post_feedforward_layernorm(x)
        return ops.add(residual, x)


def decoder(config: Config) -> Decoder:
    """The decoder alone, as composite models hold it (``families.text``)."""
    has_windows = config.optional_integer("sliding_window") is not None
    period = config.integer("sliding_window_pattern", 1) if has_windows and config.layer_types() is None else 1
    windows = windows_by_type(config, lambda index: (index + 1) % period != 0)
    shape = replace(decoder_shape(config), qk_norm=True, windows=windows, qkv_bias=False, output_bias=False)
    model = Decoder(
        shape,
        stack_of_kinds(
            windows, lambda window: Exaone4Layer(shape, window, has_positions=not has_windows or window is not None)
        ),
    )
    model.masked_windows = (None,)
    return model


def build(config: Config) -> CausalLM:
    """``Exaone4ForCausalLM``."""
    return with_head(decoder(config), config)
