"""Attention over a window of keys that are values too, and over compressed ones: DeepSeek-V4's.

Source: transformers 5.23 ``models/deepseek_v4/modeling_deepseek_v4.py``. Every layer has one key head, of which each
key is also the value. Two kinds of layers append compressed keys to them, one for each whole window of ``rate`` tokens:
heavily compressed attention sees all of them, compressed sparse attention those that its indexer chooses. What is not
seen is masked: scores of all pairs are computed and kept, eagerly.

The indexer returns positions, so no gradient comes to its weights, and its tensors go when it returns. Its scores of
all heads, tokens and compressed keys are float32; with more than one sample ``torch.matmul`` writes the compressed keys
out for every token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.attention_kernels import attention_with_sinks
from vlmplan.architecture.compressed_layers import CHOOSING, HEAVY, SLIDING
from vlmplan.architecture.families.grouped_projection import GroupedLinear
from vlmplan.architecture.families.hyper_connections import unweighted_norm
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.families.moe import top
from vlmplan.architecture.modules import Linear, Module, WideRMSNorm
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedShape:
    """The dimensions of attention in all layers."""

    hidden_size: int
    num_heads: int
    head_dim: int
    dropout: float
    """Of attention weights."""
    q_rank: int
    num_groups: int
    """Of heads, each with an output projection of its own to ``group_rank``."""
    group_rank: int
    rates: Mapping[str, int]
    """Tokens of a window by kind of layer."""
    index_heads: int
    index_head_dim: int
    index_top: int
    rotary_widths: Mapping[str, int]
    """Elements of a head that are rotated, by kind of layer."""


class CompressedContext(RotaryContext):
    """What every layer is called with: cos and sin (1, tokens, rotated elements / 2) by kind of layer."""

    __slots__ = ("positions",)

    def __init__(self, backend: AttentionBackend, mask: Tensor, positions: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        super().__init__(backend, *positions[SLIDING], {None: mask})
        self.positions = positions


def rotated_end(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``apply_rotary_pos_emb``: the last elements of each row rotated in pairs, in float32; x (..., tokens, width)."""
    tape, width = x.tape, 2 * cos.shape[-1]
    both = (*cos.shape[:-1], width)
    cos, sin = tape.tensor(both, cos.dtype), tape.tensor(both, sin.dtype)  # repeat_interleave
    plain, turned = ops.slice_last(x, x.shape[-1] - width), ops.slice_last(x, width)
    cosines = ops.mul(ops.to(turned, DType.FLOAT32), cos)
    sines = ops.mul(ops.to(ops.rotate_half(turned, width // 2), DType.FLOAT32), sin)
    rotated = ops.add(cosines, sines)
    del cosines, sines
    rotated = ops.to(rotated, x.dtype)
    return ops.concatenate([plain, rotated], x.shape)


def whole_windows(x: Tensor, rate: int) -> Tensor:
    """``x[:, :usable]`` as (batch, windows, rate, width)."""
    batch, num_tokens, width = x.shape
    windows = (batch, num_tokens // rate, rate, width)
    return x.view(*windows) if num_tokens % rate == 0 else ops.part(x, *windows)


class Keys(NamedTuple):
    """Compressed keys (batch, windows, head_dim), and what lives as long as the function that made them runs."""

    compressed: Tensor
    held: Sequence[Tensor]


class WindowKeys(Module):
    """What makes one key of each window: sums over its tokens, weighted by element."""

    NUM_SERIES = 1
    """Vectors of a token: one for its own window, another for the window behind it."""

    def __init__(self, shape: CompressedShape, kind: str, head_dim: int) -> None:
        self.shape, self.head_dim = shape, head_dim
        self.rate, self.rotary_width = shape.rates[kind], shape.rotary_widths[kind]
        width = self.NUM_SERIES * head_dim
        self.kv_proj = Linear(shape.hidden_size, width)
        self.gate_proj = Linear(shape.hidden_size, width)
        self.position_bias = Parameter(self.rate, width)
        self.position_bias.meets_autocast = False
        self.kv_norm = WideRMSNorm(head_dim)

    def keys(self, x: Tensor) -> Keys:
        """The keys of whole windows, normed and rotated to where each begins."""
        kv, gate = self.kv_proj(x), self.gate_proj(x)
        batch, num_tokens, _ = x.shape
        num_windows = num_tokens // self.rate
        if num_windows == 0:
            return Keys(x.tape.tensor((batch, 0, self.head_dim), kv.dtype), (kv, gate))
        windows, gates = whole_windows(kv, self.rate), whole_windows(gate, self.rate)
        gates = ops.add(gates, self.position_bias)
        windows, gates, *held = self.slots(windows, gates)
        dtype = None if x.tape.autocast is None else DType.FLOAT32
        rows = (batch, num_windows, self.head_dim)
        weighted = ops.mul(windows, ops.to(ops.softmax(gates, DType.FLOAT32), windows.dtype))
        summed = ops.total(weighted, rows, dtype)
        del weighted
        compressed = self.kv_norm(summed)
        del summed
        cos, sin = (x.tape.tensor((batch, 1, num_windows, self.rotary_width // 2), compressed.dtype) for _ in range(2))
        compressed = rotated_end(compressed.view(batch, 1, num_windows, self.head_dim), cos, sin)
        if x.tape.key_cache is not None:  # slices of the projections wait there for the tokens that fill a window
            x.tape.key_cache.hold(kv, gate, compressed)
        return Keys(compressed.view(*rows), (kv, gate, windows, gates, cos, sin, *held))

    def slots(self, kv: Tensor, gate: Tensor) -> list[Tensor]:
        """What is summed and what weights it, (batch, windows, slots, head_dim)."""
        return [kv, gate]


class OverlappingKeys(WindowKeys):
    """Windows that overlap: each sums up its own tokens by their second vectors, and those before it by their first."""

    NUM_SERIES = 2

    def slots(self, kv: Tensor, gate: Tensor) -> list[Tensor]:
        """What is summed and what weights it, and what both are copied from."""
        return [self._laid_out(kv), self._laid_out(gate), kv, gate]

    def _laid_out(self, x: Tensor) -> Tensor:
        """x (batch, windows, rate, 2 * head_dim) written into slots of two windows."""
        batch, num_windows, rate, _ = x.shape
        width = self.head_dim
        slots = x.tape.tensor((batch, num_windows, 2 * rate, width), x.dtype)
        x.tape.move(slots.num_bytes)
        slots = chunks.put_slice(slots, ops.slice_last(x, width))
        if num_windows > 1:
            before = ops.part(x, batch, num_windows - 1, rate, 2 * width)
            slots = chunks.put_slice(slots, ops.slice_last(before, width))
        return slots


class Compressor(WindowKeys):
    """``DeepseekV4HCACompressor``: keys that every token behind their window sees."""

    def forward(self, x: Tensor, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        """The keys (batch, 1, windows, head_dim) and the mask of which token sees which, None where there is no key."""
        keys, held = self.keys(x)
        batch, num_windows, width = keys.shape
        num_tokens, tape = x.shape[1], x.tape
        if num_windows == 0:
            return keys.view(batch, 1, 0, width), None
        thresholds = tape.tensor((1, num_tokens), DType.INT64)
        zeros = tape.tensor((batch, 1, num_tokens, num_windows), keys.dtype)
        mask = chunks.masked_fill(zeros, tape.tensor((1, 1, num_tokens, num_windows), DType.BOOL))
        del thresholds, zeros, held
        return keys.view(batch, 1, num_windows, width), mask


class IndexerScorer(Module):
    """``DeepseekV4IndexerScorer``: how much each token wants each key, in float32."""

    def __init__(self, shape: CompressedShape) -> None:
        self.weights_proj = Linear(shape.hidden_size, shape.index_heads)

    def forward(self, q: Tensor, keys: Tensor, x: Tensor) -> Tensor:
        """q (batch, tokens, heads, head_dim), keys (batch, windows, head_dim); scores (batch, tokens, windows)."""
        batch, num_tokens, num_heads, _ = q.shape
        num_windows = keys.shape[1]
        scores = indexed_products(q, keys)
        scores = ops.scale(ops.relu(scores))
        weights = ops.scale(ops.to(self.weights_proj(x), DType.FLOAT32))
        weighted = chunks.outer(scores, weights.view(batch, num_tokens, num_heads, 1), scores.shape)
        return ops.total(weighted, (batch, num_tokens, num_windows))


def indexed_products(q: Tensor, keys: Tensor, *, is_in_order: bool = False) -> Tensor:
    """``torch.matmul(q.float(), keys.transpose(-1, -2).float().unsqueeze(1))``, (batch, tokens, heads, windows).

    ``at::matmul`` makes one dimension of samples and tokens: of a single sample by views, else by copies, so that every
    token has all keys of its sample. ``is_in_order``: q lies in memory as it is, so that it needs none.
    """
    batch, num_tokens, num_heads, width = q.shape
    num_windows = keys.shape[1]
    wide_q, wide_keys = ops.to(q, DType.FLOAT32), ops.to(keys, DType.FLOAT32)
    left, right = wide_q, wide_keys
    if q.tape.autocast is not None:
        right = ops.to(right, q.tape.autocast)
        left = ops.to(left, q.tape.autocast)
    if batch > 1:
        left = left if is_in_order else ops.copy(left)
        right = chunks.repeat_heads(right, batch, num_tokens, width, num_windows)
    return ops.matmul(left, right, (batch, num_tokens, num_heads, num_windows), width)


class Indexer(OverlappingKeys):
    """``DeepseekV4Indexer``: which keys each token sees; it has narrow keys and queries of its own."""

    def __init__(self, shape: CompressedShape) -> None:
        super().__init__(shape, CHOOSING, shape.index_head_dim)
        self.q_b_proj = Linear(shape.q_rank, shape.index_heads * shape.index_head_dim)
        self.scorer = IndexerScorer(shape)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        """Positions of keys (batch, tokens, k)."""
        batch, num_tokens, _ = x.shape
        tape, num_heads = x.tape, self.shape.index_heads
        keys, held = self.keys(x)
        cos, sin = (tape.tensor((1, 1, num_tokens, self.rotary_width // 2), x.dtype) for _ in range(2))
        q = self.q_b_proj(queries).view(batch, num_heads, num_tokens, self.head_dim)
        q = rotated_end(q, cos, sin).view(batch, num_tokens, num_heads, self.head_dim)
        scores = self.scorer(q, keys, x)
        num_windows = keys.shape[1]
        thresholds = tape.tensor((1, num_tokens), DType.INT64)
        is_ahead = tape.tensor((1, num_tokens, num_windows), DType.BOOL)
        scores = chunks.masked_fill(scores, is_ahead)
        indices = top(scores, min(self.shape.index_top, num_windows))[1]
        is_invalid = tape.tensor(indices.shape, DType.BOOL)
        chosen = [tape.tensor(indices.shape, DType.INT64) for _ in range(2)]  # full_like, where
        tape.move(4 * indices.num_bytes)
        del held, cos, sin, thresholds, is_ahead, is_invalid
        return chosen.pop()


class SparseCompressor(OverlappingKeys):
    """``DeepseekV4CSACompressor``: overlapping windows, and an indexer that masks most of their keys."""

    def __init__(self, shape: CompressedShape) -> None:
        super().__init__(shape, CHOOSING, shape.head_dim)
        self.indexer = Indexer(shape)

    def forward(self, x: Tensor, queries: Tensor) -> tuple[Tensor, Tensor | None]:
        keys, held = self.keys(x)
        chosen = self.indexer(x, queries)
        batch, num_windows, width = keys.shape
        num_tokens, tape = x.shape[1], x.tape
        is_valid = tape.tensor(chosen.shape, DType.BOOL)
        indices = [tape.tensor(chosen.shape, DType.INT64) for _ in range(2)]  # full_like, where
        mask = tape.tensor((batch, 1, num_tokens, num_windows + 1), keys.dtype)
        tape.move(4 * chosen.num_bytes + 2 * mask.num_bytes)
        del held, chosen, is_valid, indices
        return keys.view(batch, 1, num_windows, width), mask.view(batch, 1, num_tokens, num_windows)


class CompressedAttention(Module):
    """``DeepseekV4Attention`` of a layer of ``kind``."""

    def __init__(self, shape: CompressedShape, kind: str) -> None:
        self.shape, self.kind = shape, kind
        width, heads_width = shape.hidden_size, shape.num_heads * shape.head_dim
        self.q_a_proj = Linear(width, shape.q_rank)
        self.q_a_norm = WideRMSNorm(shape.q_rank)
        self.q_b_proj = Linear(shape.q_rank, heads_width)
        self.kv_proj = Linear(width, shape.head_dim)
        self.kv_norm = WideRMSNorm(shape.head_dim)
        self.o_a_proj = GroupedLinear(heads_width // shape.num_groups, shape.group_rank, shape.num_groups)
        self.o_b_proj = Linear(shape.num_groups * shape.group_rank, width)
        self.sinks = Parameter(shape.num_heads)
        if kind == CHOOSING:
            self.compressor: Module | None = SparseCompressor(shape)
        else:
            self.compressor = Compressor(shape, HEAVY, shape.head_dim) if kind == HEAVY else None

    def forward(self, x: Tensor, context: CompressedContext) -> tuple[Tensor, Tensor]:
        """The result and the attention weights, which the layer holds while its experts run."""
        batch, num_tokens, _ = x.shape
        shape = self.shape
        heads = (batch, shape.num_heads, num_tokens, shape.head_dim)
        cos, sin = context.positions[self.kind]
        queries = self.q_a_norm(self.q_a_proj(x))
        q = self.q_b_proj(queries).view(*heads)
        q = unweighted_norm(q)
        q = rotated_end(q, cos, sin)
        kv = self.kv_norm(self.kv_proj(x)).view(batch, 1, num_tokens, shape.head_dim)
        kv = rotated_end(kv, cos, sin)
        if x.tape.key_cache is not None:
            kv = x.tape.key_cache.kept(kv)
        mask, bias, compressed = context.masks[None], None, None
        if self.compressor is not None:
            compressed, bias = self.compressor(x, queries)
            kv = ops.to(kv, compressed.dtype)  # under autocast sums over windows are float32
            kv = ops.concatenate([kv, compressed], (batch, 1, num_tokens + compressed.shape[2], shape.head_dim))
        if bias is not None and kv.shape[2] > num_tokens:
            mask = ops.concatenate([mask, ops.to(bias, mask.dtype)], (batch, 1, num_tokens, kv.shape[2]))
        out, weights = attention_with_sinks(q, kv, kv, mask, self.sinks, dropout=shape.dropout)
        out = rotated_end(out.view(*heads), cos, ops.scale(sin))
        result = self._projected(out)
        del bias, compressed, queries
        return result, weights

    def _projected(self, out: Tensor) -> Tensor:
        """The result (batch, heads, tokens, head_dim), in groups of heads and then all together."""
        batch, num_heads, num_tokens, head_dim = out.shape
        num_groups, rank = self.shape.num_groups, self.shape.group_rank
        shape = (batch, num_tokens, num_groups, num_heads * head_dim // num_groups)
        grouped = out.view(*shape) if num_groups == num_heads else ops.resample(out, *shape)
        grouped = ops.copy(self.o_a_proj(grouped), batch, num_tokens, num_groups * rank)
        return self.o_b_proj(grouped)
