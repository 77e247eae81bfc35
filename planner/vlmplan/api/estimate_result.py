"""What ``vlmplan.estimate`` returns. Bytes are whole numbers and of the fullest GPU, seconds are floats."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.planned import Planned
from vlmplan.api.record import Record, Verdict
from vlmplan.api.way_out import Answer


class Phase(Record):
    """A phase of the run on the fullest GPU."""

    @property
    def name(self) -> str:
        """``load``, ``init``, ``forward``, ``backward``, ``step`` or ``save``."""
        return self._values["name"]

    @property
    def resident_bytes(self) -> int:
        """What is live when it ends."""
        return self._values["resident_bytes"]

    @property
    def peak_bytes(self) -> int:
        """Bytes of all tensors at the phase's highest moment."""
        return self._values["peak_bytes"]

    @property
    def components_at_peak(self) -> Mapping[str, int]:
        """Weights, gradients, optimizer states and the rest at that moment; they add up to ``peak_bytes``."""
        return self.as_dict()["components_at_peak"]

    def __repr__(self) -> str:
        return f"Phase({self.name}: {self.resident_bytes} bytes, {self.peak_bytes} at its peak)"


class EstimateResult(Answer, Planned):
    """One setup on one kind of GPU: what ``vlmplan estimate`` answers (schema ``vlmplan.estimate/1``)."""

    @property
    def verdict(self) -> Verdict:
        """``"fits"`` with a reserve that stays free, ``"tight"`` without it, or ``"does_not_fit"``."""
        return self._values["verdict"]

    @property
    def fits(self) -> bool:
        """Whether it runs: the verdict is ``"fits"`` or ``"tight"``."""
        return self.verdict != "does_not_fit"

    @property
    def model(self) -> str:
        """The model by the name that it was given by."""
        return self._values["model"]["id"]

    @property
    def num_params(self) -> int:
        """All parameters, without adapters."""
        return self._values["model"]["num_params"]

    @property
    def num_trainable_params(self) -> int:
        """Parameters that are trained, adapters included."""
        return self._values["model"]["num_trainable_params"]

    @property
    def gpu(self) -> str:
        """The GPU by its name in the catalog."""
        return self._values["gpu"]["id"]

    @property
    def num_gpus(self) -> int:
        """GPUs in all, over all machines."""
        return self._values["gpu"]["count"] * self._values["gpu"]["num_nodes"]

    @property
    def recipe(self) -> Mapping[str, Any]:
        """How it is trained: every setting as it was resolved, and the samples."""
        return self.as_dict()["recipe"]

    @property
    def usable_bytes(self) -> int:
        """What a process can get of one GPU."""
        return self._values["gpu"]["usable_bytes"]

    @property
    def peak_device_bytes(self) -> int:
        """The highest that nvidia-smi shows for the process: reserved bytes, CUDA context and NCCL."""
        return self._values["peak_device_bytes"]

    @property
    def peak_reserved_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_reserved()``."""
        return self._values["peak_reserved_bytes"]

    @property
    def peak_allocated_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_allocated()``: all tensors."""
        return self._values["peak_allocated_bytes"]

    @property
    def free_bytes(self) -> int:
        """Usable bytes that are left; below zero where it does not fit."""
        return self.usable_bytes - self.peak_device_bytes

    @property
    def peak_phase(self) -> str:
        """The name of the phase with the highest peak."""
        return self._values["peak_phase"]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a run, in order."""
        return tuple(Phase(text) for text in self._more["phases"])

    @property
    def components_at_peak(self) -> Mapping[str, int]:
        """Weights, gradients, optimizer states and the rest at the highest moment; they add up to
        ``peak_allocated_bytes``."""
        return self.as_dict()["components_at_peak"]

    @property
    def host_bytes_per_node(self) -> int:
        """Host memory that each machine needs at its fullest."""
        return self._values["host_bytes_per_node"]

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on disk, to go on from."""
        return self._values["checkpoint_bytes"]

    @property
    def export_bytes(self) -> int:
        """What the trained model, or its adapters, takes on disk."""
        return self._values["export_bytes"]

    @property
    def step_seconds(self) -> float | None:
        """Seconds of an optimizer step; None where a speed is not known."""
        return self._values["step_seconds"]

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """Seconds of a step at best and at worst."""
        found = self._values["step_seconds_range"]
        return None if found is None else (found[0], found[1])

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._more["num_steps"]

    @property
    def run_seconds(self) -> float | None:
        """Seconds of training in all, without start-up, evaluation and checkpoints; None where a speed is not known."""
        return None if self.step_seconds is None else self.num_steps * self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all GPUs together; None where a speed is not known."""
        return self._values["tokens_per_second"]

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of all GPUs together; None where a speed is not known."""
        return self._values["samples_per_second"]

    @property
    def command(self) -> str:
        """The command line that asks the same. A model that was given as a mapping is in it by its name alone."""
        return self._more["command"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.model} on {self.num_gpus} x {self.gpu}: {self.verdict}>"
