"""Messages between ranks that are not there: counted, and answered at once.

Bytes are those of the larger side on this rank: what ``all_gather`` fills, what ``reduce_scatter`` reads, what
``all_reduce`` and ``broadcast`` work on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed._meta_registrations import _META_FUNCTIONS
from torch.futures import Future
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_iter

from vlmplan_trainer.rehearse.device import NAME

BACKEND = "rehearsal"


class FinishedAllReduce(dist.Work):
    """An all-reduce that is done, and whose future has its tensors, as the reducer of ``DistributedDataParallel`` asks
    for. It keeps none of them alive."""

    newest: ClassVar["FinishedAllReduce | None"] = None
    """The last one; C++ asks at once, and finds the methods here only while the object lives."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = [ref(tensor) for tensor in tensors]
        FinishedAllReduce.newest = self

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([tensor() for tensor in self._tensors])
        return future


def _reduced(tensors: Sequence[torch.Tensor], *more: Any) -> Any:
    if not tensors[0].is_floating_point():
        return _META_FUNCTIONS["allreduce_"](tensors, *more)
    return tensors, FinishedAllReduce(tensors).boxed()


ANSWERS: dict[str, Callable[..., Any]] = {**_META_FUNCTIONS, "allreduce_": _reduced}
"""torch's own for meta tensors: what was given, and work that is done. Through its dispatcher they take ten times as
long."""


class Group(NamedTuple):
    """Ranks that take part where not all do: how many, and how far each is from the next by its number."""

    size: int
    ranks_apart: int


@dataclass(slots=True)
class Traffic:
    """One kind of collective of one phase among one kind of group."""

    count: int = 0
    num_bytes: int = 0


@dataclass
class Collectives:
    """What was sent, by kind."""

    key: tuple[str, int] = ("", 0)
    """Phase and step."""
    traffic: dict[tuple[str, int, str, Group | None], Traffic] = field(default_factory=dict)

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"phase": phase, "step": step, "kind": kind, "count": one.count, "num_bytes": one.num_bytes}
            | ({} if group is None else {"group_size": group.size, "ranks_apart": group.ranks_apart})
            for (phase, step, kind, group), one in self.traffic.items()
        ]

    def count(self, kind: str, num_bytes: int, group: Group | None = None) -> None:
        """One more of ``num_bytes``; ``group``: None where all ranks take part."""
        entry = self.traffic.setdefault((*self.key, kind, group), Traffic())
        entry.count += 1
        entry.num_bytes += num_bytes

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        kind = func._schema.name.removeprefix("c10d::").strip("_")
        if kind != "barrier":
            sizes = [_bytes_of(args[0])] if kind == LIST else [_bytes_of(one) for one in tree_iter(args)]
            self.count(kind, max(sizes, default=0), _group_of(func, args))
        return ANSWERS[func._schema.name.removeprefix("c10d::")](*args, *kwargs.values())


def _group_of(func: Any, args: Any) -> Group | None:
    place = next(place for place, one in enumerate(func._schema.arguments) if one.name == "process_group")
    unboxed: Any = dist.ProcessGroup.unbox(args[place])
    ranks = dist.get_process_group_ranks(unboxed)
    if len(ranks) == dist.get_world_size():
        return None
    return Group(len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1)


LIST = "allgather"
"""An all-gather into a list of tensors, one for each rank."""


def _bytes_of(tensors: Any) -> int:
    return sum([t.numel() * t.element_size() for t in tree_iter(tensors) if isinstance(t, torch.Tensor)])


def register(device: str | None) -> None:
    """Make the backend known for the host and ``device``, where there is one."""
    devices = ["cpu"] if device is None else ["cpu", device]
    dist.Backend.register_backend(BACKEND, _make, extended_api=True, devices=devices)


def start(rank: int, num_ranks: int, *, has_device: bool) -> None:
    """A process group of any size, of which only this rank runs."""
    register(NAME if has_device else None)
    dist.init_process_group(BACKEND, store=FakeStore(), rank=rank, world_size=num_ranks)


def _make(common: Any, options: Any) -> Any:
    create: Any = FakeProcessGroup._create_internal  # torch's stub does not know of the options
    return create(common.group_rank, common.group_size, options)
