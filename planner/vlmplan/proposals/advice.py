"""Which single change buys most: the best plan, and the best plan again under each of a list of changes.

After a change everything that is not pinned is searched anew: hardware and method stay as they were but for the change
itself, micro batch, engine and checkpointing follow. Changes are judged without the limits, then held against them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from vlmplan.catalog import Catalog
from vlmplan.catalog.price_lists import Spread
from vlmplan.changes.change import Change
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.gpu_choice import CPU, LOCAL
from vlmplan.hardware import Node
from vlmplan.notes import footnotes
from vlmplan.proposals.searches import ANY_GPU, Searches
from vlmplan.proposals.single_changes import (
    freed_changes,
    hardware_changes,
    larger_scope,
    lean_changes,
    method_changes,
    recipe_changes,
    sample_changes,
)
from vlmplan.proposals.way_out import UNLIMITED, WayOut, searched_way_out
from vlmplan.request import Options, OptionValue, Request, on_other_machines
from vlmplan.request.setup import RequestedSetup, in_words_of_file
from vlmplan.search import Limits, Objective, RankedPlan, Recommendation, SearchQuery
from vlmplan.search.clusters import Candidate
from vlmplan.search.explanation import SAME_FRACTION
from vlmplan.search.long_samples import recommend_or_stretch
from vlmplan.search.step_samples import samples_of_every_step
from vlmplan.workload import ModelFiles, Workload

OTHER_GPUS = 3
"""Other kinds of GPU that are shown. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A change and the best plan with it; None where nothing fits then, which ``reason`` says why.

    ``usd_change`` and ``hours_change`` are fractions of the base's, below 0 where the change saves; ``binding`` is the
    limit that it is over, else what most of a step is spent on.
    """

    change: Change
    plan: RankedPlan | None
    reason: str | None = None
    usd_change: float | None = None
    hours_change: float | None = None
    is_within_limits: bool = False
    binding: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``outcomes`` come best first by the objective, those over the limits after, those that fit nothing last.

    ``objective`` is time, too, where the cheapest is asked for and ``base`` has no price.

    ``base`` is None where nothing fits the request (``reason``): then ``way_out`` is what helps, of the outcomes first
    what does on the same machines.
    """

    workload: Workload
    objective: Objective
    limits: Limits
    base: RankedPlan | None
    reason: str | None
    outcomes: tuple[Outcome, ...]
    way_out: WayOut | None
    as_of: date
    notes: tuple[str, ...]
    spreads: Mapping[str, Spread]

    @property
    def base_is_within_limits(self) -> bool:
        return self.base is not None and within(self.base, self.limits)

    @property
    def best(self) -> Outcome | None:
        """The first outcome that fits within the limits and is better than the base, if that is within them."""
        return next(self.better(), None)

    @property
    def best_with_same_results(self) -> Outcome | None:
        return next((one for one in self.better() if one.change.keeps_results), None)

    def better(self) -> Iterator[Outcome]:
        """The outcomes that are better than the plan as it is; where nothing fits, first what does on the same
        machines."""
        to_fit = None if self.way_out is None else self.way_out.to_fit
        changed = None if to_fit is None else to_fit.combination.changed
        for outcome in sorted(self.outcomes, key=lambda one: one.change.options != changed):
            if not outcome.is_within_limits:
                continue
            saved = outcome.usd_change if self.objective is Objective.COST else outcome.hours_change
            if not self.base_is_within_limits or (saved is not None and saved < -SAME_FRACTION):
                yield outcome


def advice(request: Request, catalog: Catalog, model: ModelFiles, today: date) -> Advice:
    """Advice on the best plan of ``request``; within the limits if one is. Raises InputError as ``vlmplan recommend``
    does."""
    adviser = _Adviser(request, catalog, model, today)
    query = adviser.query(request)
    found = recommend_or_stretch(query)
    if not found.plans and query.limits != Limits():
        found = replace(recommend_or_stretch(replace(query, limits=Limits())), notes=found.notes)
    try:
        found.refuse_rules()
    except InputError as error:
        raise InputError(in_words_of_file(str(error), request.ds_config, request.recipe.names)) from None
    base = found.plans[0] if found.plans else None
    way_out = None
    if base is not None:
        outcomes = adviser.outcomes(base)
    else:
        way_out = searched_way_out(request, query, adviser.searches)
        outcomes = adviser.ways_out(query, way_out)
    known = [_measured(outcome, base, query.limits) for outcome in outcomes]
    objective = query.objective
    if objective is Objective.COST and base is not None and base.usd is None:
        objective = Objective.TIME
    return Advice(
        workload=query.workload,
        objective=objective,
        limits=query.limits,
        base=base,
        reason=None if base is not None else _reason(found),
        outcomes=tuple(sorted(known, key=lambda one: _place(one, objective))),
        way_out=way_out,
        as_of=today,
        spreads=found.spreads,
        notes=tuple(dict.fromkeys((*found.notes, *_notes_on_nodes(known)))),
    )


