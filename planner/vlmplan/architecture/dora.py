"""DoRA: an adapter's weight is turned by LoRA, and a trained vector, the magnitude, says how long its rows are.

``W' = m * (W + s B A) / |W + s B A|``, the norm of each row taken as a constant (Liu et al., DoRA, arXiv 2402.09353,
section 4.3). Source: peft 0.21 ``tuners/lora/dora.py`` (``DoraLinearLayer``) and ``variants.py``
(``DoraLinearVariant``). What that takes beyond LoRA, of a layer of ``in`` by ``out`` weights:

- ``B A`` is the adapter's result for the unit matrix, of ``in`` by ``in`` elements; both live to the end of its
  forward;
- its norm makes ``W`` in the type of x (a copy of 16-bit weights where adapters are float32, and of all 4-bit ones),
  ``s B A`` and their sum, each as large as the layer;
- the base layer's result and the adapter's are kept for backward, where LoRA keeps neither;
- with dropout the base layer is computed a second time, of the dropped x, which keeps that copy of ``W`` for backward.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from vlmplan.architecture import ops
from vlmplan.architecture.containers import call_container
from vlmplan.architecture.modules import Module
from vlmplan.architecture.packed_weight import PackedLinear
from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


class UsedWeights(WeightUser):
    """Weights that a module uses, of others too, as ZeRO-3 sees it: what it has to gather for that module."""

    def __init__(self, parameters: dict[str, Parameter], *, is_container: bool = False) -> None:
        self.parameters_by_name = parameters
        self.is_container = is_container


class DoraLayer(Module):
    """``DoraLinearLayer``: the magnitude, one element for each row of the base layer's weight.

    It reads that weight itself, behind the base layer, so that ZeRO-3 gathers it a second time (``ZeROOrderedDict``).
    """

    def __init__(self, base: Module, weight: Parameter, out_features: int) -> None:
        self.weight = Parameter(out_features)
        self._base_weight = weight
        self._bias_dtype = base.bias_dtype if isinstance(base, PackedLinear) else None
        self._dequantised = base.dequantised if isinstance(base, PackedLinear) else None
        self._bias: Parameter | None = getattr(base, "bias", None)
        used = {"weight": self.weight, "base": weight}
        self._used = UsedWeights(used if self._bias is None else {**used, "bias": self._bias})
        self._used.is_of_adapter = True

    def __call__(self, x: Tensor, base_result: Tensor | None, factors: tuple[Module, Module]) -> Tensor:
        tape = x.tape
        uses_twice = tape.is_replaying and tape.shared_casts is None  # each factor, of which autocast has one cast
        with tape.caching_casts() if uses_twice else nullcontext():
            return self._called(x, base_result, factors)

    def _called(self, x: Tensor, base_result: Tensor | None, factors: tuple[Module, Module]) -> Tensor:
        tape = x.tape
        if not tape.follows_weights:
            return self.forward(x, base_result, factors)
        run = partial(self.forward, x, base_result, factors)
        return call_container(tape, self._used, run, has_input_grad=x.requires_grad)

    def forward(self, x: Tensor, base_result: Tensor | None, factors: tuple[Module, Module]) -> Tensor:
        """What is added to the base layer's result; that is made again of ``x`` where ``base_result`` is None."""
        tape = x.tape
        lora_a, lora_b = factors
        width: int = lora_a.in_features  # type: ignore[assignment]
        eye = tape.tensor((width, width), lora_a.weight.dtype)  # type: ignore[attr-defined]
        with tape.detaching():
            update = lora_b(lora_a(eye))
        del eye
        update = ops.to(update, x.dtype)
        weight = self._weight_in(x.dtype, x)
        norm = self._norm(weight, update, x)
        scale = _divided(self.weight, norm, x)
        lora_result = lora_b(lora_a(x))
        if base_result is None:
            base_result = ops.linear(x, weight)
        elif self._bias is not None:
            base_result = ops.add(base_result, self._bias_beside(x))
        return ops.add(
            ops.mul(base_result, ops.shift(scale), y_is_first=True),
            ops.scale(ops.mul(lora_result, scale, y_is_first=True)),
        )

    def _bias_beside(self, x: Tensor) -> Operand:
        """The base layer's bias, in the type that the layer's own forward has left it in."""
        assert self._bias is not None
        if self._bias_dtype is None:
            return self._bias
        dtype = self._bias_dtype(x.dtype)
        return Tensor(x.tape.tensor((0,), dtype).storage, self._bias.shape, dtype)

    def _weight_in(self, dtype: DType, x: Tensor) -> Operand:
        """The weight in the type ``dtype``: itself, a cast of it, or of what it is dequantised to."""
        tape, weight = x.tape, self._base_weight
        if self._dequantised is None:
            return ops.cast_weight(weight, dtype, tape)
        return ops.to(self._dequantised(weight.dtype, tape), dtype)

    def _norm(self, weight: Operand, update: Tensor, x: Tensor) -> Tensor:
        """``get_weight_norm``: of the rows of ``weight + scaling * update``, without a gradient."""
        tape = x.tape
        with tape.charged_to(Kind.TEMPORARY):
            scaled = tape.tensor(weight.shape, update.dtype)
            total = tape.tensor(weight.shape, ops.promoted(weight.dtype, update.dtype))
            tape.move(2 * scaled.num_bytes + 2 * total.num_bytes)
        del scaled
        norm = tape.tensor(self.weight.shape, total.dtype)
        tape.move(total.num_bytes)
        return norm


def _divided(magnitude: Parameter, norm: Tensor, x: Tensor) -> Tensor:
    """``(magnitude / norm).view(1, -1)``: saves the norm.

    Its backward belongs to no module, as ZeRO-3 sees it: that of the layer is over when x has its gradient.
    """
    tape = x.tape
    node = tape.node((magnitude,), _divided_backward, (norm.detached(),), (magnitude.shape, magnitude.dtype))
    if node is not None and node.module is not None:
        node.module = None
    return tape.tensor((1, magnitude.numel), ops.promoted(magnitude.dtype, norm.dtype), node)


def _divided_backward(node: GraphNode, grads: ops.Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    shape, dtype = node.meta
    return (ops.to(g.tape.gradient(shape, g.dtype), dtype),)
