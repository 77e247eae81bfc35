"""Runs a real transformers model for one step on fake tensors and counts the bytes of every live storage.

What the tape of ``vlmplan.architecture`` predicts is held to this: no numbers are computed, no weights exist, but every
allocation, saved tensor and release is torch's and transformers' own. Differences to CUDA: the attention kernel for CPU
has no backward workspaces, and a dispatch mode makes autograd sum gradients into new tensors.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers.utils.import_utils
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.weak import WeakTensorKeyDictionary


class ByteCounter(TorchDispatchMode):
    """Counts live storage bytes; keeps real values of small integer tensors so that control flow is exact."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.sizes: dict[int, int] = {}
        self.labels: dict[int, tuple[Any, ...]] = {}
        self.values = WeakTensorKeyDictionary()
        self.live_bytes = self.peak_bytes = 0
        self.keeps_labels = False
        self.peak_labels: list[tuple[int, Any]] = []

    def reset_peak(self) -> None:
        self.peak_bytes = self.live_bytes
        self.peak_labels = []

    def count(self, tensor: torch.Tensor, func: Any = None) -> None:
        if tensor.device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes()
        self.live_bytes += self.sizes[key]
        if self.keeps_labels:
            self.labels[key] = (str(func), tuple(tensor.shape), str(tensor.dtype)[6:])
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            if self.keeps_labels:
                self.peak_labels = [(size, self.labels.get(k)) for k, size in self.sizes.items()]

        def freed(key: int = key) -> None:
            self.live_bytes -= self.sizes.pop(key, 0)
            self.labels.pop(key, None)

        weakref.finalize(storage, freed)

    def fake(self, real: torch.Tensor) -> torch.Tensor:
        fake = self.fake_mode.from_tensor(real)
        self.values[fake] = real
        self.count(fake)
        return fake

    def as_positions(self, index: Any) -> list[Any]:
        """A mask whose values are known, as the positions (one tensor a dimension) that indexing makes of it."""
        if index is None or index.dtype != torch.bool or index not in self.values:
            return [index]
        with unset_fake_temporarily():
            positions = self.values[index].nonzero().unbind(1)
        return [self.fake(position.contiguous()) for position in positions]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            with unset_fake_temporarily():
                source = self.values.get(args[0], None if isinstance(args[0], FakeTensor) else args[0])
                if source is not None:
                    return source.item()
            return False if args[0].dtype == torch.bool else (0.0 if args[0].dtype.is_floating_point else 0)
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], [position for index in args[1] for position in self.as_positions(index)], *args[2:])
        inputs = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        known = all(not isinstance(t, FakeTensor) or t in self.values for t in inputs)

        def real_result() -> Any:
            real_args, real_kwargs = tree_map(
                lambda x: self.values.get(x, x) if isinstance(x, torch.Tensor) else x, (args, kwargs)
            )
            with unset_fake_temporarily():
                return func(*real_args, **real_kwargs)

        try:
            result = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if not known:
                raise
            return tree_map(lambda x: self.fake(x) if isinstance(x, torch.Tensor) else x, real_result())
        outputs = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        if func is torch.ops.aten.eq.Scalar and args[1] == 0 and not known:
            # Numbers that nobody knows, such as pixels, are taken not to be zero.
            with unset_fake_temporarily():
                self.values[outputs[0]] = torch.zeros((), dtype=torch.bool).expand(outputs[0].shape)
        small = all(t.numel() < ((1 << 18) if t.dtype.is_floating_point else 20_000_000) for t in outputs)
        is_random = "rand" in str(func) or "empty" in str(func)
        if known and small and not is_random and outputs and all(isinstance(t, FakeTensor) for t in outputs):
            for fake, real in zip(
                outputs, [t for t in tree_iter(real_result()) if isinstance(t, torch.Tensor)], strict=False
            ):
                self.values[fake] = real
        for tensor in outputs:
            self.count(tensor, func)
        return result


@dataclass
class Measured:
    """Bytes above the weights."""

    forward_live: int = 0
    forward_peak: int = 0
    backward_peak: int = 0
    end_live: int = 0
    weights: int = 0
    forward_top: list[tuple[int, Any]] = field(default_factory=list)
    backward_top: list[tuple[int, Any]] = field(default_factory=list)


def measured_step(
    build: Callable[[], torch.nn.Module],
    batch: dict[str, torch.Tensor],
    *,
    floats: dict[str, tuple[int, ...]] | None = None,
    keeps_gradients: bool = False,
    autocast: torch.dtype | None = None,
    keeps_labels: bool = False,
) -> Measured:
    """One forward and backward of ``build()`` on ``batch`` (integers, real values) and fake ``floats`` by shape.

    With ``keeps_gradients`` False every gradient is dropped as soon as it is whole, so that activations show.
    """
    # transformers takes fake tensors for a graph capture and then builds masks that a real run does not have.
    transformers.utils.import_utils.is_fake_tensor = lambda tensor: False
    with FakeTensorMode(allow_non_fake_inputs=True) as fake_mode, ByteCounter(fake_mode) as counter:
        counter.keeps_labels = keeps_labels
        model = build()
        model.train()
        if not keeps_gradients:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(_drop_gradient)
        base = counter.live_bytes
        counter.reset_peak()
        inputs = {key: counter.fake(value) for key, value in batch.items()}
        for key, shape in (floats or {}).items():
            inputs[key] = torch.empty(shape, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            out = model(**inputs)
        result = Measured(weights=base)
        result.forward_live, result.forward_peak = counter.live_bytes - base, counter.peak_bytes - base
        result.forward_top = _top(counter)
        counter.reset_peak()
        out.loss.backward()
        result.backward_peak = counter.peak_bytes - base
        result.backward_top = _top(counter)
        del out
        result.end_live = counter.live_bytes - base
        return result


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None


def _top(counter: ByteCounter, count: int = 60) -> list[tuple[int, Any]]:
    totals: dict[Any, list[int]] = {}
    for size, label in counter.peak_labels:
        entry = totals.setdefault(label, [0, 0])
        entry[0] += size
        entry[1] += 1
    return sorted(((size, (number, label)) for label, (size, number) in totals.items()), key=lambda t: -t[0])[:count]
