"""Flint: a Qwen3-MoE with sinks of attention, scores in float32 and an expert that sees all tokens, in which layers
with a window alone have positions.

Source: transformers 5.23 ``models/flint/modeling_flint.py`` and ``configuration_flint.py``. Attention is eager: there
is no sdpa, and transformers puts kernels that it downloads in the place of every flash implementation
(``_compatible_flash_implementations``). peft does not know its experts' names.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.attention import cached
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import folded, product, repeat_kv
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.llama import (
    Attention,
    Decoder,
    DecoderLayer,
    DecoderShape,
    GatedMlp,
    RotaryContext,
    decoder_shape,
    stack_of_kinds,
)
from vlmplan.architecture.families.moe import Experts, top
from vlmplan.architecture.modules import Module, WideRMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.parameter_adapters import AdaptableModule
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

NUM_FIRST, PERIOD, PLACE = 2, 4, 1
"""Where the file does not say: the first layers, those at this place of every period and the last see everything."""


class FlintAttention(Attention):
    """``FlintAttention``."""

    head_norm = WideRMSNorm

    def __init__(self, shape: DecoderShape, window: int | None) -> None:
        super().__init__(shape, window)
        self.sinks = Parameter(shape.num_heads)

    def forward(self, x: Tensor, context: RotaryContext) -> Tensor:
        q, k, v = self.heads(x)
        if self.window is not None:
            q, k = self.positioned(q, k, context)
        k, v = cached(k, v)
        out = self._attended(q, k, v, context.masks[self.window])
        out = self.o_proj(out)
        del q, k, v
        return out

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """``eager_attention_forward``: scores and softmax are in float32, under autocast too."""
        tape, (batch, num_heads, num_tokens, head_dim), num_keys = q.tape, q.shape, k.shape[2]
        shape = (batch, num_heads, num_tokens, num_keys)
        is_copied = batch > 1 and k.shape[1] == num_heads
        keys, values = repeat_kv(k, num_heads), repeat_kv(v, num_heads)
        weights = _product_in_float32(q, keys, shape, head_dim, copies=(batch > 1, is_copied))
        weights = ops.scale(weights)
        weights = ops.add(weights, mask)
        sinks = ops.expand_weight(self.sinks, (*shape[:-1], 1), tape)
        combined = ops.concatenate([weights, ops.to(sinks, weights.dtype)], (*shape[:-1], num_keys + 1))
        probabilities = ops.softmax(combined)
        del combined
        weights = ops.to(ops.slice_last(probabilities, num_keys), v.dtype)
        del probabilities
        weights = ops.dropout(weights, self.shape.scores.dropout, is_module=False)
        tape.layer_locals.append(weights.detached())
        out = product(weights, values, q.shape, num_keys, copies=(False, is_copied))
        out = ops.copy(out, batch, num_tokens, num_heads * head_dim)
        del keys, values, sinks
        return out


def _product_in_float32(
    q: Tensor, k: Tensor, shape: tuple[int, ...], inner: int, *, copies: tuple[bool, bool]
) -> Tensor:
    """``matmul`` of both in float32: they are there until it returns, beside the ``copies`` that it takes of either."""
    first, second = ops.to(q, DType.FLOAT32), ops.to(k, DType.FLOAT32)
    return ops.matmul(folded(first, copies=copies[0]), folded(second, copies=copies[1]), shape, inner)


class FlintRouter(AdaptableModule):
    """``FlintTopKRouter``: (logits, scores, indices) of the k experts of each token by sigmoids in float32, of which
    autocast takes no part."""

    def __init__(self, num_experts: int, hidden_size: int, num_per_token: int, *, normalizes: bool) -> None:
        self.weight = Parameter(num_experts, hidden_size)
        self.weight.meets_autocast = False
        self.num_per_token, self.normalizes = num_per_token, normalizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tape = x.tape
        outside, tape.autocast = tape.autocast, None
        wide = ops.to(x, DType.FLOAT32)
        logits = ops.linear(wide, ops.cast_weight(self.weight_of("weight"), DType.FLOAT32, tape))
        del wide
        tape.autocast = outside
        scores, indices = top(ops.sigmoid(logits), self.num_per_token)
        if self.normalizes:
            scores = chunks.divide(scores, ops.total(scores, (*scores.shape[:-1], 1)))
        return logits, scores, indices


class FlintBlock(Module):
    """``FlintSparseMoeBlock``."""

    def __init__(self, config: Config, shape: DecoderShape) -> None:
        num_experts, width = config.integer("num_experts"), shape.hidden_size
        inner, shared = config.integer("moe_intermediate_size"), config.integer("shared_expert_intermediate_size")
        num_per_token, normalizes = config.integer("num_experts_per_tok"), config.boolean("norm_topk_prob")
        self.experts: Any = Experts(num_experts, width, inner, activation=shape.activation)
        self.gate: Any = FlintRouter(num_experts, width, num_per_token, normalizes=normalizes)
        self.shared_expert = GatedMlp(width, shared, activation=shape.activation)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        flat = x.view(x.numel // width, width)
        _logits, scores, indices = self.gate(flat)
        routed = self.experts(flat, indices, scores)
        return ops.add(routed, self.shared_expert(flat)).view(*x.shape)


class FlintLayer(DecoderLayer):
    """``FlintDecoderLayer``."""

    attention = FlintAttention
    norm = WideRMSNorm


class FlintDecoder(Decoder):
    """``FlintModel``."""

    def forward(self, x: Tensor, backend: AttentionBackend) -> Tensor:
        return super().forward(x, replace(backend, implementation="eager"))


def decoder(config: Config) -> FlintDecoder:
    shape = decoder_shape(config)
    width, last = config.integer("sliding_window"), shape.num_layers - 1
    types = config.layer_types()
    windows = tuple(
        width if (types[index] == "sliding_attention" if types else _slides(index, last)) else None
        for index in range(shape.num_layers)
    )
    kinds = list(zip(windows, _has_experts(config, shape.num_layers), strict=True))
    shape = replace(shape, windows=windows, qk_norm=True)

    def layer(kind: tuple[int | None, bool]) -> FlintLayer:
        window, is_sparse = kind
        return FlintLayer(shape, window, mlp=FlintBlock(config, shape) if is_sparse else None)

    return FlintDecoder(shape, stack_of_kinds(kinds, layer), norm=WideRMSNorm, masked_windows=(None, width))


def _slides(index: int, last: int) -> bool:
    return index >= NUM_FIRST and index % PERIOD != PLACE and index != last


def _has_experts(config: Config, num_layers: int) -> Sequence[bool]:
    """``mlp_only_layers``, the first two where the file does not say, have none."""
    dense = range(NUM_FIRST) if config.get("mlp_only_layers") is None else config.integers("mlp_only_layers")
    step = config.integer("decoder_sparse_step", 1)
    return [index not in dense and (index + 1) % step == 0 for index in range(num_layers)]
