"""The first micro batch that goes by a recorded order of modules under ZeRO-3, which decides for all later ones.

In the first micro batch of a run DeepSpeed records the order (``ZeRoTraceMode.RECORD`` in
``zero/partitioned_param_coordinator.py``, 0.19.8), in the second it goes by it. Which weights stay whole when a module
is done it decides there once for each module and step: ``__params_to_release`` has an ``lru_cache`` that nothing
clears, so that later micro batches let go what that one did, whatever they have prefetched. With accumulation that one
follows another of its step, while all later ones find small weights whole, up to the persistence threshold. While it
records, DeepSpeed lets these go with all others (``release_sub_module``); they count when they come back, for the size
of a prefetch and for ``stage3_max_live_parameters``, so that a prefetch reaches less far. After a step they are
gathered by themselves and count for nothing (``_post_step`` in ``zero/stage3.py``).

Where a run evaluates before its first step, forwards are what comes first. The first of them records an order that
ends with forward, and the second decides by it for every step of all forwards to come: nothing is used again behind a
forward. The first micro batch then finds the order to be wrong when its backward begins, the second records, and the
third decides for the steps of backward.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.reference import has_kl_forward, is_own
from vlmplan.architecture.trace import Fetch, Prefetch, Release, Section, Trace, WeightUse
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify
from vlmplan.engines.coordinator.module_order import SmallWeights, evaluates_by_several
from vlmplan.engines.coordinator.records import Decisions, Key, Passed
from vlmplan.engines.coordinator.repeated_layers import Stretch, first_steps, section_uses
from vlmplan.engines.coordinator.wrapper_modules import Wrappers
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.zero import ZeroSettings

_STEPS = frozenset((Fetch, Prefetch, Release))


class Decided(NamedTuple):
    """What has decided for a later micro batch; every step that neither has, it decides itself."""

    within_step: bool = False
    """The first micro batch that went by an order of forward and backward, which followed another of its step."""
    by_evaluation: bool = False
    """Forwards before the first step, of an evaluation or for GRPO's old log-probabilities: those of all forwards."""

    def where_it_matters(self, trace: Trace, zero: ZeroSettings) -> "Decided":
        """Of micro batches like ``trace``."""
        return self._replace(within_step=self.within_step and not finds_small_whole(trace, zero))


NOTHING_DECIDED = Decided()


def decided_before(recipe: Recipe, table: ParameterTable) -> Decided:
    """What decides before the steady state of a recipe's run. GRPO's micro batches follow answers instead, before each
    of which another order may be recorded (``module_order``); forwards over those answers for old log-probabilities are
    the first that go by an order, or the first micro batch is behind one of them. Forwards that leave out modules of
    training, or call others, decide nothing for it: their steps are other modules'. Nor do several of one batch."""
    evaluation, task = recipe.evaluation, recipe.task
    if task is not None and task.is_grpo:
        return Decided(by_evaluation=_looks_up_by_order(recipe))
    begins = evaluation is not None and evaluation.on_start and not evaluates_by_several(recipe)
    by_evaluation = begins and not recipe.evaluates_by_another_order and not table.calls_more_in_evaluation
    return Decided(recipe.grad_accum > (2 if by_evaluation else 1), by_evaluation)


def _looks_up_by_order(recipe: Recipe) -> bool:
    """Whether an order of forward alone is gone by with adapters on: behind the only forward for old log-probabilities
    one without adapters would lose it. ms-swift's turns are ``module_order``'s."""
    task = recipe.task
    if task is None or task.is_of_ms_swift or not recipe.looks_up_old_probabilities:
        return False
    return recipe.micro_batches_at_once > 1 or not recipe.reference.is_trained_model


def finds_small_whole(trace: Trace, zero: ZeroSettings) -> bool:
    """Whether it decides as all later ones would: there are no small weights, or nothing that their coming changes, or
    every micro batch has several forwards of the model, of which none goes by an order to its end."""
    if not zero.stage3_prefetch_bucket_size or not zero.stage3_param_persistence_threshold:
        return True
    return is_own(trace.schedule[-1]) or has_kl_forward(trace)


