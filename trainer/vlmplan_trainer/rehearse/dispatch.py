"""What happens to every operation of a rehearsal: torch's shape functions, and its storages into the ledger.

Numbers are not computed, but small integer tensors whose values are known (token ids, grids of patches, lengths) keep
them, so that control flow is what it would be. What is not known reads as zero: no gradient overflows, no loss is NaN.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter, tree_map

from vlmplan_trainer.rehearse import finite
from vlmplan_trainer.rehearse.collectives import Collectives
from vlmplan_trainer.rehearse.flops import formula_of
from vlmplan_trainer.rehearse.kernels import KERNELS, LAST_FIRST, PASSING
from vlmplan_trainer.rehearse.ledger import Ledger
from vlmplan_trainer.rehearse.shapes import (
    KnownOutputs,
    UnknownShapeError,
    is_rememberable,
    made,
    remembered,
    signature,
)
from vlmplan_trainer.rehearse.special_operations import SPECIAL, exchanged
from vlmplan_trainer.rehearse.values import forget_value, give_value, known_value, own_elements, value_of
from vlmplan_trainer.rehearse.work import OperationWork, Work, work_of

aten = torch.ops.aten
KNOWN_ELEMENTS = 50_000_000
"""Integer tensors up to this size keep their values, such as eleven samples' masks of pixels of SmolVLM, and views of
them of any size, ..."""
KNOWN_FLOATS = 1 << 23
"""... and tensors of floats: an optimizer's count of its steps, what the loss tries a model with, and the weights by
which Gemma 4 pools patches, 705,600 an image, whose zeros tell what is padding."""


Results = dict[tuple[Any, ...], KnownOutputs]

_wraps_others = cache(is_traceable_wrapper_subclass_type)
"""Whether tensors of a class are made of others."""


@dataclass(slots=True, kw_only=True)
class Operation:
    """An operation and what happens to it. ``results`` is None where they are not told by the inputs' shapes."""

    func: Any
    special: Any
    kernel: Any
    passing: Any
    is_message: bool
    is_mutable: bool
    flops: Callable[..., int] | None
    results: Results | None