def _notes_on_nodes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What is assumed of the network where a change brings one; not what its search says of a first plan of its own."""
    for outcome in outcomes:
        if "num_nodes" in outcome.change.options:
            yield from footnotes(outcome.notes)


def within(plan: RankedPlan, limits: Limits) -> bool:
    return _limit_over(plan, limits) is None


def binding(plan: RankedPlan, limits: Limits) -> str | None:
    """The limit that the plan is over, else what most of its step is spent on; None where its speed is not known."""
    timed = plan.estimate.timed
    return _limit_over(plan, limits) or (None if timed is None else timed.bound)


def _limit_over(plan: RankedPlan, limits: Limits) -> str | None:
    for name, value, most in (("usd", plan.usd, limits.max_usd), ("hours", plan.hours, limits.max_hours)):
        if most is not None and (value is None or value > most):
            return f"--max-{name}"
    return None


def _measured(outcome: Outcome, base: RankedPlan | None, limits: Limits) -> Outcome:
    plan = outcome.plan
    if plan is None:
        return outcome
    return replace(
        outcome,
        usd_change=None if base is None else _fraction(plan.usd, base.usd),
        hours_change=None if base is None else _fraction(plan.hours, base.hours),
        is_within_limits=within(plan, limits),
        binding=binding(plan, limits),
    )


def _fraction(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base - 1


def _place(outcome: Outcome, objective: Objective) -> tuple[bool, bool, float, float]:
    plan = outcome.plan
    if plan is None:
        return (True, True, 0.0, 0.0)
    usd, hours = (float("inf") if value is None else value for value in (plan.usd, plan.hours))
    return (False, not outcome.is_within_limits, *((usd, hours) if objective is Objective.COST else (hours, usd)))


NO_MACHINE_LEFT = "no machine is left to try; vlmplan gpus lists GPUs and offers, and --gpu NAME:NUMBER names one"


def _reason(found: Recommendation) -> str:
    return found.rejected[0].reason if found.rejected else NO_MACHINE_LEFT


class _Adviser:
    """Searches for the same model with changed requests."""

    def __init__(self, request: Request, catalog: Catalog, model: ModelFiles, today: date) -> None:
        self._request = request
        self.searches = Searches(catalog, model, today)
        self.query = self.searches.query
        self._limits = Limits(max_usd=request.search.max_usd, max_hours=request.search.max_hours)

    def outcomes(self, base: RankedPlan) -> list[Outcome]:
        """What each change makes of the base plan; by time where that has no price to compare with."""
        estimate = base.estimate
        node, method = estimate.cluster.node, estimate.recipe.method
        name = self._name_of(node.gpu.id)
        options: Options = {"gpu": f"{name}:{node.num_gpus}", "method": method.value}
        request = self._request if base.usd is not None else self._request.with_options({"objective": "time"})
        pinned = request.with_options({**UNLIMITED, **options})
        at = RequestedSetup(workload=estimate.workload, recipe=estimate.recipe, cluster=estimate.cluster)
        changes = [
            *hardware_changes(name, node.num_gpus, estimate.cluster.num_nodes, node.gpu.max_gpus_per_node),
            *method_changes(method),
            *sample_changes(at),
            *recipe_changes(at),
        ]
        elsewhere: Options = {**options, **ANY_GPU}
        as_many = self._plans_of_as_many(request.with_options(elsewhere), node)
        if self._limits != Limits():
            as_many = (*as_many, *self._plans_of_as_many(pinned.with_options(elsewhere), node))
        others = self._other_gpus(as_many)
        return [*others, *(self._outcome(pinned, change) for change in changes)]

    def ways_out(self, query: SearchQuery, way_out: WayOut) -> list[Outcome]:
        """What makes it fit where nothing does: of every kind the smallest change that is enough, and ``way_out``."""
        request = self._request.with_options(UNLIMITED)
        largest = max(query.candidates, key=lambda one: one.cluster.num_gpus * one.cluster.node.gpu.usable_bytes)
        at = RequestedSetup(workload=query.workload, recipe=query.fixed.recipe(), cluster=largest.cluster)
        scope = list(larger_scope(request.hardware, largest.cluster.num_nodes))
        wider = [[one for one in scope if "gpu" in one.options], [one for one in scope if "num_nodes" in one.options]]
        samples = samples_of_every_step(query.workload, query.fixed, (one.cluster for one in query.candidates))
        kinds = [*([one] for one in freed_changes(request, samples)), *wider, *lean_changes(at)]
        outcomes = [outcome for kind in kinds if (outcome := self._smallest(request, kind)) is not None]
        if request.hardware.gpus:
            chosen = {one.cluster.node.gpu.id for one in query.candidates}
            others = [
                plan
                for limits in dict.fromkeys((self._limits, Limits()))
                for plan in self.searches.plans_elsewhere(
                    request, lambda one: one.cluster.node.gpu.id not in chosen, limits
                )
            ]
            outcomes += self._other_gpus(others)
        combination = None if way_out.to_fit is None else way_out.to_fit.combination
        if combination is None or any(outcome.change.options == combination.changed for outcome in outcomes):
            return outcomes
        together = Change(name=combination.name, options=combination.changed, keeps_results=combination.keeps_results)
        return [*outcomes, self._outcome(request, together)]

    def _smallest(self, request: Request, kind: Sequence[Change]) -> Outcome | None:
        """The first change of a kind with which something fits, else the last; None for a kind without changes."""
        outcome = None
        for change in kind:
            outcome = self._outcome(request, change)
            if outcome.plan is not None:
                break
        return outcome

    def _name_of(self, gpu_id: str) -> str:
        """What ``--gpu`` calls the base's card: this machine's keep their name."""
        names = {choice.name for choice in self._request.hardware.gpus}
        own = {name for name in names if name.casefold() in (LOCAL, CPU)}
        return own.pop() if own and names == own else gpu_id

    def _outcome(self, request: Request, change: Change) -> Outcome:
        """The best plan with the change; of its options those that take nothing away are left out."""
        options = {
            name: value
            for name, value in change.options.items()
            if value is not None or request.option(name) is not None
        }
        change = replace(change, options=options)
        try:
            found = recommend_or_stretch(self.query(self._changed(request, options)))
        except (InputError, DoesNotFitError) as error:
            return Outcome(change=change, plan=None, reason=str(error))
        if found.plans:
            return Outcome(change=change, plan=found.plans[0], notes=found.notes)
        return Outcome(change=change, plan=None, reason=_reason(found))

    def _changed(self, request: Request, options: Options) -> Request:
        """The request with a change. A configuration is read for as many GPUs as the change names, unless the user
        names none: the base is what it means on any number then."""
        return on_other_machines(request, options) if self._request.hardware.gpus else request.with_options(options)

    def _plans_of_as_many(self, request: Request, node: Node) -> Sequence[RankedPlan]:
        """The plans on as many GPUs of other kinds as ``node`` has."""

        def wants(candidate: Candidate) -> bool:
            other = candidate.cluster.node
            return other.gpu.id != node.gpu.id and other.num_gpus == node.num_gpus

        try:
            return recommend_or_stretch(self.query(request, wants)).plans
        except (DoesNotFitError, InputError):
            return ()

    def _other_gpus(self, found: Sequence[RankedPlan]) -> list[Outcome]:
        """The best of plans on other kinds of GPU, those within the limits first."""
        plans = sorted(found, key=lambda plan: not within(plan, self._limits))
        outcomes: dict[str, Outcome] = {}
        for plan in plans:
            node = plan.estimate.cluster.node
            options: dict[str, OptionValue] = {"gpu": (f"{node.gpu.id}:{node.num_gpus}",)}
            options |= {"host_ram": None} if self._request.hardware.host_ram_gib is not None else {}
            change = Change(name=f"{node.num_gpus} x {node.gpu.id}", options=options)
            outcomes.setdefault(node.gpu.id, Outcome(change=change, plan=plan))
        return list(outcomes.values())[:OTHER_GPUS]
