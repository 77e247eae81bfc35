"""Kimi delta attention as kernels: ``chunk_kda`` of flash-linear-attention.

Source: fla-core 0.6.0, ``fla/ops/kda/chunk.py`` (``ChunkKDAFunction``) with what it calls in ``chunk_fwd.py``,
``chunk_bwd.py``, ``chunk_intra.py`` and ``wy_fast.py``, ``ops/common/chunk_delta_h.py`` and ``ops/gla/chunk.py``.
transformers 5.23 takes it where it is installed, with a decay that is made before.

Symbols: T tokens of all samples, H heads of width K of queries, keys and values, chunks of 64. In elements of the
model's type, where nothing else is said:

- forward keeps queries and keys of unit length (2THK, and 2TH in float32), values (THK), the decay and its sums in
  float32 (2THK), beta (TH) and two matrices of chunks (128TH). While it runs there are w, u and decayed keys (3THK),
  new values (THK), the state before each chunk (THKK/64), diagonal blocks in float32 (16TH) and the copies of its
  inputs that lie beside each other in memory;
- backward makes w, u, decayed queries and keys, the new values and the states again, and gradients of all of them,
  those of queries, keys and the decay in float32, twice.
"""

from collections.abc import Sequence

from vlmplan.architecture.ops.base import Grads, only, reduced, to
from vlmplan.architecture.ops.delta_kernels import CHUNK, last_state, product_flops
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType

BLOCK = 16
"""Tokens of a diagonal block (``BC``)."""
SLICE = 32
"""Elements of a key that one kernel sums up gradients of beta over (``BK`` of ``chunk_kda_bwd_intra``), at most."""


def fla_kimi_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``chunk_kda(..., use_qk_l2norm_in_kernel=True)`` of parts of one tensor, which it copies; and ``last_state``.

    Shapes: q, k, v, decay, in float32, and the result (batch, tokens, H, K), beta (batch, tokens, H).
    """
    tape = q.tape
    shape, rows, dtype = q.shape, q.shape[:3], q.dtype
    node = tape.node((q, k, v, decay, beta), _kimi_backward, meta=(shape, dtype, beta.dtype))
    copies = [tape.tensor(shape, dtype) for _ in range(3)]
    kept: list[Tensor] = [copies[2], decay, beta]
    for _ in range(2):
        kept += [tape.tensor(shape, dtype), tape.tensor(rows, DType.FLOAT32)]
    kept += [tape.tensor(shape, DType.FLOAT32), *(tape.tensor((*rows, CHUNK), dtype) for _ in range(2))]
    blocks = tape.tensor((*rows, BLOCK), DType.FLOAT32)
    inside = [tape.tensor(shape, dtype) for _ in range(3)]
    del blocks
    inside += _states(tape, shape, dtype)
    state = last_state(tape, shape[0], shape[2], shape[3], shape[3])
    out = tape.tensor(shape, dtype, node)
    tape.move(12 * out.num_bytes)
    _count_products(tape, shape, dtype, passes=1)
    inside.clear()
    del copies
    tape.save(node, *kept)
    return out, state


def _states(tape: ForwardTape, shape: tuple[int, ...], dtype: DType) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and the new values."""
    return _matrices(tape, shape, dtype), tape.tensor(shape, dtype)


def _matrices(tape: ForwardTape, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A matrix for each head and chunk: states, or their gradients."""
    batch, num_tokens, num_heads, width = shape
    return tape.tensor((batch, -(-num_tokens // CHUNK), num_heads, width, width), dtype)


def _count_products(tape: ForwardTape, shape: tuple[int, ...], dtype: DType, *, passes: int) -> None:
    """``passes`` times the products of a forward, which are those of a gated delta rule, and their bytes."""
    batch, num_tokens, num_heads, width = shape
    pairs = batch * num_tokens * num_heads
    num_bytes = pairs * (8 * width + 2 * CHUNK + width * width // CHUNK) * dtype.num_bytes
    tape.matmul(product_flops(pairs, width, width, passes=passes), passes * num_bytes, dtype)


def _kimi_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """``chunk_kda_bwd``, and ``l2norm_bwd`` of queries and keys behind it."""
    g = only(grads)
    shape, dtype, beta_dtype = node.meta
    tape = g.tape
    found = _gradients(tape, shape, dtype)
    for index in range(2):
        found[index] = tape.tensor(shape, dtype)
    found[4] = to(found[4], beta_dtype)
    return [one if needed else None for one, needed in zip(found, node.needs, strict=True)]


def _gradients(tape: ForwardTape, shape: tuple[int, ...], dtype: DType) -> list[Tensor]:
    """The gradients of queries and keys of unit length, in float32, values, decay and beta, in float32."""
    rows, width = shape[:3], shape[3]
    _count_products(tape, shape, dtype, passes=3)
    inside = [tape.tensor(shape, dtype) for _ in range(4)]
    inside += _states(tape, shape, dtype)
    inside.append(tape.tensor((*rows, CHUNK), DType.FLOAT32))
    local = tape.tensor(shape, dtype)
    inside.append(_matrices(tape, shape, dtype))
    grad_u = tape.tensor(shape, dtype)
    del local
    wide = [tape.tensor(shape, DType.FLOAT32) for _ in range(2)]
    grad_v = tape.tensor(shape, dtype)
    wide.append(tape.tensor(shape, DType.FLOAT32))
    grad_beta = tape.tensor(rows, DType.FLOAT32)
    inside.append(tape.tensor((*rows, CHUNK), DType.FLOAT32))
    del grad_u
    again = [tape.tensor(shape, DType.FLOAT32) for _ in range(2)]
    slices = tape.tensor((-(-width // SLICE), *rows), DType.FLOAT32)
    again.append(tape.tensor(shape, DType.FLOAT32))
    grad_beta = reduced(slices, rows, DType.FLOAT32)
    del slices
    wide.clear()
    grad_q, grad_k, grad_sums = again
    again.clear()
    grad_decay = tape.tensor(shape, DType.FLOAT32)
    tape.move(12 * grad_decay.num_bytes)
    del grad_sums
    return [grad_q, grad_k, grad_v, grad_decay, grad_beta]
