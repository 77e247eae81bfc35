"""Liger's fused linear cross entropy: head and loss chunk by chunk, with the gradients made in forward.

Source: liger-kernel 0.8.5, ``ops/fused_linear_cross_entropy.py``, on a card of compute capability 8.0 or newer. With N
tokens, hidden size H, vocabulary V and chunks of c tokens (``liger_chunk_tokens``, about NH / V, so that a chunk of
logits is at most about twice as large as the hidden states), b bytes an element of the type that is computed in:

- forward: cVb of logits, which the Triton kernel turns into their own gradient in place;
- kept to backward: the gradient of the hidden states, and that of a trained head in the head's type;
- backward: both are multiplied in place.

Autocast keeps the copy of a trained weight that the product of the hidden states' gradient reads, until it ends; the
one of the logits' product is of a view, which it never keeps (``cached_cast`` in ``autocast_mode.cpp``).

Where hidden states, weight and computation have one type, logits are written into one buffer for all chunks and the
gradient of the hidden states into its place; else each product is a new tensor beside casts of what is multiplied.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.losses.cross_entropy import count_products
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.recipe.choices import liger_chunk_tokens
from vlmplan.units import DType

ACCESSES_PER_LOGIT = 3
"""``liger_cross_entropy_kernel`` reads a row once for its softmax, and once more to write its gradient."""


def liger_loss(hidden: Tensor, head: Any, *, model: ReadHead | None = None) -> Tensor:
    """The loss of all tokens. ``hidden``: (samples, tokens, width) of the last norm; ``model``: what reads the head's
    weight, None where the head is called as a module.

    The weight is read as it lies in the module, so adapters on the head do not take part.
    """
    tape = hidden.tape
    head = ReadHead(head).head
    weight: Parameter = head.weight
    vocab_size, width = weight.shape
    num_tokens, dtype = hidden.numel // width, tape.autocast or hidden.dtype
    chunk = liger_chunk_tokens(num_tokens, width, vocab_size)
    if model is None:
        tape.fetch(head)
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((hidden, weight, head.bias), _liger_backward)
        if node is not None:
            node.module = head if model is None else model
        trains = hidden.requires_grad and weight.requires_grad and not tape.is_evaluating
        kept = [tape.tensor(hidden.shape, hidden.dtype)]  # whether or not it is wanted
        kept += [tape.gradient(weight.shape, weight.dtype)] if trains else []
        of_tokens = [tape.tensor((num_tokens,), dtype) for dtype in (DType.FLOAT32, DType.BOOL)]  # losses, which count
        num_chunks = -(-num_tokens // chunk)
        cached: list[Tensor] | None = [] if tape.caches_casts and trains and weight.dtype is not dtype else None
        for _ in range(1 if cached is None else min(2, num_chunks)):  # the second one finds what the first one kept
            _run_chunk(tape, hidden, weight, chunk, dtype, trains=trains, cached=cached)
        tape.locals += cached or []
        count_products(tape, weight, num_tokens, chunk, dtype, 1 + hidden.requires_grad + trains)
        casts = 1 + (hidden.requires_grad and cached is None)
        _count_weight_accesses(tape, weight, num_chunks, dtype, casts=casts, sums=trains)
        tape.move(ACCESSES_PER_LOGIT * num_tokens * vocab_size * dtype.num_bytes, -(-num_tokens // chunk))
        if node is not None:
            tape.save(node, *(kept if hidden.requires_grad else kept[1:]))
        del kept, of_tokens
        loss = tape.tensor((), DType.FLOAT32, node)
    tape.release(head if model is None else model)
    return loss


def _count_weight_accesses(
    tape: ForwardTape, weight: Parameter, num_chunks: int, dtype: DType, *, casts: int, sums: bool
) -> None:
    """What each chunk reads and writes of the size of the head's weight, beside its products' own accesses: autocast's
    copies of a weight of another type, which are made anew for each (the first chunk's are ``_run_chunk``'s), and the
    gradient, which the last product reads and writes."""
    if weight.dtype is not dtype:
        copied = weight.numel * (weight.dtype.num_bytes + dtype.num_bytes)
        tape.move((num_chunks - 1) * casts * copied, (num_chunks - 1) * casts)
    if sums:
        tape.move(num_chunks * weight.numel * (2 * weight.dtype.num_bytes - dtype.num_bytes), 0)


def _run_chunk(
    tape: ForwardTape,
    hidden: Tensor,
    weight: Parameter,
    num_rows: int,
    dtype: DType,
    *,
    trains: bool,
    cached: list[Tensor] | None,
) -> None:
    """The tensors of one chunk at their most, in the order of the code: logits, then the two products of gradients.

    ``cached``: where autocast keeps its copy of the weight; None if it keeps none.
    """
    vocab_size, width = weight.shape
    writes_into_place = hidden.dtype is weight.dtype is dtype
    rows = (num_rows, width)
    casts = [tape.tensor(rows, dtype)] if hidden.dtype is not dtype else []
    wide = ops.cast_weight(weight, dtype, tape)
    logits = tape.tensor((num_rows, vocab_size), dtype)
    del casts, wide
    if hidden.requires_grad and not writes_into_place:
        wide = cached[0] if cached else ops.cast_weight(weight, dtype, tape)
        if cached is not None and not cached and isinstance(wide, Tensor):
            cached.append(wide.detached())
        product = tape.tensor(rows, dtype)
        del wide, product
    if not trains:
        return
    if hidden.dtype is not dtype:
        casts = [tape.tensor(rows, dtype)]
        del casts
    if dtype is DType.FLOAT32:
        product = tape.gradient(weight.shape, dtype)  # of float32 logits it is made whole and then added
        del product
    del logits


def _liger_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """What was kept, multiplied in place (``element_mul_kernel``)."""
    kept = [grad for grad in node.saved if isinstance(grad, Tensor)]
    node.saved = ()
    results: list[Tensor | None] = []
    for needed in node.needs:
        grad = kept.pop(0) if needed and kept else None
        if grad is not None:
            grad.tape.move(2 * grad.num_bytes)
        results.append(grad)
    return results
