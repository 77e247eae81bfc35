"""Gated delta nets as kernels: ``chunk_gated_delta_rule`` of flash-linear-attention and ``causal_conv1d_fn``.

Sources: fla-core 0.6.0, ``fla/ops/gated_delta_rule/chunk.py`` (``ChunkGatedDeltaRuleFunction``) with what it calls in
``chunk_fwd.py``, ``wy_fast.py``, ``ops/common/chunk_delta_h.py`` and ``chunk_o.py``, and ``modules/norm/l2norm.py``;
causal-conv1d 1.6, ``causal_conv1d_interface.py`` (``CausalConv1dFn``) and ``csrc/causal_conv1d.cpp``. transformers 5.23
takes both where they are installed (``use_kernel_func_from_hub_with_fallback`` in ``integrations/hub_kernels.py``).

Symbols: T tokens of all samples, H heads of queries and keys of width K, G heads of values of width V, chunks of 64. In
elements of the model's type, where nothing else is said:

- forward keeps queries and keys of unit length (2THK, and 2TH in float32), values (TGV), sums of the decay in float32
  (TG), beta (TG) and the solved matrices of chunks (64TG). While it runs there are w (TGK), u and new values (2TGV),
  the state before each chunk (TGKV/64) and the copies of its inputs that lie beside each other in memory;
- backward makes w, u, the new values and the states again, and gradients of all of them.
"""

from collections.abc import Sequence

from vlmplan.architecture.ops.base import Grads, only, reduced
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType

CHUNK = 64
"""``chunk_size``, which transformers does not set."""


