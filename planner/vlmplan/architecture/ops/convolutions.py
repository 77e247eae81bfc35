"""Convolutions of any number of dimensions."""

from math import prod

from vlmplan.architecture.ops.base import Grads, cast_weight, detached, only, reduced, to
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor


def convolution(x: Tensor, weight: Operand, bias: Operand | None, shape: tuple[int, ...]) -> Tensor:
    """Any convolution: saves x and its weight, whichever gradient is needed (``convolution`` in derivatives.yaml).

    ``2 * result * weight / out_channels`` operations, and the same for each gradient. Autocast casts all three first.
    What cuDNN's algorithms take while they run is left out.
    """
    tape, given = x.tape, x  # whoever calls torch holds what is given until the result is there
    if tape.autocast is not None:
        bias = None if bias is None else cast_weight(bias, tape.autocast, tape)
        weight = cast_weight(weight, tape.autocast, tape)
        x = to(given, tape.autocast)
    flops = 2 * prod(shape) * weight.numel // weight.shape[0]
    meta = (x.shape, x.dtype, weight.shape, bias and bias.shape, flops)
    node = tape.node((x, weight, bias), _convolution_backward, (x.detached(), detached(weight)), meta)
    out = tape.tensor(shape, x.dtype, node)
    tape.matmul(flops, x.num_bytes + weight.numel * x.dtype.num_bytes + out.num_bytes, x.dtype)
    return out


def _convolution_backward(node: GraphNode, grads: Grads) -> Grads:
    g = only(grads)
    x_shape, dtype, weight_shape, bias_shape, flops = node.meta
    tape = g.tape
    hbm_bytes = (prod(x_shape) + g.numel + prod(weight_shape)) * dtype.num_bytes
    results: list[Tensor | None] = [None, None, None]
    for index, shape in enumerate((x_shape, weight_shape)):
        if node.needs[index]:
            results[index] = (tape.gradient if index else tape.tensor)(shape, dtype)
            tape.matmul(flops, hbm_bytes, dtype)
    if node.needs[2]:
        results[2] = reduced(g, bias_shape, dtype)
    return results
