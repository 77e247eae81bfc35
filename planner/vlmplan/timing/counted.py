"""Seconds of a step whose operations were counted one by one in a rehearsal, by the same rates as a plan's.

What the host computes (an optimizer that is offloaded), DeepSpeed's hooks, kernels that are not run, data loading
beyond ``STEP_SECONDS`` and what a rank waits for others are not among them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.communication import CommunicationSeconds, communication_seconds
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.hardware import Cluster, Gpu
from vlmplan.phase_names import BACKWARD, FORWARD, GENERATE, REFERENCE, SCORE, STEP, SYNC
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan.timing.overlap import shown_seconds
from vlmplan.timing.rates import (
    STEP_SECONDS,
    Rates,
    Scenario,
    gpu_rates,
    host_copy_bytes_per_second,
    without_tf32,
)
from vlmplan.timing.roofline import BusySeconds, product_seconds
from vlmplan.timing.step import StepTime, TimedStep, bound_of

TF32 = "tf32"
PRECISIONS: Mapping[str, Precision] = {
    "bfloat16": Precision.BF16,
    "float16": Precision.FP16,
    "float32": Precision.FP32,
    TF32: Precision.FP32,
}
"""What products compute in, as rehearsals call it; others are taken to be as fast as float32."""
GENERATING, INFERRING = (GENERATE,), ("inference", REFERENCE, SCORE, SYNC)
"""Phases between steps: of answers, and of what else is looked up without gradients."""
KINDS: Mapping[str, CollectiveKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    **dict.fromkeys(
        ("allgather", "broadcast", "reduce", "gather", "scatter", "send", "recv"), CollectiveKind.ALL_GATHER
    ),
}
"""By how their names begin, the first that does. Everything crosses each link of a ring once in an all-gather, a
broadcast, and what goes to one rank or comes from one; between two ranks it crosses one link, which is assumed to take
as long."""
PHASES = {phase.value: phase for phase in StepPhase}
"""Others lie between steps, where collectives hide behind nothing, as they do in the optimizer's step."""


class CountedWork(NamedTuple):
    """What one phase of one step makes a GPU do. ``products``: how many of each type, FLOPs and bytes;
    ``attention_flops`` by type."""

    phase: str
    step: int
    products: Mapping[tuple[str, int, int], int]
    attention_flops: Mapping[str, int]
    moved_bytes: int
    copied_bytes: int
    num_kernels: int


@dataclass(frozen=True, slots=True)
class CountedCollectives:
    """The collectives of one kind in one phase of a step, by the name that torch's process groups give them.
    ``group_size`` and ``ranks_apart`` are as ``engines.collectives`` has them."""

    phase: str
    kind: str
    count: int
    num_bytes: int
    group_size: int | None = None
    ranks_apart: int = 1


def timed_work(
    works: Sequence[CountedWork], collectives: Sequence[CountedCollectives], cluster: Cluster, *, num_steps: int
) -> TimedStep | None:
    """The last of ``num_steps`` steps, what comes between steps as on average; None if a speed is not known, or a kind
    of collective."""
    known = [found for collective in collectives if (found := _collectives(collective)) is not None]
    communication = communication_seconds(tuple(known), cluster)
    if communication is None or not works or len(known) < len(collectives):
        return None
    steps: dict[Scenario, StepTime] = {}
    busy: dict[Scenario, tuple[BusySeconds, float]] = {}
    for scenario in Scenario:
        phases = [(work, _phase(work, cluster.node.gpu, scenario)) for work in works]
        if any(seconds is None for _, seconds in phases):
            return None
        timed = [(one, seconds) for one, seconds in phases if seconds is not None]
        steps[scenario] = _step(timed, communication, num_steps, scenario)
        last = [seconds for one, seconds in timed if one.step == num_steps and one.phase in (FORWARD, BACKWARD)]
        waiting = sum(max(0.0, seconds.launching - seconds.busy.total) for seconds in last)
        busy[scenario] = sum((seconds.busy for seconds in last), BusySeconds()), waiting
    work, waiting = busy[Scenario.EXPECTED]
    return TimedStep(
        expected=steps[Scenario.EXPECTED],
        slow_seconds=steps[Scenario.SLOW].total,
        fast_seconds=steps[Scenario.FAST].total,
        work=work,
        waiting=waiting,
        slow_bound=bound_of(steps[Scenario.SLOW], *busy[Scenario.SLOW]),
    )


