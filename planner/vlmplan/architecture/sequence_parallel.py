"""Sequence parallelism: ranks that share a sample, each with its part of the tokens, trade tokens for heads around
attention.

Source: DeepSpeed 0.19.8, ``runtime/sequence_parallel/ulysses_sp.py`` (``UlyssesSPAttentionHF``) and
``_dim_zero_all_to_all`` in ``sequence/layer.py``. Symbols: P ranks, b samples, t tokens of a rank, h heads, d their
width. Queries, keys and values of (b, h, t, d) become (b, h/P, tP, d): a copy in the order of the ranks, an all-to-all
of it, and a copy in the order that attention takes. Fewer than P heads of keys and values are repeated until there are
P. The result goes back the same way.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType


def heads_gathered(q: Tensor, k: Tensor, v: Tensor, num_ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """All tokens of this rank's heads: ``_combine_local_sequences``, and each copied for attention behind it."""
    positions = gathered_positions(q, num_ranks)
    q, k, v = (_tokens_for_heads(x, num_ranks) for x in (q, k, v))
    q = _in_order_of_heads(q)
    k = _in_order_of_heads(k)
    v = _in_order_of_heads(v)
    del positions
    return q, k, v


def gathered_positions(q: Tensor, num_ranks: int) -> Tensor:
    """``position_ids`` of all ranks: what each sends, and their concatenation."""
    parts = [q.tape.tensor((1, q.shape[2]), DType.INT64) for _ in range(num_ranks)]
    del parts
    return q.tape.tensor((1, q.shape[2] * num_ranks), DType.INT64)


def _tokens_for_heads(x: Tensor, num_ranks: int) -> Tensor:
    """``combine_sequence``: (b, h, t, d) to (b, h/P, tP, d), in memory token after token."""
    batch, num_heads, num_tokens, head_dim = x.shape
    if num_heads < num_ranks:
        num_heads = num_ranks
        x = _repeated(x, num_heads)
    sent = ops.copy(_split_heads(x))
    shape = (batch, num_heads // num_ranks, num_tokens * num_ranks, head_dim)
    return all_to_all(sent, shape, is_gradient_in_order=shape[0] * shape[1] == 1)


def _in_order_of_heads(x: Tensor) -> Tensor:
    """``rearrange("sl bs hc hs -> bs hc sl hs").contiguous()``: nothing to do for one head of one sample."""
    return x if x.shape[0] * x.shape[1] == 1 else ops.copy(x)


def tokens_gathered(context: Tensor, num_ranks: int) -> Tensor:
    """All heads of this rank's tokens: ``_partition_global_sequence`` of the result of attention, (b, tP, hd/P) to (b,
    t, hd)."""
    batch, num_tokens, width = context.shape
    sent = ops.copy(context) if batch > 1 else context
    received = all_to_all(sent, context.shape, is_gradient_in_order=False)
    # ``reshape`` of "sl_l bs ws em_l": a copy, whose gradient is a view
    out = ops.copy(received, batch, num_tokens // num_ranks, width * num_ranks)
    del received
    # transformers' ``reshape(...).contiguous()``: the copy has tokens before samples
    return ops.copy(out) if batch > 1 else out


def all_to_all(x: Tensor, shape: tuple[int, ...], *, is_gradient_in_order: bool) -> Tensor:
    """``_dim_zero_all_to_all`` of x: saves nothing; backward is the same of the gradient, from a copy of it unless it
    is in order."""
    tape = x.tape
    node = tape.node((x,), _all_to_all_backward, meta=(x.shape, is_gradient_in_order))
    out = tape.tensor(shape, x.dtype, node)
    tape.exchange(out.num_bytes)
    return out


def _all_to_all_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, is_in_order = node.meta
    sent = g if is_in_order else ops.copy(g.detached())
    out = sent.tape.tensor(shape, sent.dtype)
    sent.tape.exchange(out.num_bytes)
    return (out,)


def _repeated(x: Tensor, num_heads: int) -> Tensor:
    """``repeat_interleave`` of heads; the gradient is their sum."""
    batch, _, num_tokens, head_dim = x.shape
    node = x.tape.node((x,), ops.summed_backward, meta=x.shape)
    out = x.tape.tensor((batch, num_heads, num_tokens, head_dim), x.dtype, node)
    x.tape.move(x.num_bytes + out.num_bytes)
    return out


def _split_heads(x: Tensor) -> Tensor:
    """``reshape`` of heads into (P, h/P): a view; in backward the parts have changed places, so it copies."""
    node = x.tape.node((x,), ops.rewritten_backward, meta=x.shape)
    return Tensor(x.storage, x.shape, x.dtype, node)
