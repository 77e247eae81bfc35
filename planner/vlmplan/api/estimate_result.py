"""What ``vlmplan.estimate`` returns. Bytes are whole numbers and of the fullest GPU, seconds are floats."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.planned import Planned
from vlmplan.api.record import Record, Value, Verdict
from vlmplan.api.way_out import Answer


class Phase(Record):
    """A phase of the run on the fullest GPU."""

    name = Value[str]("``load``, ``init``, ``forward``, ``backward``, ``step`` or ``save``.")
    resident_bytes = Value[int]("What is live when it ends.")
    peak_bytes = Value[int]("Bytes of all tensors at the phase's highest moment.")
    components_at_peak = Value[Mapping[str, int]](
        "Weights, gradients, optimizer states and the rest at that moment; they add up to ``peak_bytes``."
    )

    def __repr__(self) -> str:
        return f"Phase({self.name}: {self.resident_bytes} bytes, {self.peak_bytes} at its peak)"


class EstimateResult(Answer, Planned):
    """One setup on one kind of GPU: what ``vlmplan estimate`` answers (schema ``vlmplan.estimate/1``)."""

    verdict = Value[Verdict](
        '``"fits"`` with a reserve that stays free, ``"tight"`` without it, or ``"does_not_fit"``.'
    )
    model = Value[str]("The model by the name that it was given by.", at="model.id")
    num_params = Value[int]("All parameters, without adapters.", at="model.num_params")
    num_trainable_params = Value[int](
        "Parameters that are trained, adapters included.", at="model.num_trainable_params"
    )
    gpu = Value[str]("The GPU by its name in the catalog.", at="gpu.id")
    recipe = Value[Mapping[str, Any]]("How it is trained: every setting as it was resolved, and the samples.")
    usable_bytes = Value[int]("What a process can get of one GPU.", at="gpu.usable_bytes")
    peak_device_bytes = Value[int](
        "The highest that nvidia-smi shows for the process: reserved bytes, CUDA context and NCCL; of expandable "
        "segments without the pages that they keep while there is room."
    )
    peak_reserved_bytes = Value[int](
        "What torch's allocator reserves at most, without the pages that expandable segments keep while there is room."
    )
    reserved_with_room_bytes = Value[int]("The highest of ``torch.cuda.memory_reserved()`` on a GPU with room.")
    peak_allocated_bytes = Value[int]("The highest of ``torch.cuda.memory_allocated()``: all tensors.")
    peak_phase = Value[str]("The name of the phase with the highest peak.")
    components_at_peak = Value[Mapping[str, int]](
        "Weights, gradients, optimizer states and the rest at the highest moment; they add up to "
        "``peak_allocated_bytes``."
    )
    host_bytes_per_node = Value[int]("Host memory that each machine needs at its fullest.")
    checkpoint_bytes = Value[int]("What a checkpoint takes on disk, to go on from.")
    export_bytes = Value[int]("What the trained model, or its adapters, takes on disk.")
    step_seconds = Value[float | None]("Seconds of an optimizer step; None where a speed is not known.")
    evaluation = Value[Mapping[str, Any] | None](
        "The evaluations of the run: ``count`` of them, ``samples`` and ``batches`` of each, ``batch_seconds``, and "
        "the ``seconds`` of all; what is not known is None, and the whole where nothing is evaluated."
    )
    step_seconds_range = Value[tuple[float, float] | None]("Seconds of a step at best and at worst.")
    tokens_per_second = Value[float | None]("Tokens per second of all GPUs together; None where a speed is not known.")
    samples_per_second = Value[float | None](
        "Samples per second of all GPUs together; None where a speed is not known."
    )

    @property
    def fits(self) -> bool:
        """Whether it runs: the verdict is ``"fits"`` or ``"tight"``."""
        return self.verdict != "does_not_fit"

    @property
    def num_gpus(self) -> int:
        """GPUs in all, over all machines."""
        return self._values["gpu"]["count"] * self._values["gpu"]["num_nodes"]

    @property
    def free_bytes(self) -> int:
        """Usable bytes that are left; below zero where it does not fit."""
        return self.usable_bytes - self.peak_device_bytes

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a run, in order."""
        return tuple(Phase(text) for text in self._more["phases"])

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self._more["num_steps"]

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all steps and evaluations, without start-up and checkpoints; None where a speed is not known.
        Evaluations are left out where ``evaluation`` does not say their seconds."""
        if self.step_seconds is None:
            return None
        seconds = None if self.evaluation is None else self.evaluation["seconds"]
        return self.num_steps * self.step_seconds + (seconds or 0.0)

    @property
    def run_seconds_range(self) -> tuple[float, float] | None:
        """``run_seconds`` at best and at worst; evaluations are as many times what is expected as steps are."""
        if self.run_seconds is None or self.step_seconds is None or self.step_seconds_range is None:
            return None
        fast, slow = self.step_seconds_range
        times_expected = self.run_seconds / self.step_seconds
        return times_expected * fast, times_expected * slow

    @property
    def command(self) -> str:
        """The command line that asks the same. A model that was given as a mapping is in it by its name alone."""
        return self._more["command"]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.model} on {self.num_gpus} x {self.gpu}: {self.verdict}>"
