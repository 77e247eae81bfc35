"""Mamba's loop over tokens: a state that each token decays, adds to and reads, one token after the other.

Source: transformers 5.23 ``models/mamba/modeling_mamba.py`` (``mamba_selective_scan``, its recurrent iteration). Every
step is a few of torch's operations. Here the loop is one node, whose backward goes through them in the engine's order,
latest first. Letters: B samples, I channels, T tokens, N elements of a channel's state.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from vlmplan.architecture.ops.base import Grads, only, to
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.units import DType

UNLIKE = 3
"""Tokens from the end whose backward differs: the last has no sums of gradients yet, and the one before it makes the
first. From the third on they are alike, but for the saved states, which become fewer."""


class _Shapes(NamedTuple):
    """``dtype``: of what the product with c takes and gives."""

    decay: tuple[int, ...]
    c: tuple[int, ...]
    c_dtype: DType
    dtype: DType

    @property
    def state(self) -> tuple[int, int, int]:
        batch, channels, _, size = self.decay
        return batch, channels, size

    @property
    def num_tokens(self) -> int:
        return self.decay[2]


def selective_states(decay: Tensor, added: Tensor, c: Tensor, dtype: DType) -> tuple[Tensor, Sequence[Tensor]]:
    """``state = decay[:, :, i] * state + added[:, :, i]`` and ``state.to(dtype) @ c[:, i]``, stacked over i.

    Shapes: decay and added, in float32, (B, I, T, N), c (B, T, N). Returns the result, (B, I, T), and what the loop's
    local variables hold. Saved are the state before each token, for the gradient of its decay, the one behind it as the
    product takes it, for that of c, and the casts that autocast makes of c.
    """
    tape = decay.tape
    shapes = _Shapes(decay.shape, c.shape, c.dtype, tape.autocast or dtype)
    state, count = shapes.state, shapes.num_tokens
    node = tape.node((decay, added, c), _selective_states_backward, (), shapes)
    needs_state = decay.requires_grad or added.requires_grad
    is_wide = shapes.dtype is DType.FLOAT32
    is_kept = node is not None and not tape.is_packing
    num_states = count - 1 if is_kept and (decay.requires_grad or (c.requires_grad and is_wide)) else 0
    num_casts = count - 1 if is_kept and c.requires_grad and not is_wide else 0
    num_columns = count if is_kept and needs_state and c.dtype is not shapes.dtype else 0
    first = tape.tensor(state, dtype)
    states, casts = tape.tensor((num_states, *state), DType.FLOAT32), tape.tensor((num_casts, *state), shapes.dtype)
    columns = tape.tensor((num_columns, state[0], state[2]), shapes.dtype)
    results = tape.tensor((count - 1, *state[:2]), shapes.dtype)
    # The last token: the state before it, where nothing saves that, goes with the product of its decay.
    before = None if num_states else tape.tensor(state, DType.FLOAT32)
    product = tape.tensor(state, DType.FLOAT32)
    last = tape.tensor(state, DType.FLOAT32)
    del before, product
    cast = last if is_wide else tape.tensor(state, shapes.dtype)
    result = tape.tensor(state[:2], shapes.dtype)
    tape.save(node, decay, c, columns, first, states, casts, *([cast] if c.requires_grad else []))
    del first, states, casts, columns, cast
    token_bytes = last.num_bytes + result.num_bytes
    tape.move(count * (6 * last.num_bytes + 2 * token_bytes), num_kernels=3 * count)
    tape.matmul(2 * last.numel, token_bytes, shapes.dtype, count)
    out = tape.tensor((*state[:2], count), shapes.dtype, node)
    tape.move(2 * out.num_bytes)
    return out, (last, results, result)


def _selective_states_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g, shapes = only(grads), node.meta
    tape, count, state = g.tape, shapes.num_tokens, shapes.state
    needs_decay, needs_added, needs_c = node.needs
    _decay, _c, _columns, _first, states, casts, *last_cast = node.saved
    node.saved = node.saved[:6]
    frees_with_product = needs_c and shapes.dtype is DType.FLOAT32
    grad_decay: list[Tensor] = []
    grad_added: list[Tensor] = []
    grad_c: list[Tensor] = []
    grad_state: list[Tensor] = []
    for behind in range(min(count, UNLIKE)):
        before = count - 1 - behind
        result = tape.tensor(state[:2], shapes.dtype)  # select_backward of the product's only column
        column = [tape.tensor((state[0], state[2]), shapes.dtype)] if needs_c else []
        product = [tape.tensor(state, shapes.dtype)] if needs_decay or needs_added else []
        del result
        last_cast.clear()
        if behind:
            _shrink(states if frees_with_product else casts, before)
        column = [to(column.pop(), shapes.c_dtype)] if column else []
        _add(grad_c, column, shapes.c, shapes.c_dtype)
        if not product:
            continue
        product = [to(product.pop(), DType.FLOAT32)]
        grad_state = [_sum(grad_state.pop(), product)] if grad_state else product
        del product
        _add(grad_added, [*grad_state] if needs_added else [], shapes.decay, DType.FLOAT32)
        part = [tape.tensor(state, DType.FLOAT32)] if needs_decay else []
        grad_state = [tape.tensor(state, DType.FLOAT32)] if before else []
        if not frees_with_product:
            _shrink(states, before - 1)
        _add(grad_decay, part, shapes.decay, DType.FLOAT32)
    _note_backward(g, shapes, node.needs)
    return [found[0] if found else None for found in (grad_decay, grad_added, grad_c)]


def _note_backward(g: Tensor, shapes: _Shapes, needs: Sequence[bool]) -> None:
    """Work of all tokens: most of it is zeros of the whole size and their sums, for every token anew."""
    needs_decay, needs_added, needs_c = needs
    tape, count, state = g.tape, shapes.num_tokens, prod(shapes.state)
    num_wholes = needs_decay + needs_added
    elements = DType.FLOAT32.num_bytes * (4 * num_wholes * prod(shapes.decay) + 8 * state)
    if needs_c:
        elements += 4 * prod(shapes.c) * shapes.c_dtype.num_bytes
    tape.move(count * elements, num_kernels=count * (3 * num_wholes + 3 * needs_c + 6))
    product_bytes = 2 * state * shapes.dtype.num_bytes
    for needed in (needs_c, needs_decay or needs_added):
        if needed:
            tape.matmul(2 * state, product_bytes, shapes.dtype, count)


def _shrink(saved: Operand | None, num_left: int) -> None:
    """Of the tensors that ``saved`` stands for, one for each of its first dimension, ``num_left`` stay."""
    if isinstance(saved, Tensor) and saved.numel:
        each = saved.num_bytes // saved.shape[0]
        saved.storage.shrink(min(saved.storage.num_bytes, each * max(num_left, 0)))


def _add(total: list[Tensor], part: list[Tensor], shape: tuple[int, ...], dtype: DType) -> None:
    """Add to ``total`` zeros of ``shape`` that have ``part`` for one token (``select_backward``); ``part`` goes."""
    if part:
        whole = [part[0].tape.tensor(shape, dtype)]
        part.clear()
        total[:] = [_sum(total.pop(), whole)] if total else whole


def _sum(held: Tensor, other: list[Tensor]) -> Tensor:
    """``held`` and another gradient: a new tensor where torch does not add in place (``Tape.sum_of_gradients``)."""
    if not held.tape.accumulates_in_place:
        held = held.tape.tensor(held.shape, held.dtype)
    other.clear()
    return held
