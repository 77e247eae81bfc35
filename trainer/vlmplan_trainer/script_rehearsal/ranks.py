"""Process groups of a script: of any size, of which one rank runs; objects that ranks exchange are this rank's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from vlmplan_trainer.rehearse import collectives
from vlmplan_trainer.rehearse.replaced import replaced, replaced_wherever_imported

HOST = torch.device("cpu")


@contextmanager
def running_alone(rank: int, num_ranks: int, *, device: str | None) -> Iterator[None]:
    """``init_process_group`` of any backend makes groups of which only this rank runs."""
    import accelerate.utils.random as random_states

    collectives.register(device)
    answers = _groups(rank, num_ranks, device) | _objects(rank)
    with ExitStack() as stack:
        for name, value in answers.items():
            for module in (dist, dist.distributed_c10d):
                stack.enter_context(replaced(module, name, value))
        # the first rank's random numbers are sent to the others
        synchronise = replaced_wherever_imported(random_states, "synchronize_rng_states", _nothing)
        stack.enter_context(synchronise)
        # a reducer's clock for cards is not in a torch for CPUs (``c10d/logger.cpp``)
        stack.enter_context(replaced(dist.Logger, "set_runtime_stats_and_log", _nothing))
        yield


@contextmanager
def one_host() -> Iterator[None]:
    """A tensor that is asked for on ``cpu:1`` is on ``cpu``; torch says so of every tensor but a fake one."""
    normalised = FakeTensor._normalize_fake_device

    def without_index(device: torch.device) -> torch.device:
        return normalised(HOST if device.type == "cpu" else device)

    with replaced(FakeTensor, "_normalize_fake_device", staticmethod(without_index)):
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _groups(rank: int, num_ranks: int, device: str | None) -> dict[str, Callable[..., Any]]:
    start, make_group, named = dist.init_process_group, dist.new_group, dist.get_backend

    def started(*args: Any, **kwargs: Any) -> None:
        if not dist.is_initialized():
            dist.set_debug_level(dist.DebugLevel.OFF)  # TORCH_DISTRIBUTED_DEBUG=DETAIL compares what ranks send
            start(collectives.BACKEND, store=FakeStore(), rank=rank, world_size=num_ranks)

    def made(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        return make_group(ranks, backend=collectives.BACKEND)

    def named_as_real(group: Any = None) -> str:
        found = named(group)
        return ("nccl" if device else "gloo") if found == collectives.BACKEND else found

    return {"init_process_group": started, "new_group": made, "get_backend": named_as_real}


def _objects(rank: int) -> dict[str, Callable[..., Any]]:
    """Names of parameters are torch's: they are given by name too."""

    def gather(object_list: list[Any], obj: Any, *args: Any, **kwargs: Any) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_here(obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if scatter_object_input_list:
            scatter_object_output_list[0] = scatter_object_input_list[rank % len(scatter_object_input_list)]

    return {
        "all_gather_object": gather,
        "gather_object": gather_here,
        "scatter_object_list": scatter,
        "broadcast_object_list": _nothing,
        "barrier": _nothing,
        "monitored_barrier": _nothing,
    }
