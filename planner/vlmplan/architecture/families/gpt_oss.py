"""GPT-OSS: attention with sinks, every second layer with a window, and experts with biases and a clamped gate.

Source: transformers 5.23 ``models/gpt_oss/modeling_gpt_oss.py``. Attention is eager: the model has no sdpa, and
transformers replaces every flash implementation by kernels that it downloads (``_compatible_flash_implementations``).
Published checkpoints hold their experts in MXFP4; what is described is the model that is trained, dequantised to
bfloat16 (``Mxfp4Config(dequantize=True)``). Of a layer only q, k, v and o are Linears.
"""

from dataclasses import replace

from vlmplan.architecture import ops
from vlmplan.architecture.attention import by_head
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import attention_with_sinks
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Decoder,
    DecoderShape,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
    windows_by_type,
)
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.modules import Linear, Module, WideRMSNorm
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor


class GptOssAttention(Module):
    """Grouped-query attention with rotary positions and a sink, a score that no key has, for each head."""

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        self.shape, self.window = shape, window
        width = shape.hidden_size
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(width, query_width, bias=shape.qkv_bias)
        self.k_proj = Linear(width, key_width, bias=shape.qkv_bias)
        self.v_proj = Linear(width, key_width, bias=shape.qkv_bias)
        self.o_proj = Linear(query_width, width, bias=shape.output_bias)
        self.sinks = Parameter(shape.num_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> tuple[Tensor, Tensor]:
        """The result and the attention weights, which ``GptOssDecoderLayer`` holds while its MLP runs."""
        shape = self.shape
        q = by_head(self.q_proj(x), shape.num_heads)
        k = by_head(self.k_proj(x), shape.num_kv_heads)
        v = by_head(self.v_proj(x), shape.num_kv_heads)
        q, k = _rotated(q, context), _rotated(k, context)
        if x.tape.key_cache is not None:
            k, v = x.tape.key_cache.kept_pair(k, v)
        mask = context.masks[self.window]
        out, weights = attention_with_sinks(q, k, v, mask, self.sinks, dropout=self.shape.scores.dropout)
        return self.o_proj(out), weights


def _rotated(x: Tensor, context: RotaryContext) -> Tensor:
    """``_apply_rotary_emb``: the halves of a head rotated apart and put together."""
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first_half, second_half = ops.split(x, half, half)
    first = ops.subtract(ops.mul(first_half, context.cos), ops.mul(second_half, context.sin))
    second = ops.add(ops.mul(second_half, context.cos), ops.mul(first_half, context.sin))
    return ops.concatenate([first, second], x.shape)


class LogitRouter(AdaptableModule):
    """``GptOssTopKRouter``: a softmax over the k largest logits, in the model's type. Aria's has no biases; without
    ``names_type`` autocast decides the softmax's."""

    def __init__(
        self, num_experts: int, hidden_size: int, num_per_token: int, *, has_bias: bool = True, names_type: bool = True
    ) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.bias = Parameter(num_experts) if has_bias else None
        self.num_per_token, self.names_type = num_per_token, names_type

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = ops.linear(x, self.weight, self.bias)
        values, indices = top(logits, self.num_per_token)
        return logits, ops.softmax(values, values.dtype if self.names_type else None), indices


class GptOssExperts(Experts):
    """``GptOssExperts``: gate and up lie interleaved and are clamped; ``(up + 1) * gate * sigmoid(alpha * gate)``."""

    def _gated(self, out: Tensor) -> Tensor:
        half = out.shape[1] // 2
        gate, up = ops.slice_last(out, half), ops.slice_last(out, half)
        gate = ops.clamp(gate, num_limits=1)
        up = ops.clamp(up, num_limits=2)
        gated = ops.mul(gate, ops.sigmoid(ops.scale(gate)))
        return ops.mul(ops.shift(up), gated)


class GptOssMlp(Module):
    """``GptOssMLP``: route, then run the experts."""

    def __init__(self, router: LogitRouter, experts: GptOssExperts) -> None:
        self.router, self.experts = router, experts

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.view(x.numel // x.shape[-1], x.shape[-1])
        logits, scores, indices = self.router(flat)
        out = self.experts(flat, indices, scores).view(*x.shape)
        del logits
        return out, scores


class GptOssLayer(Module):
    """``GptOssDecoderLayer``."""

    def __init__(self, shape: DecoderShape, mlp: GptOssMlp, window: int | None) -> None:
        self.self_attn = GptOssAttention(shape, window)
        self.mlp = mlp
        self.input_layernorm = WideRMSNorm(shape.hidden_size)
        self.post_attention_layernorm = WideRMSNorm(shape.hidden_size)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x, held = self.self_attn(x, context)
        x = ops.add(residual, x)
        residual = x
        x = self.post_attention_layernorm(x)
        x, held = self.mlp(x)
        del held
        return ops.add(residual, x)


class GptOssDecoder(Decoder):
    """``GptOssModel``."""

    def __init__(self, shape: DecoderShape, config: Config) -> None:
        super().__init__(
            shape,
            stack_of_kinds(shape.windows, lambda window: GptOssLayer(shape, moe(config, shape), window)),
            norm=WideRMSNorm,
            rotary_width=shape.head_dim // 2,
            masked_windows=(None, config.integer("sliding_window")),
        )

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        return super().forward(x, replace(backend, implementation="eager"))


def moe(config: Config, shape: DecoderShape) -> GptOssMlp:
    """The mixture of experts of one layer."""
    num_experts = config.integer("num_local_experts")
    router = LogitRouter(num_experts, shape.hidden_size, config.integer("num_experts_per_tok"))
    experts = GptOssExperts(num_experts, shape.hidden_size, shape.intermediate_size, is_transposed=True, has_bias=True)
    return GptOssMlp(router, experts)


def decoder(config: Config) -> GptOssDecoder:
    # ``GptOssConfig.__post_init__``: every second layer sees everything.
    windows = windows_by_type(config, lambda index: index % 2 == 0)
    return GptOssDecoder(replace(decoder_shape(config), windows=windows), config)
