"""LoRA that keeps no more than a layer's own input: NeMo AutoModel's ``use_memory_efficient_lora``.

Source: Automodel@36044ad3 ``components/_peft/lora.py`` (``LoRATritonFunction``) and ``lora_mlp.py``
(``LoRASwiGLUMLPFunction``). The Triton kernels and the products that stand for them keep and make the same tensors but
for thin ones, which the kernels hold on chip.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vlmplan.architecture.ops.base import Grads, only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Tensor


class AdaptedWeight(NamedTuple):
    """A frozen weight (n, k), and the factors (r, k) and (n, r) beside it."""

    base: Parameter
    lora_a: Parameter
    lora_b: Parameter

    @property
    def rank(self) -> int:
        return self.lora_a.shape[0]


def add_adapter(x: Tensor, lora_a: Parameter, lora_b: Parameter, result: Tensor) -> Tensor:
    """``result + lora_B(lora_A(x) * scale)``, into which the result of the base layer is added: saves x alone beside
    the factors, and multiplies by ``lora_A`` again in backward."""
    tape = x.tape
    shapes = (lora_a.shape, lora_b.shape)
    node = tape.node((x, lora_a, lora_b, result), _adapter_backward, (x.detached(), lora_a, lora_b), shapes)
    thin = _thin(x, lora_a.shape[0])
    scaled = _thin(x, lora_a.shape[0])
    del thin
    out = tape.tensor(result.shape, result.dtype, node)
    _count_product(x, lora_a)
    _count_product(scaled, lora_b)
    tape.move(3 * out.num_bytes)
    return out


def _adapter_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    x = node.saved[0]
    assert isinstance(x, Tensor)
    shape_a, shape_b = node.meta
    tape, rank, dtype = g.tape, shape_a[0], g.dtype
    grad_x = grad_a = grad_b = None
    g_by_b = _thin(g, rank)
    _count(g, g.shape[-1], rank)
    if node.needs[0]:
        grad_x = tape.tensor(x.shape, dtype)
        _count(g_by_b, rank, x.shape[-1])
    if node.needs[1]:
        unscaled = tape.gradient(shape_a, dtype)
        grad_a = tape.gradient(shape_a, dtype)
        del unscaled
        _count(g_by_b, rank, x.shape[-1])
    del g_by_b
    if node.needs[2]:
        grad_b = tape.gradient(shape_b, dtype)
        again = _thin(x, rank)
        del again
        _count(x, x.shape[-1], rank)
        _count(g, g.shape[-1], rank)
    return (grad_x, grad_a, grad_b, g if node.needs[3] else None)


def adapted_swiglu(x: Tensor, gate: AdaptedWeight, up: AdaptedWeight, down: AdaptedWeight) -> Tensor:
    """``down(silu(gate(x)) * up(x))`` of three adapted layers as one operation: saves x and the results of gate and up,
    over which their gradients are written."""
    tape = x.tape
    layers = (gate, up, down)
    factors = [factor for layer in layers for factor in (layer.lora_a, layer.lora_b)]
    node = tape.node((x, *factors), _swiglu_backward, (x.detached(),), layers)
    inner = (*x.shape[:-1], gate.base.shape[0])
    gated = _adapted(x, gate, inner)
    lifted = _adapted(x, up, inner)
    product = tape.tensor(inner, x.dtype)
    tape.move(3 * product.num_bytes)
    out = _adapted(product, down, x.shape, node)
    tape.save(node, gated, lifted)
    return out


def _adapted(x: Tensor, layer: AdaptedWeight, shape: tuple[int, ...], node: GraphNode | None = None) -> Tensor:
    """The product with the frozen weight, to which the adapter's is added in place."""
    out = x.tape.tensor(shape, x.dtype, node)
    thin = _thin(x, layer.rank)
    scaled = _thin(x, layer.rank)
    del thin, scaled
    _count_product(x, layer.base)
    _count_product(x, layer.lora_a)
    _count(x, layer.rank, shape[-1])
    return out


def _swiglu_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    gate, up, down = layers = node.meta
    x, gated, lifted = node.saved
    assert isinstance(x, Tensor)
    assert isinstance(gated, Tensor)
    tape, dtype, inner = g.tape, g.dtype, gated.shape
    unadapted = tape.tensor(inner, dtype)
    _count_product(g, down.base)
    grad_product = tape.tensor(inner, dtype)
    del unadapted
    tape.move(6 * grad_product.num_bytes)
    results: list[Tensor | None] = [None]
    for place, layer in enumerate(layers):
        _count(gated, layer.rank, layer.base.shape[1], 4)
        for number, factor in enumerate((layer.lora_a, layer.lora_b), 1 + 2 * place):
            results.append(tape.gradient(factor.shape, dtype) if node.needs[number] else None)
    if node.needs[0]:
        part = tape.tensor(x.shape, dtype)
        results[0] = tape.tensor(x.shape, dtype)
        del part
        _count_product(x, gate.base)
        _count_product(x, up.base)
    del gated, lifted, grad_product
    return results


def _thin(x: Tensor, rank: int) -> Tensor:
    return x.tape.tensor((x.numel // x.shape[-1], rank), x.dtype)


def _count_product(x: Tensor, weight: Parameter) -> None:
    """A product of so many rows with a weight, or with its transpose."""
    _count(x, *weight.shape)


def _count(x: Tensor, width: int, other: int, times: int = 1) -> None:
    rows = x.numel // x.shape[-1]
    hbm_bytes = (rows * (width + other) + width * other) * x.dtype.num_bytes
    x.tape.matmul(2 * rows * width * other, hbm_bytes, x.dtype, times)
