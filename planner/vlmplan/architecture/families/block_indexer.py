"""Attention to the blocks of tokens that an indexer chooses, query by query.

Source: transformers 5.23 ``models/qwen4_exp/modeling_qwen4_exp.py`` (``Qwen4ExpTextQSAIndexer``). A loop in Python over
samples and queries takes the mean of the keys that a query sees by blocks, and scores them; of the tensors of a turn
those of the last, which sees all, are the largest, and stay until the loop's function returns. What it has chosen is a
mask of all pairs: no gradient comes to its weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vlmplan.architecture import ops
from vlmplan.architecture.config import CONFIG, Config
from vlmplan.architecture.families.llama import RotaryContext
from vlmplan.architecture.modules import GemmaRMSNorm, Linear, Module
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.tensor import Tensor
from vlmplan.files.json_reader import not_allowed
from vlmplan.units import DType

NUM_TURN_KERNELS = 40
"""Kernels of one turn of the loop, counted: the tokens that are seen, their keys, norm and positions, scores, the best
blocks and where their tokens are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndexerShape:
    """The dimensions of an indexer."""

    hidden_size: int
    num_heads: int
    head_dim: int
    num_chosen: int
    """Tokens of whole blocks for a query, at the most (``indexer_budget``)."""
    block_size: int

    @property
    def row_width(self) -> int:
        """Tokens that a query may see: those of its blocks, and of the last, which is not full."""
        return self.num_chosen + self.block_size - 1


def block_indexer_shape(config: Config, rotary_width: int) -> BlockIndexerShape:
    """The indexer of a text configuration. Raises InputError as ``validate_architecture`` does."""
    shape = BlockIndexerShape(
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("indexer_n_heads"),
        head_dim=config.integer("indexer_head_dim"),
        num_chosen=config.integer("indexer_budget"),
        block_size=config.integer("indexer_compress_ratio"),
    )
    if config.integer("indexer_kv_heads") != 1:
        raise not_allowed(CONFIG, "indexer_kv_heads", config.integer("indexer_kv_heads"), "1")
    if shape.num_chosen % shape.block_size:
        allowed = f"a multiple of {shape.block_size}, indexer_compress_ratio"
        raise not_allowed(CONFIG, "indexer_budget", shape.num_chosen, allowed)
    if rotary_width > shape.head_dim:
        allowed = f"at least {rotary_width}, the elements of a head that are rotated"
        raise not_allowed(CONFIG, "indexer_head_dim", shape.head_dim, allowed)
    return shape


class BlockIndexer(Module):
    """``Qwen4ExpTextQSAIndexer``."""

    def __init__(self, shape: BlockIndexerShape) -> None:
        self.shape = shape
        self.index_qk_proj = Linear(shape.hidden_size, (shape.num_heads + 1) * shape.head_dim)
        self.q_layernorm = GemmaRMSNorm(shape.head_dim)
        self.k_layernorm = GemmaRMSNorm(shape.head_dim)

    def forward(self, x: Tensor, context: RotaryContext, mask: Tensor) -> Tensor:
        """Which keys each query has chosen, (batch, 1, tokens, tokens) in 8 bit, of the causal ``mask``."""
        tape, shape = x.tape, self.shape
        batch, num_tokens, _ = x.shape
        rows = (batch, num_tokens)
        both = self.index_qk_proj(x)
        q, keys = ops.split(both, (*rows, shape.num_heads, shape.head_dim), (*rows, shape.head_dim))
        q = self.q_layernorm(q)
        width = context.cos.shape[-1]
        q = partly_rotated(
            q, context.cos.view(batch, num_tokens, 1, width), context.sin.view(batch, num_tokens, 1, width)
        )
        if tape.key_cache is not None:
            keys = tape.key_cache.kept(keys)
        seen = mask if mask.dtype is DType.BOOL else tape.tensor(mask.shape, DType.BOOL)
        chosen = tape.tensor((*rows, shape.row_width), DType.INT32)
        last_turn = self._turn(q, keys, context, num_tokens)
        self._note_turns(batch, keys)
        no_pairs = tape.tensor((*rows, num_tokens + 1), DType.BOOL)
        is_real = tape.tensor(chosen.shape, DType.BOOL)
        positions = tape.tensor(chosen.shape, DType.INT32)
        del is_real
        pairs = tape.tensor(no_pairs.shape, DType.BOOL)
        tape.move(3 * chosen.num_bytes + 4 * pairs.num_bytes, 4)
        del no_pairs, positions, last_turn, seen, both, q, keys
        return Tensor(pairs.storage, (batch, 1, num_tokens, num_tokens), DType.BOOL)

    def _turn(self, q: Tensor, keys: Tensor, context: RotaryContext, num_seen: int) -> Sequence[Tensor]:
        """The tensors of one turn, whose query sees ``num_seen`` tokens."""
        tape, shape = q.tape, self.shape
        num_blocks = num_seen // shape.block_size
        seen = tape.tensor((num_seen,), DType.INT64)
        if not num_blocks:
            return (seen,)
        of_blocks = (num_blocks, shape.head_dim)
        groups = ops.copy(keys, num_blocks * shape.block_size, shape.head_dim)
        pooled = ops.to(ops.mean(ops.to(groups, DType.FLOAT32), of_blocks), keys.dtype)
        pooled = self.k_layernorm(pooled)
        cos, sin = (ops.copy(one, num_blocks, one.shape[-1]) for one in (context.cos, context.sin))
        block_keys = partly_rotated(pooled, cos, sin)
        query = ops.to(ops.part(q, shape.num_heads, shape.head_dim), DType.FLOAT32)
        scores = chunks.product(query, ops.to(block_keys, DType.FLOAT32), (shape.num_heads, num_blocks), shape.head_dim)
        scores = ops.scale(ops.total(ops.relu(scores), (num_blocks,)))
        best = tape.tensor((min(shape.num_chosen // shape.block_size, num_blocks),), DType.INT64)
        tokens = tape.tensor((best.numel * shape.block_size,), DType.INT64)
        return seen, groups, pooled, block_keys, scores, best, tokens

    def _note_turns(self, batch: int, keys: Tensor) -> None:
        """What all turns but the last move: each reads the keys up to its query, half of all on average, once as they
        are and once in float32."""
        num_tokens, dtype = keys.shape[1], keys.dtype
        num_turns = batch * num_tokens - 1
        of_token = self.shape.head_dim * (2 * dtype.num_bytes + 2 * DType.FLOAT32.num_bytes)
        keys.tape.move(num_turns * num_tokens // 2 * of_token, num_turns * NUM_TURN_KERNELS)


def partly_rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The first elements of each row rotated, as many as cos has, beside the rest: a new tensor."""
    width = cos.shape[-1]
    rotated, rest = ops.slice_last(x, width), ops.slice_last(x, x.shape[-1] - width)
    rotated = ops.rotate(rotated, cos, sin)
    return ops.concatenate([rotated, rest], x.shape)
