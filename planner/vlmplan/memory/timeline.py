"""The phases of a run: an engine's walk and a trace of its micro batch, through a tracker of peaks.

    load → init → (sync) → (generate) → forward → (reference) → backward → step → (evaluation) → save

``forward`` includes the loss, ``reference`` is the forward of what a preference loss is compared with, ``backward``
includes the gradient reduction. Phases are those of a later step; the first step lacks the optimizer's states until it
ends. All are of one rank: the one whose highest moment after ``init``, until which ranks are alike, is the highest of
all. Another rank may have a higher peak in a phase, but none as high as that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.engines.choice import engine_of
from vlmplan.engines.collectives import arrivals
from vlmplan.engines.components import Components, higher
from vlmplan.engines.coordinator.module_order import number_of_following
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import Component
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.zero3_gathers import read_weights
from vlmplan.memory.evaluation import Evaluated, gathers_behind
from vlmplan.memory.first_reads import at_first_read
from vlmplan.memory.peaks import MicroBatchReplay, PeakTracker, Stretch
from vlmplan.memory.phases import Phase, num_waiting
from vlmplan.memory.ranks import WalkedStep, highest_rank
from vlmplan.memory.rollout import Rollout
from vlmplan.phase_names import BACKWARD, EVALUATION, FORWARD, GENERATE, INIT, LOAD, REFERENCE, SAVE, STEP
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Reference

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.replay import GatherReplay


class Timeline(NamedTuple):
    """The phases of a run on the GPU of one rank."""

    phases: tuple[Phase, ...]
    rank: int = 0

    @property
    def peak_phase(self) -> Phase:
        """The phase with the highest moment; the first of equals."""
        return max(self.phases, key=lambda phase: phase.peak.total)

    @property
    def peak(self) -> Components:
        return self.peak_phase.peak


class StartedRun:
    """A run after its first step on one rank, from which a later step with any micro batch goes on.

    A step leaves an engine as it was before, so one walk from load to the first step serves all micro batches.
    ``recipe`` may differ from theirs in what ``Recipe.without_micro_batch`` leaves out.
    """

    def __init__(
        self,
        table: ParameterTable,
        recipe: Recipe,
        *,
        num_ranks: int = 1,
        rank: int | None = None,
        is_on_cpu: bool = False,
        read_bytes: int = 0,
        room_bytes: int | None = None,
        has_stepped: bool = True,
    ) -> None:
        """``rank`` looks at one rank instead of the one with the highest peak. ``is_on_cpu``: the ranks' devices are
        the host itself; ``read_bytes``: what the rank that reads the checkpoint holds of it there
        (``host.read_bytes``). ``room_bytes``: ``Engine.room_bytes``. ``has_stepped``: else before its first step."""
        self._table, self._is_of_any_rank = table, rank is None
        self._alike: Callable[..., StartedRun] = partial(
            StartedRun,
            table,
            recipe,
            num_ranks=num_ranks,
            is_on_cpu=is_on_cpu,
            read_bytes=read_bytes,
            room_bytes=room_bytes,
        )
        self._of_rank = cache(self._alike)
        self._tracker = tracker = PeakTracker()
        self._engine = engine = engine_of(
            table, recipe, num_ranks=num_ranks, rank=rank, sink=tracker, room_bytes=room_bytes
        )
        self._load = _load(engine, tracker, is_on_cpu=is_on_cpu, read_bytes=read_bytes)
        engine.build()
        self._init = _ended(INIT, tracker)
        if has_stepped:
            engine.use_first()
            engine.step(is_first=True)
        self._first_step = Phase(name=STEP, resident=tracker.now(), peak=tracker.peak)

    def timeline(
        self,
        trace: Trace,
        recipe: Recipe,
        evaluated: Evaluated | None = None,
        *,
        batch_bytes: int = 0,
        first: Trace | None = None,
    ) -> Timeline:
        """The phases with a later step whose micro batches are like ``trace``, that of ``recipe``, and with what is
        ``evaluated`` after it. ``batch_bytes`` of each micro batch that waits are not among them, but count in which
        rank has the highest peak. ``first``: the first micro batch of the run, where that is another; forward and
        backward have its peak where it is higher."""
        engine, tracker = self._engine, self._tracker
        engine.recipe = recipe  # weights come and go by the loss, and by what is generated between micro batches

        def highest(phases: Iterable[Phase]) -> int:
            return max([phase.peak.total + num_waiting(recipe, phase.name) * batch_bytes for phase in phases])

        earlier = self._reach_last_micro_batch(trace, recipe.grad_accum)
        within: tuple[Phase, ...] = ()
        if isinstance(evaluated, Rollout) and evaluated.is_within_step:
            within = evaluated.phases(engine, tracker, trace)
        replay = MicroBatchReplay(engine, tracker, trace)
        forwards = self._forward(replay)
        stretches, backward, step = self._backward_and_step(replay, earlier)
        *forwards, backward = self._with_behind([*forwards, backward], trace, evaluated)
        *forwards, backward = self._with_first_micro_batch([*forwards, backward], trace, recipe, first)
        rollout, evaluation = (evaluated, evaluated.evaluation) if isinstance(evaluated, Rollout) else (None, evaluated)
        answered = () if rollout is None or within else rollout.phases(engine, tracker, trace)
        beside = () if evaluation is None else evaluation.phases(engine, tracker, trace)
        save = self._save(step, [step, *beside][-1])
        if self._is_of_any_rank and len(stretches) > 1:
            walked = WalkedStep(
                before=highest([*within, *forwards, replace(backward, peak=earlier)]),
                stretches=stretches,
                beside_backward=num_waiting(recipe, backward.name) * batch_bytes,
                step=highest([step]),
                after=highest([*answered, *beside, save]),
            )
            rank = highest_rank(engine, walked, accumulates=recipe.grad_accum > 1)
            if rank != engine.rank:
                return self._of_rank(rank=rank).timeline(trace, recipe, evaluated, first=first)
        before = within or tuple(self._with_first(phase, step) for phase in answered)
        phases = (self._load, self._init, *before, *forwards, backward, step, *beside, save)
        if not within:
            phases = self._with_first_reads(phases, trace, recipe, rollout, evaluation)
        return Timeline(phases=self._with_first_step(phases, first or trace, recipe), rank=engine.rank)

    def _with_first_reads(
        self,
        phases: tuple[Phase, ...],
        trace: Trace,
        recipe: Recipe,
        rollout: Rollout | None,
        evaluation: Evaluated | None,
    ) -> tuple[Phase, ...]:
        """The phases with their peaks of before the first step, where these are higher: on one GPU, or from the host,
        ZeRO-3 copies what modules read of others when they first run."""
        engine = self._engine
        if recipe.zero_stage != 3 or not read_weights(trace):
            return phases
        if engine.gathers_weights:
            return self._with_shard_beside_head(phases, trace, recipe, rollout, evaluation)
        begun = self._alike(rank=engine.rank, has_stepped=False)
        found = {phase.name: phase for phase in begun._before_step(trace, recipe, rollout, evaluation)}
        return tuple([_higher(phase, found.get(phase.name, phase), is_last=False) for phase in phases])

    def _with_shard_beside_head(
        self,
        phases: tuple[Phase, ...],
        trace: Trace,
        recipe: Recipe,
        rollout: Rollout | None,
        evaluation: Evaluated | None,
    ) -> tuple[Phase, ...]:
        """The phases, of which the one with the first forward of all has its peak where it reads a head, if that is
        higher."""
        if not self._engine.offloads_weights or recipe.reference is Reference.PRECOMPUTED:
            return phases
        begins = evaluation is not None and recipe.evaluation is not None and recipe.evaluation.on_start
        name, before = (EVALUATION, evaluation) if begins else (REFERENCE, rollout)
        if before is None or not before.passes or before.is_of_copy(0):
            name, first = FORWARD, trace
        else:
            first = before.passes[0].trace
        beside = at_first_read(first, num_ranks=self._engine.num_ranks)
        if beside is None:
            return phases
        peak = self._init.resident + beside
        return tuple([replace(one, peak=higher(one.peak, peak)) if one.name == name else one for one in phases])

    def _before_step(
        self, trace: Trace, recipe: Recipe, rollout: Rollout | None, evaluation: Evaluated | None
    ) -> Iterable[Phase]:
        """The phases of a run that has made no step, in their order."""
        engine, tracker = self._engine, self._tracker
        engine.recipe = recipe
        if evaluation is not None and recipe.evaluation is not None and recipe.evaluation.on_start:
            yield from evaluation.phases(engine, tracker, trace)
        if rollout is not None:
            yield from rollout.phases(engine, tracker, trace)
        yield from self._micro_batch_of_first_step(trace, recipe, None)

    def _with_first_micro_batch(
        self, phases: Sequence[Phase], trace: Trace, recipe: Recipe, first: Trace | None
    ) -> Sequence[Phase]:
        """``phases``, forward and backward of a later step, with the peaks of a run's first micro batches where those
        are higher: where the first is another (``first``), or ZeRO-3 gathers otherwise in one."""
        for number, early in {0: first or trace, number_of_following(recipe): trace}.items():
            gathers = self._engine.gather_replay_at_first(early, number)
            if gathers is None and early is trace:
                continue
            begun = self._alike(rank=self._engine.rank, has_stepped=False)
            beginning = begun._micro_batch_of_first_step(early, recipe, gathers, number)
            phases = [_higher(own, other, is_last=False) for own, other in zip(phases, beginning, strict=True)]
        return phases

    def _with_first_step(self, phases: tuple[Phase, ...], trace: Trace, recipe: Recipe) -> tuple[Phase, ...]:
        """``phases`` with the highest moment of the first step, if no later one is as high: until its end weights that
        no sample uses have secondary partitions (hpZ)."""
        gathers = self._engine.replay_beside_idle(trace)
        if gathers is None:
            return phases
        begun = self._alike(rank=self._engine.rank, has_stepped=False)
        first = [*begun._micro_batch_of_first_step(trace, recipe, gathers), self._first_step]
        top = max(first, key=lambda phase: phase.peak.total)
        if top.peak.total <= max([phase.peak.total for phase in phases]):
            return phases
        return tuple([replace(one, peak=top.peak) if one.name == top.name else one for one in phases])

    def _micro_batch_of_first_step(
        self, trace: Trace, recipe: Recipe, gathers: "GatherReplay | None", number: int = 0
    ) -> list[Phase]:
        """Forward and backward of the micro batch of this number, from 0 on, of a run that has made no step.
        ``gathers``: what ZeRO-3 gathers then, where that is not as in any later one."""
        engine, tracker = self._engine, self._tracker
        engine.recipe = recipe
        engine.begin_step(trace)
        if number:
            engine.resume_accumulation([self._table.ordinal(*arrival) for arrival in arrivals(trace)])
        engine.begin_micro_batch(accumulates=number > 0, is_last=recipe.grad_accum == number + 1)
        replay = MicroBatchReplay(engine, tracker, trace, gathers)
        forwards = self._forward(replay)
        replay.backward()
        engine.reduce_gradients()
        return [*forwards, _ended(BACKWARD, tracker)]

    def _backward_and_step(
        self, replay: MicroBatchReplay, earlier: Components
    ) -> tuple[Sequence[Stretch], Phase, Phase]:
        """The stretches of backward between collectives, backward, to whose peak that of ``earlier`` micro batches
        counts, and the step."""
        engine, tracker = self._engine, self._tracker
        replay.backward()
        engine.reduce_gradients()
        replay.release_outputs()
        stretches = tracker.stretches
        backward = _ended(BACKWARD, tracker)
        backward = replace(backward, peak=higher(backward.peak, earlier))
        replay.begin_step()
        tracker.start_phase()
        engine.step(is_first=False)
        replay.end_step()
        return stretches, backward, _ended(STEP, tracker)

    def _save(self, step: Phase, last: Phase) -> Phase:
        """The checkpoint behind ``last``, the step or what is evaluated behind it."""
        engine = self._engine
        begun = self._tracker.peak if last is not step else step.resident
        left = last if engine.saves_whole else step
        saving = left.resident + Components(weights=engine.saving_bytes)
        return Phase(name=SAVE, resident=left.resident, peak=higher(saving, begun))

    def _with_first(self, phase: Phase, step: Phase) -> Phase:
        """The first answers are generated before any step: beside what making the engine has left, which are the
        secondary partitions (hpZ) that a step drops, and no states yet."""
        if phase.name != GENERATE:
            return phase
        rise = Components._make(map(sub, phase.peak, step.resident))
        first = (self._init.resident + rise)._replace(temporaries=phase.peak.temporaries)
        return replace(phase, peak=higher(phase.peak, first))

    def _forward(self, replay: MicroBatchReplay) -> list[Phase]:
        """The model's own, and that of a reference."""
        tracker = self._tracker
        tracker.start_phase()
        forwards: list[Phase] = []

        def end_own_forward() -> None:
            forwards.append(_ended(FORWARD, tracker))
            replay.free_casts()
            tracker.start_phase()

        replay.forward(end_own_forward)
        replay.free_casts()
        return [*forwards, _ended(REFERENCE if forwards else FORWARD, tracker)]

    def _with_behind(self, phases: list[Phase], trace: Trace, evaluated: Evaluated | None) -> list[Phase]:
        """``phases`` of a micro batch, forward to backward, or those of the one behind an evaluation, the first of its
        step, where they take more."""
        engine, tracker = self._engine, self._tracker
        if evaluated is None or isinstance(evaluated, Rollout):
            return phases
        gathers = gathers_behind(engine, trace, evaluated)
        if gathers is None:
            return phases
        tracker.forget_batch()
        engine.begin_micro_batch(accumulates=False, is_last=False)
        replay = MicroBatchReplay(engine, tracker, trace, gathers)
        behind = self._forward(replay)
        replay.backward()
        replay.release_outputs()
        behind.append(_ended(BACKWARD, tracker))
        replay.begin_step()
        tracker.forget_batch()
        is_last = engine.recipe.grad_accum == 1
        return [_higher(one, other, is_last=is_last) for one, other in zip(phases, behind, strict=True)]

    def _reach_last_micro_batch(self, trace: Trace, grad_accum: int) -> Components:
        """The earlier micro batches of a step. Returns the peak of the last of them, where backward of the very last
        may have a lower one."""
        engine, tracker = self._engine, self._tracker
        tracker.forget_batch()
        engine.begin_step(trace)
        walked = 1 if grad_accum > 1 and engine.reduces_last_alone else 0
        if grad_accum > 1 + walked:
            engine.resume_accumulation([self._table.ordinal(*arrival) for arrival in arrivals(trace)])
        peak = Components()
        if walked:
            engine.begin_micro_batch(accumulates=grad_accum > 2, is_last=False)
            replay = MicroBatchReplay(engine, tracker, trace)
            self._forward(replay)
            replay.backward()
            peak = tracker.peak
            replay.release_outputs()
            tracker.forget_batch()
        engine.begin_micro_batch(accumulates=grad_accum > 1, is_last=True)
        return peak


def _load(engine: Engine, tracker: PeakTracker, *, is_on_cpu: bool, read_bytes: int) -> Phase:
    tracker.allocate("checkpoint", Component.TEMPORARIES, read_bytes)
    engine.load(is_on_cpu=is_on_cpu)
    tracker.free("checkpoint")
    phase = _ended(LOAD, tracker)
    engine.end_load()
    tracker.start_phase()
    return phase


def _higher(phase: Phase, other: Phase, *, is_last: bool) -> Phase:
    """The one with the higher peak, with its resident bytes where it is the last of its step, else ``phase``'s."""
    found = max(phase, other, key=lambda one: one.peak.total)
    return found if is_last else replace(found, resident=phase.resident)


def _ended(name: str, tracker: PeakTracker) -> Phase:
    """The phase up to here; the next one begins."""
    phase = Phase(name=name, resident=tracker.now(), peak=tracker.peak)
    tracker.start_phase()
    return phase