def causal_convolution(x: Tensor, weight: Parameter, *, copies_gradient: bool = False) -> Tensor:
    """``causal_conv1d_fn(x, weight, activation="silu")``: saves x and the weight; the activation is made again.

    Shapes: x and the result (batch, channels, tokens), weight (channels, 1, taps). ``copies_gradient``: that of the
    result has its channels not next to each other.
    """
    tape = x.tape
    meta = (x.shape, x.dtype, copies_gradient)
    node = tape.node((x, weight), _convolution_backward, (x.detached(), weight), meta, weight)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _convolution_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The gradient of the weight is summed up in float32."""
    g = only(grads)
    x, weight = node.saved
    assert isinstance(weight, Parameter)
    shape, dtype, copies_gradient = node.meta
    rows = g.tape.tensor(g.shape, g.dtype) if copies_gradient else g
    if copies_gradient:
        grads.clear()
    grad_x = g.tape.tensor(shape, dtype)
    g.tape.move(3 * g.num_bytes)
    wide = g.tape.tensor(weight.shape, DType.FLOAT32)
    del x
    grad_weight = g.tape.gradient(weight.shape, weight.dtype) if node.needs[1] else None
    del wide, rows
    return (grad_x if node.needs[0] else None, grad_weight)


def fla_delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """``chunk_gated_delta_rule(..., use_qk_l2norm_in_kernel=True)`` of parts of one tensor, which it copies; and
    ``last_state``.

    Shapes: q, k (batch, tokens, H, K), v and the result (batch, tokens, G, V), decay, in float32, and beta (batch,
    tokens, G).
    """
    tape = q.tape
    rows, (_, num_tokens, num_heads, key_dim), value_dim = v.shape[:3], k.shape, v.shape[-1]
    meta = (q.shape, v.shape, q.dtype, beta.dtype)
    node = tape.node((q, k, v, decay, beta), _delta_backward, meta=meta)
    copies = [tape.tensor(x.shape, x.dtype) for x in (q, k, v)]
    kept: list[Tensor] = [beta, copies[2]]
    for x in (q, k):
        kept += [tape.tensor(x.shape, x.dtype), tape.tensor(x.shape[:-1], DType.FLOAT32)]
    kept += [tape.tensor(rows, DType.FLOAT32), tape.tensor((*rows, CHUNK), q.dtype)]
    inside = [tape.tensor((*rows, key_dim), q.dtype), *_states(tape, k.shape, v.shape, q.dtype)]
    state = last_state(tape, rows[0], rows[2], key_dim, value_dim)
    out = tape.tensor(v.shape, q.dtype, node)
    tape.move(sum([4 * x.num_bytes for x in (q, k, v)]))
    _count_products(tape, rows, num_tokens, key_dim, value_dim, q.dtype, passes=1)
    inside.clear()
    del num_heads, copies
    tape.save(node, *kept)
    return out, state


def last_state(tape: ForwardTape, *shape: int) -> Tensor:
    """``final_state`` of ``chunk_gated_delta_rule_fwd_h``, of no elements where nothing asks for it."""
    return tape.tensor((0,) if tape.key_cache is None else shape, DType.FLOAT32)


def _states(
    tape: ForwardTape, keys: tuple[int, ...], values: tuple[int, ...], dtype: DType
) -> tuple[Tensor, Tensor, Tensor]:
    """u, the state before each chunk, and the new values."""
    batch, num_tokens, _, key_dim = keys
    _, _, num_heads, value_dim = values
    u = tape.tensor(values, dtype)
    states = tape.tensor((batch, -(-num_tokens // CHUNK), num_heads, key_dim, value_dim), dtype)
    return u, states, tape.tensor(values, dtype)


def product_flops(num_pairs: int, key_dim: int, value_dim: int, *, passes: int) -> int:
    """Floating point operations of ``passes`` forwards over pairs of a token and a head: with the other tokens of its
    chunk (keys with keys, queries with keys, and the solved matrix with keys and values, scores with values) and with
    the state (read twice, written once). Backward makes the first half again and two gradients of each product: 3.

    >>> product_flops(1, 128, 128, passes=1)
    180224
    """
    return 2 * passes * num_pairs * (CHUNK * (3 * key_dim + 2 * value_dim) + 3 * key_dim * value_dim)


def _count_products(
    tape: ForwardTape,
    rows: tuple[int, ...],
    num_tokens: int,
    key_dim: int,
    value_dim: int,
    dtype: DType,
    *,
    passes: int,
) -> None:
    """``passes`` times the products of a forward, and the bytes that they read and write."""
    batch, _, num_heads = rows
    tokens = batch * num_tokens * num_heads
    num_bytes = tokens * (4 * key_dim + 4 * value_dim + CHUNK + key_dim * value_dim // CHUNK) * dtype.num_bytes
    tape.matmul(product_flops(tokens, key_dim, value_dim, passes=passes), passes * num_bytes, dtype)


def _delta_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """``chunk_gated_delta_rule_bwd``, and ``l2norm_bwd`` of queries and keys behind it."""
    g = only(grads)
    keys, values, dtype, beta_dtype = node.meta
    tape = g.tape
    found = _gradients(tape, keys, values, dtype, beta_dtype)
    grad_q = tape.tensor(keys, dtype)
    del found[0]
    grad_k = tape.tensor(keys, dtype)
    del found[0]
    results = [grad_q, grad_k, *found]
    return [one if needed else None for one, needed in zip(results, node.needs, strict=True)]


def _gradients(
    tape: ForwardTape, keys: tuple[int, ...], values: tuple[int, ...], dtype: DType, beta_dtype: DType
) -> list[Tensor]:
    """The gradients of queries and keys of unit length, values, decay and beta: what forward made, again, then
    gradients of the states and of what they are made of. That of keys comes twice; those of heads that share queries
    and keys are summed."""
    batch, num_tokens, _, key_dim = keys
    rows, value_dim = values[:3], values[-1]
    wide_keys = (*rows, key_dim)
    _count_products(tape, rows, num_tokens, key_dim, value_dim, dtype, passes=3)
    inside = [tape.tensor(wide_keys, dtype), *_states(tape, keys, values, dtype)]
    local = tape.tensor(values, dtype)
    inside.append(tape.tensor((batch, -(-num_tokens // CHUNK), rows[2], key_dim, value_dim), dtype))
    grad_u = tape.tensor(values, dtype)
    del local
    grad_q, grad_k = tape.tensor(wide_keys, dtype), tape.tensor(wide_keys, dtype)
    parts = tape.tensor(rows, DType.FLOAT32)
    inside.append(tape.tensor(wide_keys, dtype))
    grad_q = _of_heads(grad_q, keys)
    grad_k = _of_heads(grad_k, keys)
    grad_decay = reduced(parts, rows, DType.FLOAT32)
    del parts
    again = tape.tensor(wide_keys, dtype)
    grad_v = tape.tensor(values, dtype)
    inside.append(tape.tensor(rows, DType.FLOAT32))
    grad_beta = tape.tensor(rows, beta_dtype)
    again = _of_heads(again, keys)
    del grad_u
    grad_decay = tape.tensor(rows, DType.FLOAT32)
    tape.move(sum([one.num_bytes for one in inside]))
    del again
    return [grad_q, grad_k, grad_v, grad_decay, grad_beta]


def _of_heads(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient g of a head of values each, summed over those that share a head of ``shape``."""
    return g if g.shape == shape else reduced(g, shape, g.dtype)
