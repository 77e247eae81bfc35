"""The scan of Mamba-2 in chunks of tokens: scores within a chunk, and a state that each chunk hands to those behind it.

Source: transformers 5.23 ``models/mamba2/modeling_mamba2.py`` (``mamba2_chunk_scan``, ``segment_sum``), of which Bamba,
Falcon-H1, Granite 4.0, Nemotron-H and Zamba2 have copies. It is what runs without mamba-ssm: all in float32, with the
scores of all pairs of tokens of a chunk for every head. Dimensions have the letters of its ``einsum``: b samples, c
chunks, l and s tokens of a chunk, h heads, p elements of a head, n elements of a state, z the chunks and one before
them; y are the same, which it calls c too.
"""

from collections.abc import Mapping
from typing import NamedTuple

from vlmplan.architecture import ops
from vlmplan.architecture.ops import chunks
from vlmplan.architecture.ops.contractions import SEEN_IN_PART, Groups, einsum, is_view, with_copied_gradient
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

VALUES = "bhpcl"
"""How values lie in memory: the convolution's result has its tokens side by side, and what is made of it after it."""
STATES = f"bh{SEEN_IN_PART}cpn"
"""How states lie in memory that are a slice of those of all chunks and one more."""


class ScanInputs(NamedTuple):
    """What a scan reads, in float32 and in whole chunks, but for the steps ``dt`` and what goes past it."""

    dt: Tensor
    hidden_states: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    residual: Tensor


