"""Liger's layer kernels: one operation where transformers has several, and gradients written over what is not needed.

Source: liger-kernel 0.8.5, ``ops/rms_norm.py``, ``ops/swiglu.py`` and ``ops/rope.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture.ops.base import Grads, only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType

NUM_MULTIPROCESSORS = 132
"""Rows of float32 in which the gradient of a norm's weight is summed up: an H100's (*assumed*; an A100 has 108 and an
RTX 4090 128, a difference of less than half a mebibyte for 4,096 columns)."""


def liger_rms_norm(x: Tensor, weight: Parameter, *, in_place: bool) -> Tensor:
    """``LigerRMSNormFunction``: saves x and a float32 factor per row. Its gradient is written over that of the result
    where ``in_place``."""
    tape = x.tape
    node = tape.node((x, weight), _rms_norm_backward, (x.detached(),), (weight.shape, weight.dtype, in_place))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, tape.tensor((x.numel // x.shape[-1],), DType.FLOAT32))
    tape.move(2 * x.num_bytes)
    return out


def _rms_norm_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype, in_place = node.meta
    tape = g.tape
    parts = tape.tensor((NUM_MULTIPROCESSORS, *shape), DType.FLOAT32) if node.needs[1] else None
    grad_x = g if in_place else tape.tensor(g.shape, g.dtype)
    tape.move(3 * g.num_bytes)
    grad_weight = None
    if parts is not None:
        total = tape.tensor(shape, DType.FLOAT32)
        grad_weight = total if dtype is DType.FLOAT32 else tape.tensor(shape, dtype)
    return (grad_x if node.needs[0] else None, grad_weight)


def liger_silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``LigerSiLUMulFunction``, ``silu(gate) * up``: saves both, over which their gradients are written."""
    tape = gate.tape
    node = tape.node((gate, up), _silu_mul_backward, (gate.detached(), up.detached()))
    out = tape.tensor(gate.shape, gate.dtype, node)
    tape.move(3 * out.num_bytes)
    return out


def _silu_mul_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    gate, up = node.saved
    assert isinstance(gate, Tensor)
    assert isinstance(up, Tensor)
    node.saved = ()
    g.tape.move(5 * g.num_bytes)
    return tuple(one.detached() if needed else None for one, needed in zip((gate, up), node.needs, strict=True))


def liger_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``LigerRopeFunction`` of queries or keys: in place, forward and backward; saves cos and sin, which all layers
    share."""
    node = x.tape.node((x,), _rotate_backward, (cos.detached(), sin.detached()))
    x.tape.move(2 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _rotate_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    g.tape.move(2 * g.num_bytes)
    return (g,)
