"""Doge: a Llama with norms of queries and keys, weighted residuals, and a mask of attention that is learned out of the
values; perhaps with experts that are rows of two embeddings.

Source: transformers 5.23 ``models/doge/modeling_doge.py``. The mask is made even where none is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend, cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import product, repeat_kv
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
)
from vlmplan.architecture.families.moe import top
from vlmplan.architecture.modules import Embedding, Linear, Module, RMSNorm, Stack
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.errors import InputError
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class DogeShape:
    """``most_keys``: of more keys than that, each query sees those alone whose mask is largest."""

    decoder: DecoderShape
    most_keys: int
    dropout: float


class DogeAttention(Attention):
    """``DogeAttention``, which its layer calls with its input by name."""

    takes_keywords = True

    def __init__(self, doge: DogeShape) -> None:
        shape = doge.decoder
        self.shape, self.window, self.most_keys = shape, None, doge.most_keys
        query_width, key_width = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.A = Parameter(shape.num_kv_heads)
        self.q_proj = Linear(shape.hidden_size, query_width, bias=shape.qkv_bias)
        self.k_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.v_proj = Linear(shape.hidden_size, key_width, bias=shape.qkv_bias)
        self.dt_proj = Linear(key_width, shape.num_kv_heads, bias=shape.qkv_bias)
        self.o_proj = Linear(query_width, shape.hidden_size, bias=shape.output_bias)
        self.q_norm = RMSNorm(shape.head_dim)
        self.k_norm = RMSNorm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        shape, (batch, num_tokens, _) = self.shape, x.shape
        q, k, v = self.heads(x)
        q, k = self.positioned(q, k, context)
        k, v = cached(k, v)
        in_rows = (batch, v.shape[2], shape.num_kv_heads * shape.head_dim)
        values = v.view(*in_rows) if x.tape.key_cache is None else ops.copy(v, *in_rows)
        steps = self._steps(self.dt_proj(values))
        mask = self._masked(steps, num_tokens, context)
        mask = repeat_kv(mask, shape.num_heads)
        out = attend(context.backend, q, k, v, is_causal=True, mask=mask, scores=shape.scores, is_cached=False)
        out = self.o_proj(out)
        del q, k, v, values, steps, mask
        return out

    def _steps(self, x: Tensor) -> Tensor:
        """``exp(A * softplus(x))``; autocast runs both functions in float32."""
        wide = x if x.tape.autocast is None else ops.to(x, DType.FLOAT32)
        weighted = ops.mul(ops.unary(wide, saves_input=True), self.A, y_is_first=True)
        return chunks.exponential(weighted if x.tape.autocast is None else ops.to(weighted, DType.FLOAT32))

    def _masked(self, steps: Tensor, num_tokens: int, context: RotaryContext) -> Tensor:
        """``prepare_dynamic_mask``: (batch, heads of keys, tokens, keys)."""
        tape, (batch, num_keys, num_heads) = steps.tape, steps.shape
        shape = (batch, num_heads, num_tokens, num_keys)
        mask = ops.expand(steps.view(batch, num_heads, 1, num_keys), *shape)
        given = context.masks[None]
        if given.dtype is DType.BOOL:
            given = tape.tensor((batch, 1, num_tokens, num_keys), context.cos.dtype)
        mask = chunks.masked_fill(mask, tape.tensor((batch, 1, num_tokens, num_keys), DType.BOOL))
        if num_keys > self.most_keys:
            active = tape.tensor(shape, context.cos.dtype)
            largest = tape.tensor((*shape[:3], self.most_keys), mask.dtype)
            indices = tape.tensor(largest.shape, DType.INT64)
            tape.move(mask.num_bytes + largest.num_bytes + indices.num_bytes)
            del largest
            active = tape.tensor(shape, active.dtype)
            tape.move(2 * active.num_bytes + indices.num_bytes)
            mask = chunks.masked_fill(mask, tape.tensor(shape, DType.BOOL))
            del active, indices
        del given
        return mask


class DogeExperts(GatedMlp):
    """``DogeCDMoE``: an MLP for all tokens, and for each its best experts, found by two halves of their numbers."""

    def __init__(self, shape: DecoderShape, *, num_experts: int, num_per_token: int) -> None:
        super().__init__(shape.hidden_size, shape.intermediate_size, activation=shape.activation, bias=shape.mlp_bias)
        self.num_keys, self.num_per_token = isqrt(num_experts), num_per_token
        self.router_gate = Linear(shape.hidden_size, 2 * self.num_keys)
        self.down_embed = Embedding(num_experts, shape.hidden_size)
        self.up_embed = Embedding(num_experts, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        tape, width = x.tape, x.shape[-1]
        num_tokens, num_keys, count = x.numel // width, self.num_keys, self.num_per_token
        logits = self.router_gate(x).view(2, num_tokens, num_keys)
        scores, halves = top(logits, num_keys)
        first, second = ops.split(scores, (num_tokens, num_keys), (num_tokens, num_keys))
        del scores
        all_scores = chunks.outer_sum(first, second, (num_tokens, num_keys, num_keys))
        all_indices = tape.tensor((num_tokens, num_keys, num_keys), DType.INT64)
        best, places = top(all_scores.view(num_tokens, num_keys * num_keys), count)
        indices = tape.tensor((num_tokens, count), DType.INT64)
        weights = ops.softmax(best)
        down, up = self.down_embed(indices), self.up_embed(indices)
        met = product(down, x.view(num_tokens, width, 1), (num_tokens, count, 1), width).view(num_tokens, count)
        met = ops.mul(self.act_fn(met), weights)
        routed = product(met.view(num_tokens, 1, count), up, (num_tokens, 1, width), count).view(*x.shape)
        shared = super().forward(x)
        out = ops.add(shared, routed)
        del logits, halves, first, second, all_scores, all_indices, best, places, indices, weights
        del down, up, met, routed, shared
        return out


class DogeLayer(Module):
    """``DogeDecoderLayer``."""

    def __init__(self, doge: DogeShape, mlp: Module) -> None:
        width, self.dropout = doge.decoder.hidden_size, doge.dropout
        self.input_layernorm = RMSNorm(width)
        self.self_attn = DogeAttention(doge)
        self.input_residual = Parameter(width)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = mlp
        self.post_attention_residual = Parameter(width)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, context)
        x = ops.dropout(x, self.dropout, is_module=False)
        x = ops.add(ops.mul(residual, self.input_residual, y_is_first=True), x)
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.mlp(x)
        x = ops.dropout(x, self.dropout, is_module=False)
        return ops.add(ops.mul(residual, self.post_attention_residual, y_is_first=True), x)


class DogeDecoder(Decoder):
    """``DogeModel``."""

    def contexts(self, x: Tensor, backend: AttentionBackend) -> Callable[[Any], RotaryContext]:
        """Its mask is there even where a flag would do."""
        batch, num_tokens, _ = x.shape
        cos, sin = self.positions(x)
        shape = (batch, 1, num_tokens, num_tokens)
        if backend.implementation == "eager":
            mask = x.tape.tensor(shape, x.dtype)
        else:
            made = x.tape.tensor((batch if backend.gets_mask else 1, *shape[1:]), DType.BOOL)
            mask = ops.expand(made, *shape)
        context = RotaryContext(backend, cos, sin, {None: mask})
        return lambda layer: context


def decoder(config: Config) -> DogeDecoder:
    """Raises InputError where scores of experts are divided by their sum: transformers does that to the result of a
    softmax in place, and torch refuses its backward."""
    shape = replace(decoder_shape(config), qk_norm=True)
    dropout, most_keys = config.number("hidden_dropout"), config.integer("keep_window_size")
    doge = DogeShape(decoder=shape, most_keys=most_keys, dropout=dropout)
    layer = DogeLayer(doge, _mlp(config, shape))
    return DogeDecoder(shape, Stack.of(layer, shape.num_layers, label="layers"))


def _mlp(config: Config, shape: DecoderShape) -> Module:
    if not config.boolean("is_moe"):
        return GatedMlp(shape.hidden_size, shape.intermediate_size, activation=shape.activation, bias=shape.mlp_bias)
    if config.boolean("norm_topk_prob"):
        raise InputError(
            f"{CONFIG}: norm_topk_prob is true; transformers cannot train Doge's experts with it: give false"
        )
    num_experts, num_per_token = config.integer("num_experts"), config.integer("num_experts_per_tok")
    return DogeExperts(shape, num_experts=num_experts, num_per_token=num_per_token)