class FirstPass:
    """That micro batch on a schedule without the layers that ``stretches`` leave out, whose modules have the elements
    ``omitted``. It makes ``decisions``, on any number of ranks the same, but for ``earlier`` ones, which stand."""

    def __init__(
        self,
        trace: Trace,
        zero: ZeroSettings,
        wrappers: Wrappers,
        stretches: Sequence[Stretch] = (),
        omitted: Mapping[int, Passed] | None = None,
        earlier: Decisions | None = None,
    ) -> None:
        self.decisions: Decisions = {} if earlier is None else earlier
        self._gathered = GatheredWeights(
            trace=trace,
            zero=zero,
            num_ranks=2,
            wrappers=wrappers,
            omitted=omitted,
            decisions=self.decisions,
            small=SmallWeights.STAY,
        )
        uses = {key: section_uses(section) for key, section in trace.sections.items()}
        self._cuts = {stretch.cut: stretch for stretch in stretches}
        self._starts = first_steps(trace.schedule, uses)
        self._before: tuple[dict[int, _Before], dict[int, _Before]] = {}, {}
        begin_after_recording(self._gathered, trace, zero.stage3_param_persistence_threshold)
        self._walk_phase(0, trace)
        self._gathered.begin_backward()
        self._walk_phase(1, trace)

    def _walk_phase(self, phase: int, trace: Trace) -> None:
        gathered, before, size = self._gathered, self._before[phase], len(trace.schedule)
        for number, (run, section) in enumerate(trace.backward() if phase else trace.forward()):
            edge = size - number if phase else number
            before[edge] = _Before(len(self.decisions), gathered.num_small, gathered.next_prefetched_step)
            stretch = self._cuts.get(edge)
            if stretch is not None:
                period = before[edge].num_small - before[_edges(stretch, phase)[0]].num_small
                gathered.pass_small(stretch.num_omitted * period)
            for event in section_uses(section)[phase]:
                if type(event) in _STEPS:
                    notify(gathered, event, run)

    @property
    def repeats(self) -> bool:
        """Whether all layers that are left out decide as those around the cut do: prefetch goes on there as fast as the
        model does. Small weights leave it less behind the cut, so that it reaches no further than before it: what both
        decide, all between do."""
        values = list(self.decisions.values())
        return all(self._repeats(stretch, phase, values) for stretch in self._cuts.values() for phase in (0, 1))

    def _repeats(self, stretch: Stretch, phase: int, values: Sequence[bool]) -> bool:
        starts, edges = self._starts[phase], _edges(stretch, phase)
        first, cut, last = (self._before[phase][edge] for edge in edges)
        ahead, at_cut, behind = (self._before[phase][edge].prefetched_step - starts[edge] for edge in edges)
        return (
            ahead == at_cut >= behind
            and last.prefetched_step < starts[stretch.start if phase else stretch.stop]
            and values[first.num_decisions : cut.num_decisions] == values[cut.num_decisions : last.num_decisions]
        )


class _Before(NamedTuple):
    """What there was before a place of the schedule: decisions, elements of small weights, and the first step of which
    prefetch had not looked at all weights."""

    num_decisions: int
    num_small: int
    prefetched_step: int


def _edges(stretch: Stretch, phase: int) -> tuple[int, int, int]:
    """In the order of the phase."""
    before, cut, after = stretch.edges
    return (after, cut, before) if phase else (before, cut, after)


def first_decisions(trace: Trace, zero: ZeroSettings, wrappers: Wrappers, decided: Decided) -> Decisions | None:
    """Those of walks through all of ``trace``; None where every micro batch may decide for itself. Of forwards alone
    those of an evaluation are all."""
    trains = any(section_uses(one).backward for one in trace.sections.values())
    matters = decided.where_it_matters(trace, zero)._replace(**({} if trains else {"within_step": False}))
    if matters == NOTHING_DECIDED:
        return None
    key = first_decisions, zero, wrappers, matters
    if key not in trace.memo:
        decisions = FirstPass(_forward_alone(trace), zero, wrappers).decisions if matters.by_evaluation else {}
        if matters.within_step:
            decisions = FirstPass(trace, zero, wrappers, earlier=decisions).decisions
        trace.memo[key] = decisions
    return trace.memo[key].copy()


def _forward_alone(trace: Trace) -> Trace:
    return Trace({key: Section(forward=one.forward) for key, one in trace.sections.items()}, trace.schedule)


def begin_after_recording(gathered: GatheredWeights, trace: Trace, threshold: int) -> None:
    """The first forward that goes by the recorded order begins: some small weights are whole already."""
    gathered.make_whole(_whole_after_recording(gathered, trace, threshold))
    gathered.begin_forward()


def _whole_after_recording(gathered: GatheredWeights, trace: Trace, threshold: int) -> list[Key]:
    """Small weights that are whole behind the micro batch that records: of modules whose backward nothing ends, and
    frozen ones that were gathered to run a checkpointed layer again and not used any more (``release_sub_module``
    spares small ones of those)."""
    whole: dict[Key, bool] = {}
    left = {key: _left_by(section_uses(section).backward, threshold) for key, section in trace.sections.items()}
    for run, _ in trace.backward():
        for module, is_left in left[run.key]:
            used = gathered.module_of(module, run).weights
            whole.update({weight.key: is_left for weight in used if weight.is_small})
    return [key for key, is_left in whole.items() if is_left]


def _left_by(events: Iterable[WeightUse], threshold: int) -> list[tuple[WeightUser, bool]]:
    """The modules with small weights, and whether the last use of each is one that nothing ends."""
    left: dict[int, tuple[WeightUser, bool]] = {}
    for event in events:
        if type(event) is Fetch or (type(event) is Release and not event.ends_recomputation):
            left[id(event.module)] = event.module, type(event) is Fetch
    return [one for one in left.values() if any(own.numel <= threshold for own in one[0].parameters_by_name.values())]
