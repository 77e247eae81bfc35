"""Peaks of memory by phase, as the plan names them: CUDA's own counters, or the storages alive on CPU ranks.

On a GPU ``torch.cuda.max_memory_allocated`` counts what torch's tensors take. A CPU has no such counter, so a dispatch
mode notes every storage that an operation returns and when it goes; the phases of a plan for CPU ranks can so be
compared too. What an optimizer or an all-gather holds is in the storages like everything else.
"""

import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATE, INIT, LOAD, REFERENCE, SAVE, SCORE, STEP
from vlmplan_trainer.gloo_threads import rest
from vlmplan_trainer.gradient_sums import is_in_place
from vlmplan_trainer.ranks import of_all_ranks

PHASES = (LOAD, INIT, GENERATE, SCORE, REFERENCE, FORWARD, BACKWARD, STEP, EVALUATION, SAVE)
"""Those of a plan."""


class LiveStorages(TorchDispatchMode):
    """Bytes of all storages that operations under this mode have made and that still exist. Fake tensors, by which
    sharded ones find the shapes of results, have none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        """Bytes by storage."""
        self.num_bytes = self.peak_bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and functions around this one would hide who called the operation."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # DTensor, torchao's: they call operations on what they wrap, which come here
        if func is torch.ops.aten.add.Tensor and is_in_place(args, kwargs, depth=1):
            return args[0].add_(args[1])
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and not isinstance(leaf, FakeTensor):
                self._note(leaf.untyped_storage())
        return out

    def count(self, *tensors: torch.Tensor) -> None:
        """Note tensors that were made outside the mode."""
        for tensor in tensors:
            self._note(tensor.untyped_storage())

    def resized(self, storage: Any) -> None:
        """A storage whose tensors stay may have another size now."""
        key = storage._cdata
        if key in self.sizes:
            self._change(key, storage.nbytes())

    def restart_peak(self) -> None:
        """Look for the highest moment from here on."""
        self.peak_bytes = self.num_bytes

    def _note(self, storage: Any) -> None:
        key = storage._cdata
        if key in self.sizes:
            return
        num_bytes = storage.nbytes()
        self.sizes[key] = 0
        self._change(key, num_bytes)
        weakref.finalize(storage, self._forget, key)

    def _change(self, key: int, num_bytes: int) -> None:
        self.num_bytes += num_bytes - self.sizes[key]
        self.sizes[key] = num_bytes
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)

    def _forget(self, key: int) -> None:
        self.num_bytes -= self.sizes.pop(key)


def _held_here(weight: torch.Tensor) -> torch.Tensor:
    """This rank's part of a weight that FSDP2 has sharded, whose own storage is as large as the whole and not there."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def quantisation_tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What bitsandbytes keeps beside packed weights: scales, their own scales, tables."""
    for module in model.modules():
        places = (getattr(module, "state", None), getattr(module, "weight", None))  # of 8 bits; from the first use on
        yield from (scales for place in places if isinstance(scales := getattr(place, "SCB", None), torch.Tensor))
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            yield from (value for value in vars(state).values() if isinstance(value, torch.Tensor))
            state = state.state2


@dataclass(slots=True)
class PhaseMemory:
    """Bytes of one rank: when the phase ends, and at its highest point."""

    resident_bytes: int = 0
    peak_bytes: int = 0


class Meter:
    """Memory and seconds of the phases of a run on this rank.

    ``num_steps``: optimizer steps that are followed on a CPU; later ones run without the cost of following every
    storage, but for the first evaluation. A GPU counts by itself, so there all are: the longest samples may come late.
    """

    def __init__(self, device: torch.device, *, num_steps: int = 3) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._storages = None if self._cuda is not None else LiveStorages()
        self._steps_left = num_steps
        self.memory: dict[str, PhaseMemory] = {}
        self.seconds: dict[str, float] = {}
        self.peak_reserved_bytes = self.peak_device_bytes = 0
        self.in_progress: str | None = None
        """The phase that runs now, or in which the run failed."""
        self.step = 0
        """The optimizer step that runs now, counted from 1; 0 before the first."""

    @property
    def is_following(self) -> bool:
        return self._cuda is not None or self._steps_left > 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what runs inside as the phase ``name``: of one that comes again the highest point and last end."""
        outer, self.in_progress = self.in_progress, name
        follows = self.is_following or (name == EVALUATION and name not in self.memory)
        if follows and self._storages is not None:
            rest()  # gradients that gloo still holds are of the phase before
        start = time.perf_counter()
        with self._mode() if follows else nullcontext():
            self._reset_peak()
            yield
            if follows:
                now, peak = self._bytes()
                before = self.memory.get(name)
                self.memory[name] = PhaseMemory(now, peak if before is None else max(before.peak_bytes, peak))
        self.in_progress = outer
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def start_step(self) -> None:
        self.step += 1

    def end_step(self) -> None:
        self._steps_left = max(0, self._steps_left - 1)
        if self._cuda is not None:
            reserved = torch.cuda.max_memory_reserved(self._cuda)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
            free, total = torch.cuda.mem_get_info(self._cuda)
            self.peak_device_bytes = max(self.peak_device_bytes, total - free)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most in any phase that a plan has."""
        return max((self.memory[name].peak_bytes for name in PHASES if name in self.memory), default=0)

    def bytes_in_progress(self) -> tuple[int, int] | None:
        """What tensors take now, and at most since the phase began; None on a CPU once storages are not followed."""
        return self._bytes() if self.is_following else None

    def count(self, model: torch.nn.Module) -> None:
        """Add the weights of a model that came into being unseen (read from files by threads of transformers')."""
        if self._storages is not None:
            weights = [*map(_held_here, model.parameters())]
            shards = [getattr(weight, "ds_tensor", weight) for weight in weights]  # of ZeRO-3
            self._storages.count(*weights, *shards, *model.buffers(), *quantisation_tensors(model))

    def resized(self, storage: Any) -> None:
        """A storage whose tensors stay may have another size now; a GPU counts it by itself."""
        if self._storages is not None:
            self._storages.resized(storage)

    def take_highest_of_ranks(self) -> None:
        """What the fullest rank of each phase took instead of what this one did; the highest of a plan's phases is of
        the fullest of all. Every rank calls it, when nothing more is to be measured."""
        ranks = of_all_ranks((self.memory, self.peak_reserved_bytes, self.peak_device_bytes))
        self.peak_reserved_bytes = max(reserved for _, reserved, _ in ranks)
        self.peak_device_bytes = max(device for _, _, device in ranks)
        for name in self.memory:
            found = [memory[name] for memory, _, _ in ranks if name in memory]
            resident, peak = max(one.resident_bytes for one in found), max(one.peak_bytes for one in found)
            self.memory[name] = PhaseMemory(resident, peak)

    def count_earlier(self, name: str) -> None:
        """What a GPU has counted until now, as the phase ``name``; a CPU counts within phases alone."""
        if self._cuda is not None:
            self.memory[name] = PhaseMemory(*self._bytes())

    def _mode(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._storages is None else self._storages

    def _reset_peak(self) -> None:
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
        elif self._storages is not None:
            self._storages.restart_peak()

    def _bytes(self) -> tuple[int, int]:
        if self._cuda is not None:
            return torch.cuda.memory_allocated(self._cuda), torch.cuda.max_memory_allocated(self._cuda)
        assert self._storages is not None
        return self._storages.num_bytes, self._storages.peak_bytes