def chunk_scan(
    hidden_states: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Parameter, dt_bias: Parameter, size: int
) -> tuple[Tensor, Tensor | None]:
    """``mamba2_chunk_scan`` in chunks of ``size``, and where text is generated its last state; its local names are
    kept: each keeps a tensor alive to the end.

    Shapes: hidden_states and the result, in float32, (batch, tokens, heads, width), dt (batch, tokens, heads), a, in
    float32, (heads), b and c (batch, tokens, groups, state), d and dt_bias (heads): A, B, C and D of a state space.
    """
    batch, num_tokens, num_heads, width = hidden_states.shape
    num_chunks, state_size = -(-num_tokens // size), b.shape[-1]
    sizes = {"b": batch, "c": num_chunks, "l": size, "s": size, "h": num_heads, "p": width, "n": state_size}
    sizes |= dict.fromkeys("yz", num_chunks + 1)
    rows, states_shape = (batch, num_chunks, size, num_heads), (batch, num_chunks + 1, num_heads, width, state_size)
    inputs = _inputs(hidden_states, dt, a, b, c, d, dt_bias, sizes)
    cum_decay = chunks.cumulative_sum(inputs.a)
    decays = chunks.exponential(segment_sum(inputs.a))
    groups = Groups("bch", "l", "n", "s")
    scores = einsum(inputs.c, inputs.b, groups, sizes, orders=("bclhn", "bcshn"), gradient_order="bchls")
    decayed = ops.mul(scores, decays.view(*scores.shape))
    groups = Groups("bch", "l", "s", "p")
    y_diag = einsum(decayed, inputs.hidden_states, groups, sizes, orders=("bchls", "bhpcs"), gradient_order="bclhp")
    decay_states = chunks.remaining_decay(cum_decay)
    b_decay = ops.mul(inputs.b, decay_states.view(*rows, 1))
    groups = Groups("bch", "p", "l", "n")
    states = einsum(inputs.hidden_states, b_decay, groups, sizes, orders=(VALUES, "bclhn"), gradient_order=STATES)
    previous_states = states.tape.tensor((batch, 1, *states_shape[2:]), states.dtype)
    states = ops.concatenate([previous_states, states.view(batch, num_chunks, *states_shape[2:])], states_shape)
    decay_chunk = _chunk_decays(cum_decay)
    groups = Groups("bh", "y", "z", "pn")
    new_states = einsum(decay_chunk, states, groups, sizes, orders=("bhyz", "bzhpn"), gradient_order="byhpn")
    states = ops.part(new_states, batch, num_chunks, *states_shape[2:])
    state_decay_out = chunks.exponential(cum_decay)
    groups = Groups("bch", "l", "n", "p")
    c_times_states = einsum(inputs.c, states, groups, sizes, orders=("bclhn", STATES), gradient_order="bclhp")
    y_off = ops.mul(c_times_states.view(*rows, width), state_decay_out.view(*rows, 1))
    output = ops.copy(ops.add(y_diag.view(*rows, width), y_off))
    output = ops.add(output.view(batch, num_chunks * size, num_heads, width), inputs.residual)
    output = ops.part(output, batch, num_tokens, num_heads, width) if num_tokens % size else output
    is_cached = states.tape.key_cache is not None
    return output, ops.part(new_states, batch, *states_shape[2:]) if is_cached else None


def segment_sum(x: Tensor) -> Tensor:
    """``segment_sum``: of x (..., t) the sum of what lies between each token and each behind it, (..., t, t)."""
    size = x.shape[-1]
    mask, strict_mask = (x.tape.tensor((size, size), DType.BOOL) for _ in range(2))
    x = chunks.masked_fill(ops.expand(x, *x.shape, size), strict_mask)
    sums = chunks.cumulative_sum(x)
    return chunks.masked_fill(sums, mask)


def _inputs(
    hidden_states: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Parameter,
    dt_bias: Parameter,
    sizes: Mapping[str, int],
) -> ScanInputs:
    """Steps, values, decays, and b and c of each head."""
    tape, (batch, num_tokens, num_heads, width) = hidden_states.tape, hidden_states.shape
    padded, state = (batch, sizes["c"] * sizes["l"], num_heads), (batch, num_tokens, num_heads, sizes["n"])
    dt = ops.add(dt, ops.cast_weight(dt_bias, dt.dtype, tape))
    dt = ops.unary(dt if tape.autocast is None else ops.to(dt, DType.FLOAT32), saves_input=True)
    dt = ops.clamp(dt, num_limits=2)
    hidden_states = ops.to(hidden_states, DType.FLOAT32)
    b = chunks.repeat_heads(ops.to(b, DType.FLOAT32), *state)
    c = chunks.repeat_heads(ops.to(c, DType.FLOAT32), *state)
    residual = _skipped(d, chunks.pad(hidden_states, *padded, width))
    hidden_states = ops.mul(hidden_states, ops.to(dt, DType.FLOAT32).view(*dt.shape, 1))
    a = chunks.outer(a, ops.to(dt, DType.FLOAT32), dt.shape)
    hidden_states, a, b, c = (
        _in_chunks(hidden_states, "p", sizes, gradient_order="bchpl"),
        chunks.pad(a, *padded).view(batch, num_heads, sizes["c"], sizes["l"]),
        _in_chunks(b, "n", sizes, gradient_order="bchln"),
        _in_chunks(c, "n", sizes, gradient_order="bchln"),
    )
    return ScanInputs(dt, hidden_states, a, b, c, residual)


def _skipped(d: Parameter, x: Tensor) -> Tensor:
    """``D[..., None] * x``, which goes past the scan."""
    return chunks.outer(ops.expand_weight(d, (*d.shape, 1), x.tape), x, x.shape)


def _in_chunks(x: Tensor, last: str, sizes: Mapping[str, int], *, gradient_order: str) -> Tensor:
    """``reshape_into_chunks`` of x (batch, tokens, heads, ``last``), whose gradient lies in memory in another order."""
    shape = tuple(sizes[name] for name in f"bclh{last}")
    x = chunks.pad(x, shape[0], shape[1] * shape[2], *shape[3:])
    is_whole = is_view(gradient_order, sizes, ("b", "cl", "h", last))
    return (x if is_whole else with_copied_gradient(x)).view(*shape)


def _chunk_decays(cum_decay: Tensor) -> Tensor:
    """The decay from each chunk, and what was before the first, to each behind it, and what comes after the last."""
    batch, num_heads, num_chunks, _ = cum_decay.shape
    last = ops.part(cum_decay, batch, num_heads, num_chunks)
    return chunks.exponential(segment_sum(chunks.pad(last, batch, num_heads, num_chunks + 1)))
