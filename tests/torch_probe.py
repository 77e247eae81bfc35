"""Runs a real transformers model for one step on fake tensors and counts the bytes of every live storage.

What the tape of ``vlmplan.architecture`` predicts is held to this: no numbers are computed, no weights exist, but every
allocation, saved tensor and release is torch's and transformers' own. Differences to CUDA: the attention kernel for CPU
has no backward workspaces, and a dispatch mode makes autograd sum gradients into new tensors.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
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
from torch.utils._pytree import tree_map

from vlmplan_trainer.rehearse.kernels import FUSED_RMS_NORM, PASSING, never_taken_apart
from vlmplan_trainer.rehearse.shapes import (
    KnownOutputs,
    UnknownShapeError,
    is_rememberable,
    made,
    remembered,
    signature,
)
from vlmplan_trainer.rehearse.shims import moving_modules_in_place
from vlmplan_trainer.rehearse.special_operations import FILLED_ELEMENTS, chosen_experts, known_sizes

aten = torch.ops.aten
VALUE = "_probed_value"
"""The attribute of a fake tensor that holds its real value."""
FAKE_MODE = FakeTensorMode(allow_non_fake_inputs=True)
FAKE_MODE.cache_enabled = False
never_taken_apart(FUSED_RMS_NORM, "CPU")  # as on CUDA; nothing real asks for them
FILLS = frozenset((aten.normal_.default, aten.uniform_.default, aten.fill_.Scalar, aten.zero_.default))
"""What gives weights their first values: of no shape but their own."""
WHILE_RUNNING = {**PASSING, aten._safe_softmax.default: lambda scores, *_: [scores.numel()]}
"""Bytes that CUDA takes while an operation runs; in torch's fallback of attention, of each score whether it is masked
(``_safe_softmax`` in ``attention.cpp``). The CPU's kernels take nothing of that."""
EMPTY = (aten.empty.memory_format, aten.new_empty.default)
SHAPES: dict[Any, KnownOutputs] = {}
"""What operations return, by the shapes of what they are given, of all steps in this mode: torch's own memory of them
takes much longer."""


class ByteCounter(TorchDispatchMode):
    """Counts live storage bytes; keeps real values of small integer tensors so that control flow is exact."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.sizes: dict[int, int] = {}
        self.labels: dict[int, tuple[Any, ...]] = {}
        self.live_bytes = self.peak_bytes = 0
        self.keeps_labels = False
        self.peak_labels: list[tuple[int, Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; the guard against it would run at every operation."""
        return False

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
        setattr(fake, VALUE, real)
        self.count(fake)
        return fake

    def as_positions(self, index: Any) -> list[Any]:
        """A mask whose values are known, as the positions (one tensor a dimension) that indexing makes of it."""
        if index is None or index.dtype != torch.bool or not is_known(index):
            return [index]
        with unset_fake_temporarily():
            positions = [position.clone() for position in value_of(index).nonzero().unbind(1)]  # each with own bytes
        return [self.fake(position) for position in positions]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # which comes more often than all others together
            return args[0]._fake_device
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return read_number(args[0])
        if func is aten.index.Tensor:
            args = (args[0], [position for index in args[1] for position in self.as_positions(index)], *args[2:])
        if func is aten.split_with_sizes.default:
            args = (args[0], known_sizes(args[0].shape[args[2] if len(args) > 2 else 0], args[1]), *args[2:])
        known = all(map(is_known, tensors_in((*args, *kwargs.values()))))
        try:
            result = self.shaped(func, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if not known:
                raise
            return tree_map(lambda x: self.fake(x) if isinstance(x, torch.Tensor) else x, real(func, args, kwargs))
        outputs = list(tensors_in((result,)))
        if known:
            follow(func, args, kwargs, outputs)
        else:
            assume(func, args, outputs)
        for tensor in outputs:
            self.count(tensor, func)
        if func in WHILE_RUNNING:
            self.peak_bytes = max(self.peak_bytes, self.live_bytes + sum(WHILE_RUNNING[func](*args, **kwargs)))
        return result

    def shaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result by torch's shape function, or as it was for the same shapes before."""
        if func in FILLS:
            return args[0]
        inputs: list[FakeTensor] = []
        try:
            key = (func, signature(args, kwargs, inputs)) if is_rememberable(func) else None
        except UnknownShapeError:
            key = None
        found = None if key is None else SHAPES.get(key)
        if found is None:
            result = func(*args, **kwargs)
            if key is not None and (new := remembered(result, inputs)) is not None:
                SHAPES[key] = new
            return result
        if found.outputs is None:
            return None
        again = [made(output, inputs) for output in found.outputs]
        return again[0] if found.kind is None else found.kind(again)


def real(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation whose inputs are known."""
    args, kwargs = tree_map(lambda x: value_of(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    with unset_fake_temporarily():
        return func(*args, **kwargs)


def follow(func: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
    """Keep the real values of ``outputs`` where they are small and no random numbers. Few integers that are made empty
    are zeros until they are written, place by place (offsets of samples)."""
    if func in EMPTY and not outputs[0].is_floating_point() and outputs[0].numel() <= FILLED_ELEMENTS:
        with unset_fake_temporarily():
            setattr(outputs[0], VALUE, torch.zeros(outputs[0].shape, dtype=outputs[0].dtype))
        return
    is_random = "rand" in str(func) or "empty" in str(func)
    if outputs and not is_random and all(isinstance(t, FakeTensor) and is_small(t) for t in outputs):
        for fake, value in zip(outputs, tensors_in((real(func, args, kwargs),)), strict=False):
            setattr(fake, VALUE, value)


def assume(func: Any, args: Any, outputs: list[torch.Tensor]) -> None:
    """Give values that nobody knows: numbers such as pixels are taken not to be zero, and experts to be chosen in
    turn."""
    found = None
    if func is aten.topk.default:
        found = outputs[1], chosen_experts(outputs[1].shape, args[0].shape[-1])
    elif func is aten.eq.Scalar and args[1] == 0:
        with unset_fake_temporarily():
            found = outputs[0], torch.zeros((), dtype=torch.bool).expand(outputs[0].shape)
    if found is not None and found[1] is not None:
        setattr(found[0], VALUE, found[1])


def read_number(tensor: torch.Tensor) -> Any:
    """What ``item()`` reads; zero where it is not known."""
    if is_known(tensor):
        with unset_fake_temporarily():
            return value_of(tensor).item()
    return False if tensor.dtype == torch.bool else (0.0 if tensor.dtype.is_floating_point else 0)


def is_known(tensor: torch.Tensor) -> bool:
    """Whether the values of a tensor are known: of one that is not fake they are."""
    return not isinstance(tensor, FakeTensor) or hasattr(tensor, VALUE)


def value_of(tensor: torch.Tensor) -> torch.Tensor:
    """The real values of a tensor that ``is_known``."""
    return getattr(tensor, VALUE, tensor)


def is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() < ((1 << 18) if tensor.dtype.is_floating_point else 20_000_000)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among values, and in lists of them: no operation takes or gives deeper ones."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


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
    with FAKE_MODE, ByteCounter(FAKE_MODE) as counter:
        counter.keeps_labels = keeps_labels
        with moving_modules_in_place():  # classes that make modules of theirs float32
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
