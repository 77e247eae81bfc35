"""Cohere (Command R) and Cohere 2: attention and MLP side by side behind one norm, rotary positions in float32.

Source: transformers 5.23 ``models/cohere/modeling_cohere.py`` and ``models/cohere2/modeling_cohere2.py``. In Cohere 2
three of four layers have a window, and only those have rotary positions. Logits are scaled.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.causal_lm import ScaledCausalLM
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
)
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class CohereNorm(Module):
    """``CohereLayerNorm``: a layer norm written out in float32, without a bias. ``sizes``: of the weight."""

    def __init__(self, *sizes: int) -> None:
        self.weight = Parameter(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = ops.to(x, DType.FLOAT32)
        mean = ops.mean_last(x)
        variance = ops.mean_last(ops.power(ops.subtract(x, mean)))
        x = ops.mul(ops.subtract(x, mean), ops.unary(ops.shift(variance), saves_output=True))
        x = ops.mul(x, ops.cast_weight(self.weight, DType.FLOAT32, x.tape), y_is_first=True)
        return ops.to(x, dtype)


class CohereAttention(Attention):
    """``CohereAttention``: with ``use_qk_norm`` each head has a norm of its own; layers may have no positions."""

    def __init__(self, shape: DecoderShape, window: int | None, *, norms_heads: bool, has_positions: bool) -> None:
        super().__init__(shape, window)
        self.norms_heads, self.has_positions = norms_heads, has_positions
        if norms_heads:
            self.q_norm = CohereNorm(shape.num_heads, shape.head_dim)
            self.k_norm = CohereNorm(shape.num_kv_heads, shape.head_dim)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, num_tokens, _ = x.shape
        shape = self.shape
        q = self.by_head(self.q_proj(x), shape.num_heads)
        k = self.by_head(self.k_proj(x), shape.num_kv_heads)
        v = self.v_proj(x).view(batch, shape.num_kv_heads, num_tokens, shape.head_dim)
        if self.norms_heads:
            q = self.q_norm(q)
            k = self.k_norm(k)
        return q, k, v

    def positioned(self, q: Tensor, k: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """``apply_rotary_pos_emb``: q and k as they were live with the caller until it returns."""
        if not self.has_positions:
            return q, k
        wide_q, wide_k = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
        q_rotated = ops.rotate(wide_q, context.cos, context.sin)
        k_rotated = ops.rotate(wide_k, context.cos, context.sin)
        return ops.to(q_rotated, q.dtype), ops.to(k_rotated, k.dtype)


class CohereLayer(Module):
    """``CohereDecoderLayer``."""

    attention = CohereAttention

    def __init__(self, shape: DecoderShape, window: int | None, *, norms_heads: bool, has_positions: bool) -> None:
        self.self_attn = self.attention(shape, window, norms_heads=norms_heads, has_positions=has_positions)
        self.mlp: Module = GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation)
        self.input_layernorm: Module = CohereNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        attended = self.self_attn(x, context)
        out = self.mlp(x)
        return ops.add(ops.add(residual, attended), out)


def decoder(config: Config) -> Decoder:
    """``CohereModel`` and ``Cohere2Model``."""
    shape = decoder_shape(config)
    if config.model_type == "cohere":
        shape = replace(shape, windows=())
        layer = CohereLayer(shape, None, norms_heads=config.boolean("use_qk_norm"), has_positions=True)
        return Decoder(shape, Stack.of(layer, shape.num_layers, label="layers"), norm=CohereNorm)
    # ``Cohere2Config.__post_init__``: every ``sliding_window_pattern``-th layer sees everything.
    period = config.integer("sliding_window_pattern", 4)
    windows = windows_by_type(config, lambda index: (index + 1) % period != 0)
    shape = replace(shape, windows=windows)
    layers = stack_of_kinds(
        windows, lambda window: CohereLayer(shape, window, norms_heads=False, has_positions=window is not None)
    )
    return Decoder(shape, layers, norm=CohereNorm, masked_windows=(None, config.integer("sliding_window")))


causal_lm = ScaledCausalLM
