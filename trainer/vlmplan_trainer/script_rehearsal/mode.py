"""What a script cannot know on fake tensors: numbers that are unknown read as zero, and who asked is remembered.

A truth value that is unknown decides where the script goes on: those are told one by one, with file and line, and may
be given. Shapes that depend on unknown data get their upper bound.
"""

import sys
import sysconfig
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from vlmplan_trainer.gradient_sums import is_in_place
from vlmplan_trainer.rehearse.attribution import AllocationAttribution
from vlmplan_trainer.rehearse.dispatch import KNOWN_ELEMENTS, Rehearsal
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.rehearse.values import give_value, known_value, value_of
from vlmplan_trainer.script_rehearsal.generation import drawn_tokens

aten = torch.ops.aten
LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
NOT_THE_USERS = ("site-packages", "dist-packages", "/vlmplan_trainer/", "/vlmplan/", "<frozen", "<string>")
DRAWN_IN_PLACE = (aten.random_.default, aten.random_.to, getattr(aten.random_, "from"))
DRAWN = (*DRAWN_IN_PLACE, aten.randperm.default, aten.randperm.generator)
DRAWING = (aten.multinomial.default, aten.argmax.default)
ALIGNMENT_BYTES = 512
"""Of what torch's allocator hands out (``kMinBlockSize`` in ``CUDACachingAllocator.cpp``)."""
SUMS = ("allreduce_", "allreduce_coalesced_")
COPIED_BY_GLOO = "c10d::_reduce_scatter_base_"
"""gloo reduces a copy of what it is given, and hands out this rank's part of it (``reduce_scatter_tensor_coalesced``,
``ProcessGroupGloo.cpp``, torch 2.13). NCCL needs none."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """The value that is read at a line of a file: ``--assume 'x.py:120=False'``."""

    file: str
    line: int
    value: Any

    def is_of(self, path: str, line: int) -> bool:
        return line == self.line and (path == self.file or path.endswith(f"/{self.file}"))


@dataclass
class Unknowns:
    """The places that read what is unknown: (file, line, what) and how often."""

    assumptions: tuple[Assumption, ...] = ()
    reads: dict[tuple[str, int, str], int] = field(default_factory=dict)
    bounded: dict[tuple[str, int, str], int] = field(default_factory=dict)

    def assumed(self) -> Assumption | None:
        """What is given for the line that asks now."""
        if not self.assumptions:
            return None
        places = place_in_script(any_library=True), place_in_script()
        return next((one for one in self.assumptions if any(one.is_of(*place) for place in places)), None)

    def value(self, dtype: torch.dtype, *, kind: str) -> Any:
        """What an unknown number of ``dtype`` reads as, at the line that asks now."""
        given = self.assumed()
        if given is not None:
            return given.value
        key = (*place_in_script(any_library=True), kind)
        self.reads[key] = self.reads.get(key, 0) + 1
        return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0

    def bound(self, operation: str) -> None:
        """The shape of what ``operation`` returns is an upper bound."""
        key = (*place_in_script(any_library=True), operation)
        self.bounded[key] = self.bounded.get(key, 0) + 1

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        return {
            name: [{"file": f, "line": n, "what": what, "count": count} for (f, n, what), count in found.items()]
            for name, found in (("unknown_values", self.reads), ("bounded_shapes", self.bounded))
        }


def place_in_script(*, any_library: bool = False) -> tuple[str, int]:
    """File and line of the innermost frame of the user's own code; with ``any_library`` of any code but torch's."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        is_own = not any(part in path for part in NOT_THE_USERS) and not path.startswith(LIBRARIES)
        is_library = any_library and "/site-packages/" in path and "/torch/" not in path
        if is_own or is_library:
            return path, frame.f_lineno
        frame = frame.f_back
    return "", 0


class ScriptAttribution(AllocationAttribution):
    """Who asked, and the line of the user's own code that it was for."""

    own = ("/vlmplan_trainer/",)

    def __call__(self) -> str:
        name = super().__call__()
        path, line = place_in_script()
        place = f"{Path(path).name}:{line}" if path else ""
        return f"{name} {place}".strip()


class UnknownSizeError(RuntimeError):
    """Unknown numbers decide a size that has no upper bound."""


