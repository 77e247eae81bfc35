"""LFM3: an LFM2 with gated attention, part of it within a window, wider convolutions, and norms behind both halves.

Source: transformers 5.23 ``models/lfm3/modeling_lfm3.py``.
"""

from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.lfm2 import ATTENTION, CONVOLUTION, Lfm2Layer, Lfm2Mlp, ShortConvolution
from vlmplan.architecture.families.llama import DecoderShape, RotaryContext, decoder_shape, stack_of_kinds
from vlmplan.architecture.families.olmo import PositionsByWindow, WidePositionsAttention
from vlmplan.architecture.modules import Linear, Module, RMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

SLIDING = "sliding_attention"


class Lfm3Attention(WidePositionsAttention):
    """``Lfm3Attention``: each head's result times a sigmoid of the layer's input."""

    def __init__(self, config: Config, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        is_gated = config.boolean("use_attention_gate")
        self.g_proj = Linear(shape.hidden_size, shape.num_heads) if is_gated else None

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        v = context.values(q, k, v, window=self.window)
        q, k = self.positioned(q, k, context)
        mask = context.masks.get(self.window)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=self.shape.scores)
        if self.g_proj is not None:
            gate = ops.sigmoid(self.g_proj(x))
            heads = out.view(*gate.shape, self.shape.head_dim)
            out = ops.mul(heads, gate.view(*gate.shape, 1)).view(*out.shape)
        return self.o_proj(out)


class Identity(Module):
    """``nn.Identity``."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Lfm3Layer(Lfm2Layer):
    """``Lfm3DecoderLayer``."""

    def __init__(self, config: Config, shape: DecoderShape, mixer: Any) -> None:
        super().__init__(shape.hidden_size, mixer, Lfm2Mlp(shape.hidden_size, shape.intermediate_size))
        has_norms = config.boolean("use_sandwich_norm")
        self.post_operator_norm = RMSNorm(shape.hidden_size) if has_norms else Identity()
        self.post_ffn_norm = RMSNorm(shape.hidden_size) if has_norms else Identity()

    def forward(self, x: Tensor, context: RotaryContext | None) -> Tensor:
        residual = x
        x = self.modules_by_name[self.mixer_name](self.operator_norm(x), context)
        x = self.post_operator_norm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.ffn_norm(x)
        x = self.feed_forward(x)
        x = self.post_ffn_norm(x)
        return ops.add(residual, x)


def layer_kinds(config: Config) -> tuple[str, ...]:
    """``layer_types``, or those of ``Lfm3Config.__post_init__``."""
    kinds = config.layer_types()
    if kinds is None:
        one_in_four = {2: ATTENTION, 0: SLIDING}
        num_layers = config.integer("num_hidden_layers")
        return tuple(one_in_four.get(index % 4, CONVOLUTION) if index else CONVOLUTION for index in range(num_layers))
    known = (ATTENTION, SLIDING, CONVOLUTION)
    if not set(kinds) <= set(known):
        raise not_allowed(CONFIG, "layer_types", sorted(set(kinds)), f"names out of {', '.join(known)}")
    return kinds


class Lfm3Decoder(PositionsByWindow):
    """``Lfm3Model``."""

    NORM = "embedding_norm"


def decoder(config: Config) -> Lfm3Decoder:
    shape = replace(decoder_shape(config), qk_norm=True, windows=())
    kinds = layer_kinds(config)
    # ``create_sliding_window_causal_mask`` wants one where a layer has it.
    windows = {ATTENTION: None, SLIDING: config.integer("sliding_window") if SLIDING in kinds else None}

    def layer(kind: str) -> Lfm3Layer:
        if kind == CONVOLUTION:
            return Lfm3Layer(config, shape, ShortConvolution(config, shape.hidden_size))
        return Lfm3Layer(config, shape, Lfm3Attention(config, shape, windows[kind]))

    model = Lfm3Decoder(shape, stack_of_kinds(kinds, layer), rotary_dtype=DType.FLOAT32)
    model.windows = tuple(window for kind, window in windows.items() if kind in kinds)
    return model