class _PhaseSeconds(NamedTuple):
    """What keeps the GPU busy, and what asking for it takes the host."""

    busy: BusySeconds
    copying: float
    launching: float

    @property
    def total(self) -> float:
        return max(self.busy.total + self.copying, self.launching)


def _phase(work: CountedWork, gpu: Gpu, scenario: Scenario) -> _PhaseSeconds | None:
    speeds: dict[str, Rates] = {}
    computed = {*(name for name, _, _ in work.products), *work.attention_flops}
    for name in {*computed, "bfloat16"}:
        found = rates_of_type(gpu, name, scenario)
        if found is None and name in computed:
            return None
        if found is not None:
            speeds[name] = found
    bus = host_copy_bytes_per_second(gpu, scenario)
    any_speed = next(iter(speeds.values()), None)
    if any_speed is None or (bus is None and work.copied_bytes):
        return None
    return _PhaseSeconds(
        busy=BusySeconds(
            matmuls=sum(
                count * product_seconds(flops, num_bytes, speeds[name], speeds[name].matmul_flops_per_second)
                for (name, flops, num_bytes), count in work.products.items()
            ),
            attention=sum(
                flops / speeds[name].attention_flops_per_second for name, flops in work.attention_flops.items()
            ),
            memory=work.moved_bytes / any_speed.bytes_per_second
            + (work.num_kernels - sum(work.products.values())) * any_speed.kernel_ramp_seconds,
        ),
        copying=work.copied_bytes / bus if bus is not None else 0.0,
        launching=work.num_kernels * any_speed.kernel_seconds,
    )


def rates_of_type(gpu: Gpu, name: str, scenario: Scenario) -> Rates | None:
    """What ``gpu`` reaches where products compute in this type; None where that is not known. float32 is without tensor
    cores, as torch has it unless a script asks for TF32."""
    if name != TF32 and PRECISIONS.get(name, Precision.FP32) is Precision.FP32:
        gpu = without_tf32(gpu)
    return gpu_rates(gpu, Recipe(precision=PRECISIONS.get(name, Precision.FP32)), scenario)


def _step(
    timed: Sequence[tuple[CountedWork, _PhaseSeconds]],
    communication: CommunicationSeconds,
    num_steps: int,
    scenario: Scenario,
) -> StepTime:
    def of_last(name: str) -> float:
        return sum(seconds.total for one, seconds in timed if one.phase == name and one.step == num_steps)

    def between(names: Iterable[str]) -> float | None:
        """Seconds of the phases of these names that lie between the first step and the last: what comes before all is
        done once."""
        found = [seconds.total for one, seconds in timed if one.phase in names and 0 < one.step < num_steps]
        return sum(found) / max(1, num_steps - 1) if found else None

    forward, backward = of_last(FORWARD), of_last(BACKWARD)
    return StepTime(
        forward=forward,
        recompute=0.0,
        backward=backward,
        communication=shown_seconds(communication, forward, backward, scenario),
        optimizer=of_last(STEP),
        offload=0.0,
        fixed=STEP_SECONDS.at(scenario),
        generation=between(GENERATING),
        scoring=between(INFERRING),
    )


def _collectives(one: CountedCollectives) -> Collectives | None:
    """The collectives as an engine's; None for a kind that is not known."""
    kind = next((kind for name, kind in KINDS.items() if one.kind.startswith(name)), None)
    if kind is None:
        return None
    phase = PHASES.get(one.phase, StepPhase.STEP)
    return Collectives(kind, phase, max(1, one.count), one.num_bytes, one.group_size, one.ranks_apart)
