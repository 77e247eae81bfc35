"""What an estimate says: phases, device, host, disk and seconds of one recipe on one cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vlmplan.architecture.model import Part
from vlmplan.engines.collectives import Collectives
from vlmplan.estimation.cautions import (
    blocks_note,
    early_stopping_note,
    evaluation_hints,
    evaluation_note,
    few_samples_caveat,
    kernels_note,
    not_counted_caveat,
    nvme_note,
    resume_caveat,
    rollout_note,
    stacked_caveat,
)
from vlmplan.hardware import Cluster
from vlmplan.memory.device import DeviceMemory, Verdict, reserved_with_room
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.host import HostMemory
from vlmplan.memory.inference_engine import InferenceEngine
from vlmplan.memory.resume import ResumeMemory
from vlmplan.memory.timeline import Timeline
from vlmplan.notes import Caveat
from vlmplan.recipe import Recipe
from vlmplan.run.saving import RunDisk, Saving, run_disk
from vlmplan.timing import EvaluationTime, StepTime, TimedStep, speed_note
from vlmplan.units import gib_text
from vlmplan.workload import Workload


class VaryingLengths(NamedTuple):
    """Samples of different lengths: where the lengths are from, those of the replayed micro batches of each order as
    padded, reserved bytes where all samples have the plan's length, and the least and most of these orders."""

    source: str
    lengths: tuple[tuple[int, ...], ...]
    fixed_reserved_bytes: int
    reserved_bytes: tuple[int, int]

    @property
    def reserved_range(self) -> tuple[int, int]:
        """At least, as where the longest samples come first, and at most."""
        return self.fixed_reserved_bytes, max(self.fixed_reserved_bytes, self.reserved_bytes[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one recipe needs on one cluster. Bytes are of the fullest GPU."""

    workload: Workload
    cluster: Cluster
    recipe: Recipe
    num_params: int
    num_trainable_params: int
    trained_by_part: Mapping[Part, int]
    """Trained parameters of each part that the model has."""
    stacked_bytes: int
    """Of a model in 4 or 8 bits: weights that no Linear holds, which bitsandbytes leaves as they are; else 0."""
    timeline: Timeline
    device: DeviceMemory
    host: HostMemory
    disk: DiskSpace
    resume: ResumeMemory
    flops_per_step: int
    collectives: tuple[Collectives, ...]
    """The collectives of one step on one rank."""
    timed: TimedStep | None
    evaluating: EvaluationTime | None = None
    """One evaluation; None where there is none, or its time is not known."""
    engine: InferenceEngine | None = None
    """vLLM on the training GPUs, which generates answers there."""
    varying: VaryingLengths | None = None
    """What samples of different lengths were taken to be; ``device`` is of the fuller of both then."""
    reserves: Callable[[int | None], int] | None = field(default=None, repr=False, compare=False)
    """What torch reserves on a device of a capacity, where that is not what decides."""

    @property
    def peak_allocated_bytes(self) -> int:
        return self.timeline.peak.total

    @property
    def reserved_with_room_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_reserved()`` on a GPU with room: pages that expandable segments keep for
        later are counted, which takes a replay. ``device.reserved_bytes`` is what torch cannot do without."""
        return self.device.reserved_bytes if self.reserves is None else reserved_with_room(self.device, self.reserves)

    @property
    def trainer_peak_bytes(self) -> int:
        """The most that the trainer's own tensors take, without vLLM beside them."""
        return max(phase.peak.total - phase.peak.inference_engine for phase in self.timeline.phases)

    @property
    def verdict(self) -> Verdict:
        return Verdict.DOES_NOT_FIT if self.host_is_short else self.device.verdict

    @property
    def host_is_short(self) -> bool:
        """Whether the host's memory is known and too small."""
        ram = self.cluster.node.host_ram_bytes
        return ram is not None and self.host.peak_bytes > ram

    @property
    def hints(self) -> list[str]:
        """What would make a setup fit that does not, where it is as simple as that."""
        hints = evaluation_hints(self.recipe.evaluation, self.timeline)
        if self.host_is_short or not self.device.fits_without_fragments:
            return hints
        return [
            *hints,
            f"its tensors take {gib_text(self.device.allocated_bytes)}: with --expandable-segments, which keeps the "
            f"allocator from holding blocks it cannot use, it fits",
        ]

    @property
    def cautions(self) -> list[str]:
        """What should be known of the numbers."""
        stacked = stacked_caveat(self.recipe, stacked_bytes=self.stacked_bytes, num_params=self.num_params)
        speed = None if self.timed is None else speed_note(self.cluster.node.gpu)
        kernels = kernels_note(self.workload.model, self.recipe)
        blocks, rollout = blocks_note(self.recipe), rollout_note(self.recipe)
        unknown = not_counted_caveat(self.workload.model)
        folder = nvme_note(self.recipe)
        evaluated = None if self.timed is None else evaluation_note(self.recipe.evaluation)
        stopped = early_stopping_note(self.recipe.evaluation)
        found = (unknown, self._few_samples, blocks, rollout, stacked, self._resume_caveat, kernels, speed, folder)
        return [note for note in (*found, evaluated, stopped) if note is not None]

    @property
    def _few_samples(self) -> Caveat | None:
        """The caveat that there are fewer samples than one step takes."""
        workload = self.workload
        return few_samples_caveat(workload.num_samples * workload.samples_per_entry, self.samples_per_step)

    @property
    def _resume_caveat(self) -> Caveat | None:
        """The caveat that a run which fits cannot go on from its checkpoints."""
        if self.resumes or self.verdict is Verdict.DOES_NOT_FIT:
            return None
        ram = self.cluster.node.host_ram_bytes
        return resume_caveat(
            device=(self.resume_device_bytes, self.device.usable_bytes),
            host=(self.resume_host_bytes, self.resume_host_bytes if ram is None else ram),
        )

    @property
    def not_counted(self) -> tuple[str, ...]:
        """What the model takes beside text that no number has."""
        return self.workload.model.not_counted

    @property
    def samples_per_step(self) -> int:
        return self.recipe.samples_per_step(self.cluster.num_gpus)

    @property
    def step_time(self) -> StepTime | None:
        """The parts of a step as expected; None where a speed is not known."""
        return None if self.timed is None else self.timed.expected

    @property
    def step_seconds(self) -> float | None:
        return None if self.step_time is None else self.step_time.total

    @property
    def samples_per_second(self) -> float | None:
        return None if self.step_seconds is None else self.samples_per_step / self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of all rows of the model's input: of both answers to each prompt in DPO, of prompts and answers where
        an encoder and a decoder take them apart."""
        if self.step_seconds is None:
            return None
        num_tokens = self.workload.seq_len + self.workload.target_tokens
        return self.recipe.rows_per_step(self.cluster.num_gpus) * num_tokens / self.step_seconds

    @property
    def num_steps(self) -> int:
        return self.workload.num_steps(self.samples_per_step)

    @property
    def resume_device_bytes(self) -> int:
        """Bytes of the fullest GPU, or of a rank on the CPU, while it goes on from a checkpoint."""
        return self.resume.phase.peak.total + self.device.overhead_bytes

    @property
    def resume_host_bytes(self) -> int:
        """Bytes of a node's host meanwhile."""
        if self.cluster.node.gpu.is_cpu:
            return self.cluster.node.num_gpus * self.resume_device_bytes
        return self.host.steady_bytes + self.resume.host_bytes

    @property
    def resumes(self) -> bool:
        """Whether there is room for going on from a checkpoint, as far as the host's memory is known."""
        ram = self.cluster.node.host_ram_bytes
        has_ram = ram is None or self.resume_host_bytes <= ram
        return has_ram and self.resume_device_bytes <= self.device.usable_bytes

    @property
    def run_disk(self) -> RunDisk:
        """What the whole run has in its output folder."""
        return self.run_disk_of(self.workload.saving)

    def run_disk_of(self, saving: Saving) -> RunDisk:
        """The disk space of the run where it is saved otherwise, with checkpoints of the same size."""
        return run_disk(
            saving,
            checkpoint_bytes=self.disk.checkpoint_bytes,
            result_bytes=self.disk.export_bytes,
            num_steps=self.num_steps,
            epochs=self.workload.epochs,
            run_seconds=self.run_seconds,
        )

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the whole run."""
        return self._num_evaluations_in(self.num_steps)

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds of all evaluations; None where that is not known. 0 where nothing is evaluated."""
        return self.evaluation_seconds_of(self.num_steps)

    def evaluation_seconds_of(self, num_steps: int) -> float | None:
        """The same of a run of ``num_steps`` over the workload's epochs."""
        if self.recipe.evaluation is None:
            return 0.0
        return None if self.evaluating is None else self._num_evaluations_in(num_steps) * self.evaluating.seconds

    def _num_evaluations_in(self, num_steps: int) -> int:
        evaluation = self.recipe.evaluation
        return 0 if evaluation is None else evaluation.num_in(num_steps, self.workload.epochs)

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all steps and evaluations, which are left out where theirs are not known (``cautions``)."""
        if self.step_seconds is None:
            return None
        return self.num_steps * self.step_seconds + (self.evaluation_seconds or 0.0)

    @property
    def run_seconds_range(self) -> tuple[float, float] | None:
        """The least and the most seconds of the run: every step at an end of its range, evaluations as many times what
        is expected of them as steps are, whose rates they have."""
        if self.timed is None or self.run_seconds is None:
            return None
        times_expected = self.run_seconds / self.timed.expected.total
        return times_expected * self.timed.fast_seconds, times_expected * self.timed.slow_seconds
