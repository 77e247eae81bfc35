"""Operations that pick rows of a tensor and put rows into it: ``x[indices]`` and ``x[mask] = rows``.

Sources: torch 2.13 ``tools/autograd/derivatives.yaml`` (``index.Tensor``, ``index_put_``) and ``index_backward`` in
``torch/csrc/autograd/FunctionsManual.cpp``. A boolean mask selects as many rows as it has true elements; the index
lists that CUDA makes of it, 8 bytes a row and dimension, live for one kernel only and are left out.
"""

from collections.abc import Sequence

from vlmplan.architecture.ops import Grads, only, reduced
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def take_rows(x: Operand, indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[indices]`` of ``shape``: saves the indices (or the mask); its gradient has x's whole size."""
    tape = indices.tape
    node = tape.node((x,), _take_rows_backward, (indices.detached(),), (x.shape, x.dtype, isinstance(x, Parameter)))
    out = tape.tensor(shape, x.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _take_rows_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Zeros, and the rows added to them: in place, except under a dispatch mode (``areAnyTensorSubclassLike``)."""
    g = only(grads)
    shape, dtype, is_weight = node.meta
    tape = g.tape
    zeros = tape.gradient if is_weight else tape.tensor
    out = zeros(shape, dtype)
    tape.move(out.num_bytes + 3 * g.num_bytes)
    return (out if tape.accumulates_in_place else zeros(shape, dtype),)


def sum_rows(table: Operand, ids: Tensor, weights: Tensor, num_rows: int) -> Tensor:
    """``F.embedding_bag`` that sums rows of ``table`` (..., width), with a weight for each of the ids; the table's
    gradient is dense.

    Saves the ids, their weights, where each of the ``num_rows`` begins, how long it is, and in which each id is.
    """
    tape, width = ids.tape, table.shape[-1]
    node = tape.node(
        (table,),
        _sum_rows_backward,
        (ids.detached(), weights.detached()),
        (table.shape, table.dtype, isinstance(table, Parameter)),
    )
    out = tape.tensor((num_rows, width), table.dtype, node)
    for count in (num_rows, num_rows, ids.numel):
        tape.save(node, tape.tensor((count,), DType.INT64))
    tape.move(out.num_bytes + ids.numel * width * table.dtype.num_bytes)
    return out


def _sum_rows_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype, is_weight = node.meta
    out = (g.tape.gradient if is_weight else g.tape.tensor)(shape, dtype)
    g.tape.move(out.num_bytes + g.num_bytes)
    return (out,)


def put_rows(x: Tensor, mask: Tensor, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[mask] = rows`` in place, where ``mask`` selects rows of ``shape`` and ``rows`` may be broadcast to it.

    Saves the mask. The result is x's storage; the caller must release ``x`` as torch's in-place operation does.
    """
    tape = x.tape
    node = tape.node((x, rows), _put_rows_backward, (mask.detached(),), (shape, rows.shape))
    tape.move(2 * rows.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _put_rows_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """x gets g with zeros in the place of the rows: a copy of g. The rows get theirs out of g."""
    g = only(grads)
    shape, rows_shape = node.meta
    tape = g.tape
    grad_x = grad_rows = None
    if node.needs[0]:
        zeros = tape.tensor(rows_shape, g.dtype)
        grad_x = tape.tensor(g.shape, g.dtype)
        tape.move(2 * g.num_bytes + zeros.num_bytes)
        del zeros
    if node.needs[1]:
        grad_rows = tape.tensor(shape, g.dtype)
        tape.move(2 * grad_rows.num_bytes)
        if rows_shape != shape:
            grad_rows = reduced(grad_rows, rows_shape, g.dtype)
    return (grad_x, grad_rows)


def take_elements(x: Tensor, mask: Tensor, count: int) -> Tensor:
    """``x[mask]`` of a mask as large as x, which lets ``count`` elements through: (count,). Of each of these there are
    numbers that tell its place while it is read (``nonzero`` of the mask, in ``TensorAdvancedIndexing.cpp``)."""
    with mask.tape.charged_to(Kind.TEMPORARY):
        places = mask.tape.tensor((len(x.shape), count), DType.INT64)
    out = take_rows(x, mask, (count,))
    del places
    return out


def put_elements(x: Tensor, mask: Tensor, elements: Tensor) -> Tensor:
    """``x[mask] = elements`` in place, as ``put_rows``; the gradient of ``elements`` is read out of g as
    ``take_elements`` reads."""
    tape = x.tape
    node = tape.node((x, elements), _put_elements_backward, (mask.detached(),), elements.shape)
    tape.move(2 * elements.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _put_elements_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    grad_x = grad_elements = None
    if node.needs[0]:
        grad_x = tape.tensor(g.shape, g.dtype)
        tape.move(2 * g.num_bytes)
    if node.needs[1]:
        with tape.charged_to(Kind.TEMPORARY):
            places = tape.tensor((len(g.shape), *node.meta), DType.INT64)
        grad_elements = tape.tensor(node.meta, g.dtype)
        tape.move(2 * grad_elements.num_bytes)
        del places
    return (grad_x, grad_elements)


def add_rows(sums: Tensor, indices: Tensor, rows: Tensor, *, is_in_place: bool = False) -> Tensor:
    """``sums.index_add(0, indices, rows)``: saves the indices and, for their shape alone, the rows (``index_add`` in
    ``derivatives.yaml``); their gradient is picked out of g. The caller must release ``sums``."""
    tape = sums.tape
    saved = (indices.detached(), rows.detached()) if rows.requires_grad else ()
    node = tape.node((sums, rows), _add_rows_backward, saved, (rows.shape, rows.dtype))
    tape.move(2 * sums.num_bytes + 2 * rows.num_bytes)
    if is_in_place:
        return Tensor(sums.storage, sums.shape, sums.dtype, node)
    return tape.tensor(sums.shape, sums.dtype, node)


def _add_rows_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = None
    if node.needs[1]:
        out = g.tape.tensor(*node.meta)
        g.tape.move(2 * out.num_bytes)
    return (g if node.needs[0] else None, out)


def sample_rows(table: Operand, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.grid_sample(table, positions)``: rows of ``shape`` interpolated from a grid; saves both.

    Its gradient has the size of the grid. The kernel makes room for that of the positions too, wanted or not.
    """
    tape = positions.tape
    kept_table = table if isinstance(table, Parameter) else table.detached()
    saved = (kept_table, positions.detached())
    node = tape.node((table,), _sample_rows_backward, saved, (table.shape, table.dtype, positions.shape))
    out = tape.tensor(shape, table.dtype, node)
    tape.move(table.numel * table.dtype.num_bytes + out.num_bytes)
    return out


def _sample_rows_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype, positions_shape = node.meta
    tape = g.tape
    out = tape.tensor(shape, dtype)
    grad_positions = tape.tensor(positions_shape, dtype)
    tape.move(g.num_bytes + 2 * out.num_bytes)
    del grad_positions
    return (out,)
