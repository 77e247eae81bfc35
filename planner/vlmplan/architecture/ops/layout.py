"""Embedding lookups, and what only moves elements: slices, concatenations, rotary positions, resampling."""

from collections.abc import Sequence
from functools import reduce

from vlmplan.architecture.ops.base import (
    Grads,
    cast_weight,
    only,
    pass_through,
    promoted,
    reduced,
    rewritten_backward,
    summed_backward,
    to,
)
from vlmplan.architecture.ops.elementwise import add, mul, scale
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Operand, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

MOST_TOKENS_UNSORTED = 3072
"""Up to so many tokens CUDA adds rows to the gradient without sorting them (``embedding_dense_backward_cuda`` in
``aten/src/ATen/native/cuda/Embedding.cu``)."""
ROWS_IN_PIECE = 10
"""Rows that one thread adds up (``NROWS_PER_THREAD`` in ``EmbeddingBackwardKernel.cu``)."""


def embedding(ids: Tensor, weight: Operand) -> Tensor:
    """``F.embedding``: saves the ids; the weight's gradient is dense, vocabulary x width."""
    tape = ids.tape
    node = tape.node((weight,), _embedding_backward, (ids.detached(),), (weight.shape, weight.dtype))
    out = tape.tensor((*ids.shape, weight.shape[1]), weight.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _embedding_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """CUDA adds up rows of equal ids in float32, in pieces, before it writes any into the gradient."""
    g = only(grads)
    shape, dtype = node.meta
    tape = g.tape
    out = tape.gradient(shape, dtype)
    num_tokens = g.numel // shape[1]
    if num_tokens > MOST_TOKENS_UNSORTED:
        with tape.charged_to(Kind.TEMPORARY):
            pieces = tape.tensor((most_pieces(num_tokens, shape[0]), shape[1]), DType.FLOAT32)
            indices = tape.tensor((sorted_indices(num_tokens, shape[0]),), DType.INT64)
        tape.move(g.num_bytes + pieces.num_bytes + indices.num_bytes)
    tape.move(out.num_bytes + g.num_bytes)
    return (out,)


def most_pieces(num_tokens: int, num_embeddings: int) -> int:
    """Sums that the gradient of an embedding makes room for: one for every id, and one more for every ``ROWS_IN_PIECE``
    tokens, as many as there may be. Source: ``max_partial_segment`` in ``EmbeddingBackwardKernel.cu``."""
    return num_tokens // ROWS_IN_PIECE + min(num_tokens, num_embeddings)


def sorted_indices(num_tokens: int, num_embeddings: int) -> int:
    """Numbers of 8 bytes beside them: the sorted ids, their places, and where each id begins; pieces of each id and
    where those begin, and where each piece does."""
    return 3 * num_tokens + 2 * min(num_tokens, num_embeddings) + most_pieces(num_tokens, num_embeddings)


def split(x: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """``split``, ``chunk``, ``unbind`` into views of ``shapes``: saves nothing; backward writes one whole gradient."""
    tape = x.tape
    node = tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    parts: list[Tensor] = []
    for index, shape in enumerate(shapes):
        part = Tensor(x.storage, shape, x.dtype, node)
        part.output_index = index
        parts.append(part)
    return parts


def _split_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    shape, dtype = node.meta
    tape = next(g for g in grads if g is not None).tape
    out = tape.tensor(shape, dtype)
    tape.move(2 * out.num_bytes)
    return (out,)


class JoinedTensor(Tensor):
    """What ``torch.cat`` made: its elements lie in the order of its dimensions, whatever was transposed before."""

    __slots__ = ()


def concatenate(parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat`` or ``stack``, in the widest type of the parts: saves nothing; the gradients are views of g."""
    tape = parts[0].tape
    node = tape.node(tuple(parts), _concatenate_backward, meta=[(part.shape, part.dtype) for part in parts])
    out = tape.tensor(shape, reduce(promoted, (part.dtype for part in parts)), node)
    tape.move(2 * out.num_bytes)
    return JoinedTensor(out.storage, shape, out.dtype, node)


def _concatenate_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    return [
        to(Tensor(g.storage, shape, g.dtype), dtype) if needed else None
        for (shape, dtype), needed in zip(node.meta, node.needs, strict=True)
    ]


def masked_scatter(target: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``target.masked_scatter(mask, source)``: saves the mask; how image features enter the token embeddings.

    CUDA writes the mask out for every element, and counts how many it lets through before each. Source:
    ``masked_scatter__cuda`` and ``launch_masked_scatter_kernel`` in ``aten/src/ATen/native/cuda``.
    """
    tape = target.tape
    node = tape.node((target, source), _masked_scatter_backward, (mask.detached(),), (target.shape, source.shape))
    out = tape.tensor(target.shape, target.dtype, node)
    with tape.charged_to(Kind.TEMPORARY):
        written_out, counts = tape.tensor(target.shape, DType.BOOL), tape.tensor(target.shape, DType.INT64)
    tape.move(written_out.num_bytes + counts.num_bytes)
    tape.move(2 * target.num_bytes + source.num_bytes + counts.num_bytes)
    return out


def _masked_scatter_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    target_shape, source_shape = node.meta
    tape = g.tape
    grad_target = tape.tensor(target_shape, g.dtype) if node.needs[0] else None
    grad_source = _selected(g, source_shape) if node.needs[1] else None
    tape.move(2 * g.num_bytes)
    return (grad_target, grad_source)


def _selected(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``masked_select``: CUDA writes the mask out for every element, and finds the places of those it lets through, a
    number for each dimension. Source: ``masked_select_out_cuda_impl`` in ``IndexKernel.cpp``, ``Nonzero.cu``."""
    tape = g.tape
    with tape.charged_to(Kind.TEMPORARY):
        written_out = tape.tensor(g.shape, DType.BOOL)
        places = tape.tensor((len(g.shape), *shape), DType.INT64)
    tape.move(written_out.num_bytes + places.num_bytes)
    del written_out
    out = tape.tensor(shape, g.dtype)
    tape.move(places.num_bytes)
    return out


def index_put(target: Tensor, positions: Tensor, source: Tensor) -> Tensor:
    """``target.index_put(positions, source)``: saves the positions; another way for features into token embeddings.

    ``positions`` (features, dimensions) are ``torch.nonzero``'s. Backward puts zeros into a copy of g, and picks what
    was there of it.
    """
    tape = target.tape
    node = tape.node((target, source), _index_put_backward, (positions.detached(),), source.shape)
    out = tape.tensor(target.shape, target.dtype, node)
    tape.move(2 * target.num_bytes + 2 * source.num_bytes)
    return out


def _index_put_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    grad_target = grad_source = None
    if node.needs[0]:
        zeros = tape.tensor(node.meta, g.dtype)
        grad_target = tape.tensor(g.shape, g.dtype)
        tape.move(2 * g.num_bytes + 2 * zeros.num_bytes, num_kernels=2)
        del zeros
    if node.needs[1]:
        grad_source = tape.tensor(node.meta, g.dtype)
        tape.move(2 * grad_source.num_bytes)
    return (grad_target, grad_source)


def slice_last(x: Tensor, width: int) -> Tensor:
    """``x[..., a:b]`` with ``b - a == width``: a view; its gradient is written into a tensor of x's whole size."""
    tape = x.tape
    node = tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, (*x.shape[:-1], width), x.dtype, node)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + rotate_half(x) * sin``: rotary positions; saves cos and sin only, which all layers share."""
    half = x.shape[-1] // 2
    return add(mul(x, cos), mul(rotate_half(x, half), sin))


def rotate_half(x: Tensor, half: int) -> Tensor:
    """``cat((-x[..., half:], x[..., :half]), dim=-1)``, or of every other element with the one behind it."""
    first, second = slice_last(x, half), slice_last(x, half)
    return concatenate([scale(second), first], x.shape)


def shift_weight(weight: Parameter, dtype: DType, tape: ForwardTape) -> Tensor:
    """``1 + weight.to(dtype)``: a small tensor of the weight's shape."""
    cast = cast_weight(weight, dtype, tape)
    node = tape.node((cast,), pass_through)
    return tape.tensor(weight.shape, dtype, node)


def expand_weight(weight: Parameter, shape: tuple[int, ...], tape: ForwardTape) -> Tensor:
    """``weight.expand(shape)``: a view of a learned vector or table; its gradient is summed over the copies."""
    node = tape.node((weight,), _expand_weight_backward, meta=(weight.shape, weight.dtype))
    return Tensor(tape.tensor((0,), weight.dtype).storage, shape, weight.dtype, node)


def _expand_weight_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype = node.meta
    return (to(reduced(g, shape, g.dtype), dtype),)


def expand(x: Tensor, *shape: int) -> Tensor:
    """``x.expand(shape)``: a view; its gradient is summed over the copies."""
    node = x.tape.node((x,), summed_backward, meta=x.shape)
    return Tensor(x.storage, shape, x.dtype, node)


def part(x: Tensor, *shape: int) -> Tensor:
    """A slice or selection of x, ``x[:, 1:]`` or ``x[0]``: a view; its gradient is written into one of x's size."""
    node = x.tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, shape, x.dtype, node)


def in_rows(x: Tensor, *shape: int) -> Tensor:
    """A projection, or a view of one, seen by head (samples, heads, tokens, width): a view whose gradient comes head
    after head, so that ``ViewBackward0`` copies it into rows, unless both orders are one."""
    if 1 in shape[1:3]:
        return x.view(*shape)
    node = x.tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, shape, x.dtype, node)


def resample(x: Tensor, *shape: int, saves_input: bool = False) -> Tensor:
    """``interpolate``, ``unfold``, or a copy into a layout from which the gradient has to be copied back.

    Result and gradient are new tensors. Saves nothing, or the input (``avg_pool2d``).
    """
    tape = x.tape
    node = tape.node((x,), rewritten_backward, (x.detached(),) if saves_input and x.requires_grad else (), x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def interpolate(x: Tensor, *shape: int) -> Tensor:
    """``interpolate``, under autocast in float32 (``aten/src/ATen/autocast_mode.h``, AT_FORALL_FP32)."""
    return resample(x if x.tape.autocast is None else to(x, DType.FLOAT32), *shape)
