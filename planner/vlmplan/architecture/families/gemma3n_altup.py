"""AltUp of Gemma 3n: several versions of the hidden states, of which one goes through a layer, and others follow it.

Source: transformers 5.23 ``models/gemma3n/modeling_gemma3n.py`` (``Gemma3nTextAltUp``, ``Gemma3nTextModel``). All
versions lie in one tensor (versions, batch, tokens, width), to which layers add in place: what that does to gradients
is in ``torch/csrc/autograd/functions/tensor.cpp`` (``CopySlices``) and ``as_strided_backward`` in
``torch/csrc/autograd/FunctionsManual.cpp``, of torch 2.13.
"""

from collections.abc import Sequence
from functools import reduce

from vlmplan.architecture import ops
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.gemma4_experts import Gemma4Norm
from vlmplan.architecture.modules import DerivedLinear, Linear, Module
from vlmplan.architecture.ops import Grads, chunks
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Operand, Tensor
from vlmplan.units import DType


class ClampedLinear(DerivedLinear):
    """A Linear whose weight is clamped while the model trains: it stays in 16 bit (``CLAMPED_LINEARS``)."""


class AltUp(Module):
    """``Gemma3nTextAltUp``; its methods are called, it itself never is."""

    def __init__(self, config: Config) -> None:
        width, self.num_versions = config.integer("hidden_size"), config.integer("altup_num_inputs")
        self.correct_output_scale = Parameter(width)
        self.correction_coefs = ClampedLinear(self.num_versions, self.num_versions)
        self.prediction_coefs = ClampedLinear(self.num_versions, self.num_versions**2)
        self.modality_router = Linear(width, self.num_versions)
        self.router_norm = Gemma4Norm(width)

    def predict(self, x: Tensor) -> Tensor:
        """``predict``: all versions before the layer, (versions, batch, tokens, width)."""
        num_versions, *tokens, width = x.shape
        modalities = self._modalities(version(x))
        coefs = self.prediction_coefs(modalities)
        predictions = chunks.product(
            x.view(*tokens, width, num_versions), coefs, (*tokens, width, num_versions), num_versions
        )
        predictions = _add_to_view(predictions.view(*x.shape), x)
        return ops.to(ops.copy(predictions), x.dtype)

    def correct(self, predictions: Tensor, activated: Tensor) -> Tensor:
        """``correct``: all versions after the layer, of which ``activated`` went through it."""
        modalities = self._modalities(activated)
        innovation = ops.subtract(activated, version(predictions))
        innovation = _repeated(innovation, self.num_versions)
        coefs = ops.shift(self._correction_coefs(modalities))
        coefs = coefs.view(self.num_versions, *coefs.shape[:-1], 1)
        corrected = ops.mul(innovation, coefs)
        corrected = _add_in_place(corrected, predictions)
        return ops.to(corrected, activated.dtype)

    def scale_corrected_output(self, x: Tensor) -> Tensor:
        """``scale_corrected_output``."""
        return ops.to(ops.mul(ops.to(x, self.correct_output_scale.dtype), self.correct_output_scale), x.dtype)

    def _modalities(self, x: Tensor) -> Tensor:
        """``compute_router_modalities``."""
        router_inputs = ops.scale(self.router_norm(x))
        routed = self.modality_router(router_inputs)
        return ops.to(ops.tanh(ops.to(routed, DType.FLOAT32)), x.dtype)

    def _correction_coefs(self, modalities: Tensor) -> Tensor:
        if modalities.tape.is_in_training_mode:
            return ops.linear(modalities, _clamped(self.correction_coefs.weight, modalities.tape))
        return self.correction_coefs(modalities)


def version(x: Tensor) -> Tensor:
    """``x[i]``: a view of one version."""
    return ops.part(x, *x.shape[1:])


def add_to_others(x: Tensor, y: Tensor) -> Tensor:
    """``x[1:] += y``, y the same for each and cast by a norm: Python adds to a view of x, then writes that into x."""
    others = (x.shape[0] - 1, *x.shape[1:])
    added = _copy_slices(x.view(*others), y)
    whole = Tensor(x.storage, x.shape, x.dtype, added.node)
    return chunks.put_slice(whole, _restored(added, x.shape))


def magnitude(x: Tensor) -> Tensor:
    """``torch.mean(x ** 2, dim=-1, keepdim=True)``."""
    return ops.mean_last(ops.power(x))


def with_magnitude(x: Tensor, target: Tensor) -> Tensor:
    """x, times ``target`` and divided by its own root of the mean square."""
    new = magnitude(x)
    new = ops.unary(ops.clamp(new, num_limits=1), saves_output=True)
    return _divided(ops.mul(x, target), new)


