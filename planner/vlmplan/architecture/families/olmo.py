"""OLMo: norms without weights, positions in float32. OLMo 2 and 3: norms behind attention and MLP and none before,
whole queries and keys normed too.

Source: transformers 5.23 ``models/olmo/modeling_olmo.py``, ``models/olmo2/modeling_olmo2.py`` and
``models/olmo3/modeling_olmo3.py``. In OLMo 3 three of four layers have a window and rotary positions of their own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    causal_masks,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.modules import Module, RMSNorm, Stack, WideRMSNorm
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class WholeNormAttention(Attention):
    """Queries and keys are normed before they are cut into heads."""

    norm_class: type[RMSNorm] = RMSNorm

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        self.q_norm = self.norm_class(shape.num_heads * shape.head_dim)
        self.k_norm = self.norm_class(shape.num_kv_heads * shape.head_dim)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.q_norm(self.q_proj(x))
        k = self.k_norm(self.k_proj(x))
        v = self.v_proj(x)
        q = self.by_head(q, shape.num_heads)
        k = self.by_head(k, shape.num_kv_heads)
        return q, k, v.view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)


class WidePositionsAttention(Attention):
    """Queries and keys are rotated in float32."""

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        q_rotated = ops.rotate(q, context.cos, context.sin)
        k_rotated = ops.rotate(k, context.cos, context.sin)
        return ops.to(q_rotated, q.dtype), ops.to(k_rotated, k.dtype)


class OlmoNorm(Module):
    """``OlmoLayerNorm``: in float32."""

    def __init__(self, width: int) -> None:
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return ops.to(ops.layer_norm(ops.to(x, DType.FLOAT32), None, None), x.dtype)


class ClippedAttention(WidePositionsAttention):
    """``OlmoAttention``."""

    clips = False
    """Whether queries, keys and values are clamped."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().heads(x)
        if self.clips:
            q = ops.clamp_in_place(q)
            k = ops.clamp_in_place(k)
            v = ops.clamp_in_place(v)
        return q, k, v


class OlmoLayer(DecoderLayer):
    """``OlmoDecoderLayer``."""

    attention = ClippedAttention
    norm = OlmoNorm


class OlmoAttention(WidePositionsAttention, WholeNormAttention):
    """``Olmo2Attention``."""

    norm_class = WideRMSNorm


class PostNormLayer(Module):
    """Norms behind attention and MLP, and none before."""

    def __init__(self, shape: DecoderShape, attention: Attention, norm_class: type[RMSNorm] = WideRMSNorm) -> None:
        self.self_attn = attention
        self.mlp = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.post_attention_layernorm = norm_class(shape.hidden_size)
        self.post_feedforward_layernorm = norm_class(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.self_attn(x, context)
        x = self.post_attention_layernorm(x)
        x = ops.add(residual, x)
        residual = x
        x = self.mlp(x)
        x = self.post_feedforward_layernorm(x)
        return ops.add(residual, x)


class PositionsByWindow(Decoder):
    """Layers of each window have positions of their own."""

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        masks = causal_masks(x, backend, self.windows)
        positions = {window: self.positions_within(window, x) for window in dict.fromkeys(self.windows)}
        contexts = {window: RotaryContext(backend, *both, masks) for window, both in positions.items()}
        # A layer that has no attention has no use for positions either.
        nothing = RotaryContext(backend, x.tape.tensor((0,), x.dtype), x.tape.tensor((0,), x.dtype))

        def context_of(layer: Any) -> RotaryContext:
            windows = self.windows_of(layer)
            return contexts[windows[0]].with_masks_of(windows) if windows else nothing

        return context_of

    def positions_within(self, window: int | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of layers with this window."""
        return self.positions(x)


def decoder(config: Config) -> Decoder:
    shape = decoder_shape(config)
    if config.model_type == "olmo":
        layer = OlmoLayer(shape)
        layer.self_attn.clips = config.get("clip_qkv") is not None
        layers = Stack.of(layer, shape.num_layers, label="layers")
        return Decoder(shape, layers, norm=OlmoNorm, rotary_dtype=DType.FLOAT32)
    masked_windows: tuple[int | None, ...] = ()
    if config.model_type == "olmo3":
        # ``Olmo3Config.__post_init__``: every fourth layer sees everything.
        shape = replace(shape, windows=windows_by_type(config, lambda index: (index + 1) % 4 != 0))
        masked_windows = (None, config.integer("sliding_window"))
    layers = stack_of_kinds(shape.windows, lambda window: PostNormLayer(shape, OlmoAttention(shape, window)))
    return PositionsByWindow(shape, layers, norm=WideRMSNorm, rotary_dtype=DType.FLOAT32, masked_windows=masked_windows)