class ScriptRehearsal(Rehearsal):
    """A rehearsal of code that nobody has prepared for it."""

    def __init__(self, fake_mode: Any, ledger: Any, maker: Callable[[], str], unknowns: Unknowns) -> None:
        super().__init__(fake_mode, ledger, maker)
        self.unknowns = unknowns

    def unknown_number(self, tensor: torch.Tensor) -> Any:
        return self.unknowns.value(tensor.dtype, kind="number")

    def bounded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The largest result of an operation whose size its data decide.

        Raises UnknownSizeError where there is none.
        """
        name = func.name().partition(".")[0].removeprefix("aten::")
        if name in DECISIONS:
            return bool(self.unknowns.value(torch.bool, kind="decision"))
        make = BOUNDS.get(name)
        if make is None:
            raise UnknownSizeError(f"what {name} returns depends on numbers that a rehearsal does not have") from None
        self.unknowns.bound(name)
        return self.counted(make(*args, **kwargs), func)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and is_in_place(args, kwargs, depth=1):  # asks who called, so not from further in
            return args[0]
        if func in DRAWN:
            return self._drawn(func, args, kwargs or {})
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":
            _tell_of_equal_ranks(func, args, result)
            if self.ledger.counts_host_as_device and func._schema.name == COPIED_BY_GLOO:
                self.ledger.pass_through([args[1].numel() * args[1].element_size()])
        elif func in DRAWING and value_of(args[0]) is None:
            with unset_fake_temporarily():
                give_value(result, drawn_tokens(func, args[0], result))
        return result

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Whole numbers that are drawn on the host are known: the order of samples comes of them."""
        if func in DRAWN_IN_PLACE:
            tensor = args[0]
            result = super().__torch_dispatch__(func, (), args, kwargs)
            if tensor.device.type == "cpu" and tensor.numel() <= KNOWN_ELEMENTS and not tensor.is_floating_point():
                with unset_fake_temporarily():
                    give_value(result, func(torch.zeros(tensor.shape, dtype=tensor.dtype), *args[1:], **kwargs))
            return result
        if torch.device(kwargs.get("device") or "cpu").type != "cpu" or not isinstance(args[0], int):
            return super().__torch_dispatch__(func, (), args, kwargs)
        with unset_fake_temporarily():
            drawn = func(*args, **kwargs)
        return self.fake(drawn)


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((torch.broadcast_shapes(tensor.shape, mask.shape).numel(),))


def _unique(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    counts = tensor.new_empty((tensor.numel(),), dtype=torch.int64)
    return tensor.new_empty((tensor.numel(),)), tensor.new_empty(tensor.shape, dtype=torch.int64), counts


def _index(tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """Each mask chooses every element."""
    made: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            made.append(index)
        else:
            made.extend(index.new_empty((index.numel(),), dtype=torch.int64) for _ in range(index.dim()))
    return aten.index.Tensor(tensor, made)


def _bincount(tensor: torch.Tensor, weights: Any = None, minlength: int = 0) -> torch.Tensor:
    """As many classes as the script names, which it names where it counts on them."""
    if not minlength:
        raise UnknownSizeError("bincount counts numbers that a rehearsal does not have; give it a minlength")
    return tensor.new_empty((minlength,), dtype=torch.int64 if weights is None else weights.dtype)


DECISIONS = ("equal", "allclose")
"""They return a truth value of Python's."""
BOUNDS: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "_unique2": _unique,
    "unique_dim": _unique,
    "unique_consecutive": _unique,
    "index": _index,
    "bincount": _bincount,
}


def _tell_of_equal_ranks(func: Any, args: Any, result: Any) -> None:
    """Small known numbers stay known where ranks exchange them: the others are taken to hold the same."""
    name = func._schema.name.removeprefix("c10d::")
    with unset_fake_temporarily():
        if name in SUMS:
            for tensor in args[0]:
                value = known_value(tensor)
                if value is not None and str(args[2].op()) in ("RedOpType.SUM", "ReduceOp.SUM"):
                    give_value(tensor, value * torch.distributed.get_world_size(args[1]))
        elif name == "_allgather_base_" and value_of(args[1]) is not None:
            whole = value_of(args[1]).flatten()  # pyright: ignore[reportOptionalMemberAccess]
            times = args[0].numel() // max(1, whole.numel())
            give_value(args[0], whole.repeat(times).view(args[0].shape))
        elif name == "allgather_" and value_of(args[1][0]) is not None:
            for tensor in args[0][0]:
                give_value(tensor, value_of(args[1][0]).clone())  # pyright: ignore[reportOptionalMemberAccess]


def _pointer(tensor: Any) -> int:
    """Another for each storage, as aligned as the allocator's, where that of all fake tensors is 0: by ``data_ptr``
    accelerate finds the weights of an optimizer again when FSDP2 has sharded them (``_prepare_fsdp2`` in 1.15
    ``accelerator.py``)."""
    return ALIGNMENT_BYTES * tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.element_size()


@contextmanager
def reading_fake_tensors(unknowns: Unknowns) -> Any:
    """``bool``, ``tolist`` and ``numpy`` of fake tensors: their values where they are known, zeros where not."""

    def real(self: Any) -> torch.Tensor:
        value = value_of(self)
        with unset_fake_temporarily():
            if value is None:
                unknowns.value(self.dtype, kind="numbers")
                dtype = torch.float32 if self.dtype == torch.bfloat16 else self.dtype
                return torch.zeros(tuple(self.shape), dtype=dtype)
            return value

    def truth(self: Any) -> bool:
        given = unknowns.assumed()
        if given is not None:
            return bool(given.value)
        value = value_of(self)
        if value is None and self.numel() == 1:
            return bool(unknowns.value(self.dtype, kind="decision"))
        with unset_fake_temporarily():
            return bool(real(self))

    def listed(self: Any) -> Any:
        with unset_fake_temporarily():
            return real(self).tolist()

    def array(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return real(self).detach().numpy()

    def formatted(self: Any, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def as_array(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        found = array(self)
        return found if dtype is None else found.astype(dtype)

    with (
        replaced(FakeTensor, "__bool__", truth),
        replaced(FakeTensor, "tolist", listed),
        replaced(FakeTensor, "data_ptr", _pointer),
        replaced(FakeTensor, "numpy", array),
        replaced(FakeTensor, "__array__", as_array),
        replaced(FakeTensor, "__format__", formatted),
    ):
        yield