def stacked(versions: Sequence[Tensor]) -> Tensor:
    """``torch.stack(versions)``: of the widest of their types, as under autocast the magnitudes are in float32."""
    dtype = reduce(ops.promoted, [one.dtype for one in versions])
    return ops.concatenate([ops.to(one, dtype) for one in versions], (len(versions), *versions[0].shape))


def mean_of_versions(versions: Tensor) -> Tensor:
    """``torch.mean(versions, dim=0)``: saves nothing; its gradient, expanded, is divided: one of the whole size."""
    tape = versions.tape
    node = tape.node((versions,), ops.rewritten_backward, meta=versions.shape)
    out = tape.tensor(versions.shape[1:], versions.dtype, node)
    tape.move(versions.num_bytes + out.num_bytes)
    return out


def _add_in_place(x: Tensor, y: Tensor) -> Tensor:
    """``x += y`` of equal shapes: saves nothing; both gradients are g."""
    tape = x.tape
    node = tape.node((x, y), _add_in_place_backward, meta=(x.dtype, y.dtype))
    tape.move(2 * x.num_bytes + y.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _add_in_place_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    return tuple([ops.to(g, dtype) if needed else None for dtype, needed in zip(node.meta, node.needs, strict=True)])


def _add_to_view(x: Tensor, y: Tensor) -> Tensor:
    """``x += y`` where x is a view of a result, as which it is used from here on."""
    return _restored(_copy_slices(x, y), x.shape)


def _copy_slices(x: Tensor, y: Tensor) -> Tensor:
    """``x += y`` where x is a view: what it is a view of, with its new gradient.

    The gradient is copied whole, and the part of the view once more, for y; summed where y is the same for several.
    """
    tape = x.tape
    node = tape.node((x, y), _copy_slices_backward, meta=(x.shape, y.shape, y.dtype))
    tape.move(2 * x.num_bytes + y.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _copy_slices_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    tape = g.tape
    shape, y_shape, y_dtype = node.meta
    whole: Tensor | None = tape.tensor(g.shape, g.dtype)
    part = tape.tensor(shape, g.dtype)
    tape.move(2 * g.num_bytes + 4 * part.num_bytes, num_kernels=3)
    if not node.needs[0]:
        whole = None
    if not node.needs[1]:
        return (whole, None)
    if y_shape != shape:
        part = ops.reduced(part, y_shape, g.dtype)
    return (whole, ops.to(part, y_dtype))


def _restored(changed: Tensor, base_shape: tuple[int, ...]) -> Tensor:
    """A view that was written to, as torch makes it anew: its gradient is put into zeros of the whole size."""
    node = changed.tape.node((changed,), _restored_backward, meta=base_shape)
    return Tensor(changed.storage, changed.shape, changed.dtype, node)


def _restored_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(out.num_bytes + 2 * g.num_bytes, num_kernels=2)
    return (out,)


def _repeated(x: Tensor, count: int) -> Tensor:
    """``x.repeat(count, 1, 1, 1)``: saves nothing; its gradient is summed over the copies."""
    tape = x.tape
    node = tape.node((x,), ops.summed_backward, meta=x.shape)
    out = tape.tensor((count, *x.shape), x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _clamped(weight: Parameter, tape: ForwardTape) -> Operand:
    """``weight.clamp(-limit, limit)``: saves the weight."""
    node = tape.node((weight,), _clamped_backward, (weight,))
    out = tape.tensor(weight.shape, weight.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _clamped_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = ops.only(grads)
    masks = [g.tape.tensor(g.shape, DType.BOOL) for _ in range(2)]
    out = g.tape.gradient(g.shape, g.dtype)
    g.tape.move(3 * g.num_bytes + 3 * sum([mask.num_bytes for mask in masks]))
    return (out,)


def _divided(x: Tensor, y: Tensor) -> Tensor:
    """``x / y``, y of one value a row: saves y, and x if y needs a gradient."""
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, y.detached())
    node = tape.node((x, y), _divided_backward, saved, (x.shape, y.shape))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _divided_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """``div_tensor_self_backward`` and ``div_tensor_other_backward``, of one expression whose parts live to its end."""
    g = ops.only(grads)
    tape = g.tape
    x_shape, y_shape = node.meta
    grad_x = grad_y = None
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, g.dtype)
        tape.move(2 * g.num_bytes)
    if node.needs[1]:
        parts = [tape.tensor(x_shape, g.dtype) for _ in range(3)]
        grad_y = tape.tensor(x_shape, g.dtype)
        tape.move(9 * g.num_bytes, num_kernels=4)
        del parts
        grad_y = ops.reduced(grad_y, y_shape, g.dtype)
    return (grad_x, grad_y)