class Rehearsal(TorchDispatchMode):
    """Stands between the trainer and fake tensors.

    ``give_up`` is called behind ``most_operations`` and has to end the process: an exception out of backward makes
    torch abort.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        ledger: Ledger,
        maker: Callable[[], str],
        *,
        most_operations: int = sys.maxsize,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.fake_mode, self.ledger, self._maker = fake_mode, ledger, maker
        self.collectives = Collectives()
        self.work = Work()
        """What runs now makes the card do."""
        self.flops = 0
        self.num_operations, self._most_operations, self._give_up = 0, most_operations, give_up
        self._operations: dict[int, Operation] = {}
        fake_mode.cache_enabled = False  # see shapes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; the guard against it would run at every operation."""
        return False

    def unknown_number(self, tensor: torch.Tensor) -> Any:
        """What is read where a number is not known."""
        dtype = tensor.dtype
        return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0

    def bounded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation whose size unknown data decide; called while the exception is handled."""
        raise

    def fake(self, real: torch.Tensor) -> torch.Tensor:
        """A fake tensor of known value, in host memory."""
        fake = self.fake_mode.from_tensor(real)
        give_value(fake, real)
        self.ledger.note(fake, "given", self._maker)
        return fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0]._fake_device
        if any(map(_wraps_others, types)):
            return NotImplemented  # DTensor, torchao's: they call operations on what they wrap, which come here
        kwargs = kwargs or {}
        self.num_operations += 1
        if self.num_operations > self._most_operations:
            self._give_up()
        operation = self._operations.get(id(func)) or self._met(func)
        if operation.special is not None:
            result = operation.special(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if operation.is_message:
            return self.counted(self.collectives(func, args, kwargs), func)
        if operation.kernel is not None:
            result, passing = operation.kernel(*args, **kwargs)
            self._count_work(func, args, kwargs, result, self._count_flops(operation, args, kwargs, result))
            self.counted(result, func)
            self.ledger.pass_through(passing)
            return result
        result = self._shaped(operation, args, kwargs)
        if operation.passing is not None and not _is_on_cpu(args[0]):
            self.ledger.pass_through(operation.passing(*args, **kwargs))
        return result

    def _met(self, func: Any) -> Operation:
        """What is to be known of an operation, when it comes for the first time."""
        found = self._operations[id(func)] = Operation(
            func=func,
            special=exchanged if func.namespace == "deepspeed" else SPECIAL.get(func),
            kernel=KERNELS.get(func),
            passing=PASSING.get(func),
            is_message=func.namespace == "c10d",
            is_mutable=func._schema.is_mutable,
            flops=formula_of(func._overloadpacket),
            results={} if is_rememberable(func) else None,
        )
        return found

    def _shaped(self, operation: Operation, args: Any, kwargs: Any) -> Any:
        """The result of torch's shape function: of the call before this with equal shapes, where there was one."""
        func, key = operation.func, None
        inputs: list[Any] = []
        if operation.results is not None:
            try:
                key = signature(args, kwargs, inputs)
            except UnknownShapeError:
                inputs = []
        if key is None:
            inputs = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
            is_known = all(value_of(t) is not None for t in inputs)
            has_values = True
        else:
            assert operation.results is not None
            num_known = sum(1 for t in inputs if known_value(t) is not None)
            is_known, has_values = num_known == len(inputs), num_known > 0
            found = operation.results.get(key)
            if found is not None:
                return self._again(operation, found, inputs, args, kwargs, is_known=is_known, has_values=has_values)
        try:
            result = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if not is_known:
                return self.bounded(func, args, kwargs)
            return tree_map(self.fake_like(inputs), self._real(func, args, kwargs))
        flops = self._count_flops(operation, args, kwargs, result)
        work = self._count_work(func, args, kwargs, result, flops)
        # An operation that changes the shape of what it is given has another signature now, and is not remembered.
        if key is not None and operation.results is not None and signature(args, kwargs, []) == key:
            found = remembered(result, inputs)
            if found is not None:
                found.flops, found.work = flops, work
                operation.results[key] = found
        if is_known or (has_values and operation.is_mutable):
            self._follow(func, args, kwargs, result, is_known=is_known)
        return self.counted(result, func)

    def _again(
        self,
        operation: Operation,
        found: KnownOutputs,
        inputs: list[Any],
        args: Any,
        kwargs: Any,
        *,
        is_known: bool,
        has_values: bool,
    ) -> Any:
        """The result of a call with equal shapes, made anew."""
        self.flops += found.flops
        if found.work is not None:
            self.work.add(found.work)
        result: Any = None
        if found.outputs is not None:
            made_now = [made(output, inputs) for output in found.outputs]
            # Ranks on CPUs see what was made between phases once a view of it is taken.
            sees_all = self.ledger.counts_host_as_device
            outputs = zip(found.outputs, made_now, strict=True)
            self._note_made([tensor for output, tensor in outputs if output.is_new or sees_all], operation.func)
            result = made_now[0] if found.kind is None else found.kind(made_now)
        if is_known or (has_values and operation.is_mutable):
            self._follow(operation.func, args, kwargs, result, is_known=is_known)
        return result

    def counted(self, result: Any, func: Any) -> Any:
        if isinstance(result, torch.Tensor):
            self.ledger.note(result, func, self._maker)
            return result
        self._note_made([item for item in tree_iter(result) if isinstance(item, torch.Tensor)], func)
        return result

    def _note_made(self, made_now: Sequence[torch.Tensor], func: Any) -> None:
        for tensor in reversed(made_now) if func in LAST_FIRST else made_now:
            self.ledger.note(tensor, func, self._maker)

    def _count_flops(self, operation: Operation, args: Any, kwargs: Any, result: Any) -> int:
        flops = 0 if operation.flops is None else operation.flops(*args, **kwargs, out_val=result)
        self.flops += flops
        return flops

    def _count_work(self, func: Any, args: Any, kwargs: Any, result: Any, flops: int) -> OperationWork | None:
        found = work_of(func, args, kwargs, result, flops)
        if found is not None:
            self.work.add(found)
        return found

    # -- values --------------------------------------------------------------------------------------------------

    def _real(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation on the values of its arguments."""

        def real(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                return value_of(item)
            return torch.device("cpu") if isinstance(item, torch.device) else item

        args, kwargs = tree_map(real, (args, kwargs))
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    def fake_like(self, inputs: Sequence[torch.Tensor]) -> Callable[[Any], Any]:
        device = next((t.device for t in inputs if t.device.type != "cpu"), torch.device("cpu"))

        def fake(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            made = self.fake_mode.from_tensor(item)
            if device.type != "cpu":
                made = self.fake_mode.fake_tensor_converter.from_meta_and_device(
                    self.fake_mode, torch.empty_like(item, device="meta"), device
                )
            give_value(made, item)
            self.ledger.note(made, "values", self._maker)
            return made

        return fake

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any, *, is_known: bool) -> None:
        """Give results their values, where all inputs have theirs and the results are small; what is changed in place
        to something unknown loses its own."""
        outputs = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        changed = _changed(func, args, kwargs) if func._schema.is_mutable else []
        if is_known and finite.kept_alike(func, args, result):
            return
        if not (is_known and _is_worth_knowing(func, outputs or changed)):
            for tensor in changed:
                forget_value(tensor)
            return
        for tensor in changed:
            own_elements(tensor)
        reals = [t for t in tree_iter(self._real(func, args, kwargs)) if isinstance(t, torch.Tensor)]
        for output, real in zip(outputs, reals, strict=False):
            give_value(output, real)


def _is_on_cpu(tensors: torch.Tensor | Sequence[torch.Tensor]) -> bool:
    """Whether one tensor, or several that are together, are on the host."""
    first = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
    return first.is_cpu


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that an operation writes to."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            item = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_iter(item) if isinstance(t, FakeTensor)]
    return found


def _is_worth_knowing(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    if tensors and all(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns):
        return all(isinstance(t, FakeTensor) for t in tensors)  # a view of what is known
    return (
        bool(tensors)
        and all(
            isinstance(t, FakeTensor) and t.numel() <= (KNOWN_FLOATS if t.dtype.is_floating_point else KNOWN_ELEMENTS)
            for t in tensors
        )
        and torch.Tag.nondeterministic_seeded not in func.tags
        and "empty" not in func.name()
        and func is not aten.histc.default  # CPUs have none for integers
    )
