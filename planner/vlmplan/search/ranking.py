"""Finds the best plans: every method, engine and way to compute a micro batch on every machine, ranked.

The most promising is explored first, and what is ranked best is computed exactly before it is believed. What nobody has
looked at when enough plans are found cannot be among them.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from math import inf
from typing import Any

from vlmplan.recipe.choices import Method
from vlmplan.search.answer import Compared, Objective, RankedPlan, Rejection, SearchQuery
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import OverLimits, ScoredSetup, UnexploredMethod, pareto_point, rank_key
from vlmplan.search.exploration import Exploration
from vlmplan.search.pareto import Point, front_of, settled
from vlmplan.search.refusals import Reason, refusal
from vlmplan.units import gib_text

MAX_PLANS = 12


class Ranking:
    """The best plans of what is explored, the front of cost against time, and why a candidate has no plan."""

    def __init__(self, query: SearchQuery, explored: Exploration) -> None:
        self._objective, self._assumed, self._limits = query.objective, query.assumed, query.limits
        self._compares, self._candidates = query.compares, query.candidates
        self._explored, self._space = explored, explored.space
        self._unplaced: set[int] = set()  # candidates with tensors that the allocator cannot place

    def best_plans(self) -> list[RankedPlan]:
        """The first plans that fit when computed exactly: one per candidate and method, every method once.

        What fits by no bound is computed when it would come next. Tensors that fit may still be more than the native
        allocator can place; a smaller micro batch comes next then. What is computed goes back to its place: the native
        allocator keeps more than its tensors, and with sizes for speed, which an estimate takes where they fit, they
        are more than with those by which it was ranked.
        """
        places = count()
        ordered: list[tuple[Any, int, ScoredSetup | UnexploredMethod]] = []

        def push(entry: ScoredSetup | UnexploredMethod) -> None:
            heapq.heappush(ordered, (entry.key(self._objective), next(places), entry))

        for entry in self._explored.open:
            push(entry)
        wanted = {entry.method for *_, entry in ordered}
        seen: set[tuple[int, Method]] = set()
        plans: list[RankedPlan] = []
        while ordered and (len(plans) < MAX_PLANS or wanted):
            *_, entry = heapq.heappop(ordered)
            place = (id(entry.candidate), entry.method)
            if place in seen or (len(plans) >= MAX_PLANS and entry.method not in wanted):
                continue
            if isinstance(entry, UnexploredMethod):
                for one in self._explored.next_of(entry):
                    push(one)
                continue
            if not entry.is_measured:
                self._measure(entry)
                other = self._explored.with_fewer_answers(entry) if entry.has_failed else entry
                if other is not None:
                    push(other)
                continue
            plan = self._plan_within_limits(entry)
            if plan is None or (ordered and entry.key(self._objective) > ordered[0][0]):  # others may be better then
                other = self._explored.with_smaller_batch(entry) if plan is None else entry
                if other is not None:
                    push(other)
                continue
            seen.add(place)
            wanted.discard(entry.method)
            plans.append(plan)
        return sorted(plans, key=lambda plan: plan_key(self._objective, plan))

    def _measure(self, entry: ScoredSetup) -> None:
        """Look closer at what does not fit by its bound, or whose memory is what counts: first by closer bounds, then
        at its timeline."""
        budget = self._space.models.budget_bytes(entry.cluster, entry.setup.recipe)
        if not entry.is_bounded_closely:
            entry.setup = self._space.closer(entry.setup, entry.cluster)
            entry.is_bounded_closely = True
            entry.is_measured = entry.setup.fits and self._objective is not Objective.VRAM
        else:
            needed = self._space.needed_bytes(entry.setup, entry.cluster)
            entry.setup = entry.setup._replace(most_bytes=needed, least_bytes=needed, fits=True)
            entry.is_measured = True
        entry.has_failed = entry.setup.least_bytes > budget

    def _plan_within_limits(self, entry: ScoredSetup) -> RankedPlan | None:
        """The entry computed exactly; None where it does not fit then, or is over a limit."""
        plan = self._exact_plan(entry)
        if plan is None or self._explored.is_within_limits(entry):
            return plan
        self._explored.over_limits.setdefault(id(entry.candidate), []).append(entry)
        return None

    def _exact_plan(self, entry: ScoredSetup) -> RankedPlan | None:
        """The entry computed exactly, once; None where it does not fit then."""
        if entry.plan is None:
            estimate = self._space.estimate(entry.setup, entry.cluster)
            if estimate is None:
                entry.has_failed = True
                self._unplaced.add(id(entry.candidate))
                return None
            plan = RankedPlan(estimate=estimate, offer=entry.offer, assumed=self._assumed)
            entry.plan, entry.hours, entry.usd = plan, plan.hours, plan.usd
        return entry.plan

    def _settled(self, entry: ScoredSetup) -> ScoredSetup | None:
        """What takes the place of an entry on the front: its exact self, else the same with a smaller micro batch.

        What is within its bound fits, unless torch's own segments leave gaps: only those need all of the estimate.
        """
        if entry.setup.recipe.expandable_segments:
            self._time(entry)
        elif self._exact_plan(entry) is None:
            return self._explored.with_smaller_batch(entry)
        return entry if self._explored.is_within_limits(entry) else None

    def _time(self, entry: ScoredSetup) -> None:
        seconds = self._space.models.exact_seconds(entry.setup.recipe, entry.cluster)
        entry.hours, entry.usd = self._explored.scorer.hours_and_usd(seconds, entry.cluster, entry.offer, entry.setup)
        entry.is_timed = True

    def front(self) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
        """The front of cost against time of all that fits, its members computed exactly, and all points. A setup that
        fits by no bound is on it only if it was computed already.
        """
        if self._compares is Compared.MACHINES:
            self._explore_machines()
        while self._compares is Compared.METHODS and self._explored.open:
            self._explored.next_of(self._explored.open[0])
        while True:
            self._explore_front()
            members, left = settled(self._fitting(), self._settled)
            self._explored.within = left
            if not self._may_be_on_front(members):
                break
        points = {id(entry): point for entry in left if (point := pareto_point(entry)) is not None}
        return tuple(points[id(entry)] for entry in members), tuple(points.values())

    def _fitting(self) -> list[ScoredSetup]:
        return [entry for entry in self._explored.within if entry.setup.fits and not entry.has_failed]

    def _explore_machines(self) -> None:
        """Look at every machine until the setup that costs least there is known."""
        least_usd: dict[int, float] = {}
        for one in self._fitting():
            if one.usd is not None:
                least_usd[id(one.candidate)] = min(one.usd, least_usd.get(id(one.candidate), inf))

        def may_cost_less(entry: UnexploredMethod) -> bool:
            return entry.usd is not None and entry.usd < least_usd.get(id(entry.candidate), inf)

        for entry in sorted(self._explored.open, key=lambda entry: entry.key(Objective.COST)):
            found: list[ScoredSetup | UnexploredMethod] = [entry]
            while found:
                one = found.pop()
                if isinstance(one, UnexploredMethod):
                    found += self._explored.next_of(one) if may_cost_less(one) else ()
                elif one.setup.fits and one.usd is not None:
                    least_usd[id(one.candidate)] = min(one.usd, least_usd.get(id(one.candidate), inf))

    def _explore_front(self) -> None:
        """Look at what may be on the front, the cheapest first, until what is known beats all that is left.

        What the front beats stays beaten, as that only gets better.
        """
        members, places = front_of(self._fitting()), count()
        ordered: list[tuple[Any, int, UnexploredMethod]] = []

        def push(entry: UnexploredMethod) -> None:
            if entry.usd is not None:
                heapq.heappush(ordered, (entry.key(Objective.COST), next(places), entry))

        for entry in self._explored.open:
            push(entry)
        while ordered:
            *_, entry = heapq.heappop(ordered)
            if not entry.may_be_better_than(_points(members)):
                continue
            for one in self._explored.next_of(entry):
                if isinstance(one, UnexploredMethod):
                    push(one)
                elif one.setup.fits:
                    members = front_of([*members, one])

    def _may_be_on_front(self, members: Sequence[ScoredSetup]) -> bool:
        """Whether something is left that none of ``members`` of a front beats."""
        front = _points(members)
        return any(entry.usd is not None and entry.may_be_better_than(front) for entry in self._explored.open)

    def rejections(self) -> Iterator[Rejection]:
        """The candidates for which no setup is left."""
        left = {id(entry.candidate) for entry in self._explored.within if entry.setup.fits and not entry.has_failed}
        for entry in self._explored.open:  # that they may be possible is all that is known
            if id(entry.candidate) not in left and (
                entry.ways or self._space.has_ways(entry.candidate.cluster, entry.method)
            ):
                left.add(id(entry.candidate))
        for candidate in self._candidates:
            if id(candidate) not in left:
                over = self._explored.over_limits.get(id(candidate))
                yield self._over_limits(candidate, over) if over else self._rejection(candidate)

    def _over_limits(self, candidate: Candidate, entries: Sequence[ScoredSetup | UnexploredMethod]) -> Rejection:
        found = OverLimits.of(entries, self._limits)
        return Rejection(cluster=candidate.cluster, reason=found.text, share_of_limit=found.share_of_limit)

    def _rejection(self, candidate: Candidate) -> Rejection:
        reason = self._reason(candidate)
        return Rejection(
            cluster=candidate.cluster,
            reason=reason.sentence,
            smallest_change=reason.change,
            is_rule=reason.is_rule,
            needed_bytes=reason.needed_bytes,
        )

    def _reason(self, candidate: Candidate) -> Reason:
        """Why nothing fits: too little memory on the GPUs or the host; and what would help."""
        key = id(candidate)
        if key in self._unplaced:
            return Reason("its tensors fit, but the allocator cannot place them; --expandable-segments lets it")
        short_bytes = self._explored.hosts.short_bytes(candidate)
        if short_bytes is not None:
            return Reason(f"the host needs {gib_text(short_bytes)} and {candidate.host_text}")
        return refusal(self._space, candidate.cluster)


def plan_key(objective: Objective, plan: RankedPlan) -> tuple[Any, ...]:
    """By which plans are sorted, the best first."""
    num_gpus, num_bytes = plan.estimate.cluster.num_gpus, plan.estimate.device.device_bytes
    return rank_key(objective, plan.hours, plan.usd, num_gpus, num_bytes)


def _points(members: Sequence[ScoredSetup]) -> list[tuple[float, float]]:
    """(hours, usd) of each."""
    return [(entry.hours, entry.usd) for entry in members if entry.hours is not None and entry.usd is not None]
