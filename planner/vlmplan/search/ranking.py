"""Finds the best plans: every method, engine and way to compute a micro batch on every machine, ranked.

Floors of seconds and of memory say what a method could reach on a machine; the most promising is looked at first, by
bounds of memory, and what is ranked best is computed exactly before it is believed. What nobody has looked at when
enough plans are found cannot be among them.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

from vlmplan.memory.device import Verdict
from vlmplan.recipe_choices import Method
from vlmplan.search.answer import (
    SECONDS_PER_HOUR,
    Limits,
    Objective,
    RankedPlan,
    Rejection,
    SearchQuery,
    cost_of_run,
)
from vlmplan.search.choices import Engine
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import (
    ScoredSetup,
    UnexploredMethod,
    over_limits_text,
    pareto_point,
    rank_key,
    shown_bytes,
)
from vlmplan.search.hosts import Hosts
from vlmplan.search.memoized_estimates import SharedTraces
from vlmplan.search.pareto import Point, front_of, settled
from vlmplan.search.refusals import refusal
from vlmplan.search.scoring import Scorer
from vlmplan.search.setup_records import BoundedSetup, RecipeCandidate
from vlmplan.search.setups import SetupSpace
from vlmplan.units import gib_text
from vlmplan.workload import DEFAULT_GLOBAL_BATCH

MAX_PLANS = 12
NOTICEABLE_FRACTION = 0.005
"""Part by which a setup has to be better before it is worth finding out exactly whether it fits. A choice: seconds are
less certain."""
EQUAL_FRACTION = 0.002
"""Part by which two engines' time and money may differ and the simpler one is taken. A choice."""


class Search:
    """The state of a search: setups ``_within`` the limits, and those that are still ``_open``, not explored yet."""

    def __init__(self, query: SearchQuery, shared: SharedTraces | None) -> None:
        self.objective, self.limits, self.assumed = query.objective, query.limits, query.assumed
        self._compares_all = query.compares_all
        global_batch = query.workload.global_batch or DEFAULT_GLOBAL_BATCH
        self.space = SetupSpace(query.workload, query.fixed, global_batch, shared=shared, made_for=query.made_for)
        self._candidates = query.candidates
        self._within: list[ScoredSetup] = []
        self._open: list[UnexploredMethod] = []
        # Why a candidate has no plan, besides its hosts: setups over the limits, what the allocator cannot place.
        self._over_limits: dict[int, list[ScoredSetup | UnexploredMethod]] = {}
        self._unplaced: set[int] = set()
        self._scorer = Scorer(self.space, self.objective, self.assumed)
        self._hosts = Hosts(self.space, self._scorer)

    def consider(self, candidate: Candidate) -> None:
        """Note what the methods could reach on the candidate. By bytes the slow ones may come first: limits are held to
        the floors of all ways then."""
        asks_ways = self.objective is Objective.VRAM and self.limits != Limits()
        for method in self.space.choices.methods:
            seconds = self.space.least_seconds(candidate.cluster, method)
            if seconds is None:
                continue
            entry = self._unexplored(candidate, method, seconds)
            self._open.append(entry)
            if asks_ways or not self._is_within_limits(entry):
                self._with_ways(entry)

    def _with_ways(self, entry: UnexploredMethod) -> UnexploredMethod | None:
        """The entry with its ways; None where it has none, or none within the limits."""
        self._open.remove(entry)
        candidate = entry.candidate
        ways = self.space.ways(candidate.cluster, entry.method)
        if not ways:
            return None
        known = self._unexplored(candidate, entry.method, ways[0].least_seconds, ways, entry.device_bytes)
        if not self._is_within_limits(known):
            self._over_limits.setdefault(id(candidate), []).append(known)
            return None
        self._open.append(known)
        return known

    def _unexplored(
        self,
        candidate: Candidate,
        method: Method,
        seconds: float,
        ways: list[RecipeCandidate] | None = None,
        device_bytes: int | None = None,
    ) -> UnexploredMethod:
        cluster = candidate.cluster
        hours = seconds / SECONDS_PER_HOUR
        offer = candidate.offers[0] if candidate.offers else None
        cost = cost_of_run(hours, offer, cluster, self.space.least_disk(cluster, method), self.assumed)
        if device_bytes is None:
            num_bytes = self.space.floor_bytes(cluster, method) if self.objective is Objective.VRAM else 0
            device_bytes = shown_bytes(num_bytes, cluster)
        usd = None if cost is None else cost.usd
        return UnexploredMethod(candidate, method, ways, hours, usd, device_bytes)

    def _next_of(self, entry: UnexploredMethod) -> Sequence[ScoredSetup | UnexploredMethod]:
        """What is known of a method after one more look: its ways, then its setups."""
        if entry.ways is not None:
            return self._explored(entry, entry.ways)
        known = self._with_ways(entry)
        return [] if known is None else [known]

    def _explored(self, entry: UnexploredMethod, ways: list[RecipeCandidate]) -> list[ScoredSetup]:
        """The setups of a method that fit one of the candidate's machines, or may.

        Where none does by its bound, those that take least memory are computed exactly: others are worth a look only if
        one of them fits.
        """
        self._open.remove(entry)
        candidate, method = entry.candidate, entry.method
        cluster = candidate.cluster
        if self.objective is Objective.VRAM:
            found = self._hosts.scored(candidate, self.space.smallest(cluster, method))
        else:
            found = self._of_least_seconds(candidate, ways)
            if not any(one.setup.fits for one in found):
                fitting = self._fitting_lightest(candidate, method)
                found = self._simplest([*fitting, *found]) if fitting else []
        within = self._only_within_limits(found)
        if found and not within:
            self._over_limits.setdefault(id(candidate), []).extend(found)
        self._within += within
        return within

    def _fitting_lightest(self, candidate: Candidate, method: Method) -> list[ScoredSetup]:
        """What takes least memory, where it fits; not looked at where hosts are known to be short of less."""
        attempts = self.space.possible_lightest(candidate.cluster, method)
        if all(self._hosts.tells_nothing_new(candidate, setup.recipe) for setup in attempts):
            return []
        lightest = self.space.first_fitting(attempts, candidate.cluster)
        return [] if lightest is None else self._hosts.scored(candidate, [lightest])

    def _of_least_seconds(self, candidate: Candidate, ways: list[RecipeCandidate]) -> list[ScoredSetup]:
        """The fastest setups that fit, and faster ones that may, unless another is faster and cheaper than they can
        be.

        Without expandable segments everything stays: what fits may still be more than the allocator can place.
        """
        cluster = candidate.cluster
        is_exact = ways[0].recipe.expandable_segments
        best: dict[int, ScoredSetup] = {}  # by machine
        limits: dict[int, float] = {}  # by engine, as long as ``best`` stays

        def below(way: RecipeCandidate) -> float:
            if id(way.engine) not in limits:
                limits[id(way.engine)] = self._beaten_hours(candidate, best, way.engine) * SECONDS_PER_HOUR
            return limits[id(way.engine)]

        found: list[ScoredSetup] = []
        for setup in self.space.fastest(ways, cluster, below if is_exact else lambda _: inf):
            scored = self._hosts.scored(candidate, [setup])
            if not scored:
                limits.clear()  # less may be known to be short
            for entry in scored:
                found.append(entry)
                known = best.get(id(entry.cluster))
                if setup.fits and entry.hours is not None and (known is None or entry.is_as_good_as(known)):
                    best[id(entry.cluster)] = entry
                    limits.clear()
        return self._simplest(found) if is_exact else found

    def _beaten_hours(self, candidate: Candidate, best: Mapping[int, ScoredSetup], engine: Engine) -> float:
        """Hours of training from which on nothing of the engine is worth a look: those from which on the ``best`` on
        its machine is better, and none where no machine has the host memory and less is known to be short."""
        on_cheapest = best.get(id(candidate.cluster))
        if on_cheapest is not None:
            return self._worse_hours(on_cheapest, engine)
        recipes = self.space.of_any_host(engine[0], candidate.cluster)
        machines = {id(machine[0]) for machine in (self._hosts.machine(candidate, one) for one in recipes) if machine}
        if any(self._hosts.is_short_of_less(candidate, one) for one in recipes):
            return inf
        if not machines:
            return 0.0
        entry = best.get(next(iter(machines))) if len(machines) == 1 else None
        return inf if entry is None else self._worse_hours(entry, engine)

    def _worse_hours(self, entry: ScoredSetup, engine: Engine) -> float:
        """Hours of training from which on no setup of the engine is better than ``entry`` on the same machine: it takes
        longer, and if it writes less, that does not make up for the time."""
        hours = entry.hours
        assert hours is not None
        longer = hours * (1 + EQUAL_FRACTION)
        if entry.usd is None or entry.offer is None or not entry.offer.usd_per_hour:
            return longer
        disk = self.space.models.disk(engine[0])

        def usd(training_hours: float) -> float:
            cost = cost_of_run(training_hours, entry.offer, entry.cluster, disk, self.assumed)
            return inf if cost is None else cost.usd

        made_up_hours = max(0.0, entry.usd - usd(hours)) / entry.offer.usd_per_hour / entry.cluster.num_nodes
        limit = longer + made_up_hours
        return limit if usd(limit) >= entry.usd else inf

    def _simplest(self, found: list[ScoredSetup]) -> list[ScoredSetup]:
        """Without what is not noticeably better than a setup that fits: of equals the simplest engine stays."""
        kept: list[ScoredSetup] = []
        for entry in sorted(found, key=lambda entry: entry.simplicity):
            tolerance = EQUAL_FRACTION if entry.setup.fits else NOTICEABLE_FRACTION
            if not any(other.setup.fits and other.is_as_good_as(entry, tolerance) for other in kept):
                kept = [other for other in kept if not (entry.setup.fits and entry.is_as_good_as(other))]
                kept.append(entry)
        return kept

    def _with_smaller_batch(self, entry: ScoredSetup) -> ScoredSetup | None:
        """The same with the next smaller micro batch, where there is one within the limits."""
        return self._with_setup(entry, self.space.smaller(entry.setup, entry.cluster))

    def _with_fewer_answers(self, entry: ScoredSetup) -> ScoredSetup | None:
        """What does not fit, with fewer of GRPO's answers generated at once, where that may help within the limits."""
        return self._with_setup(entry, self.space.with_fewer_answers(entry.setup, entry.cluster))

    def _with_setup(self, entry: ScoredSetup, setup: BoundedSetup | None) -> ScoredSetup | None:
        if setup is None:
            return None
        scored = self._scorer.score(entry.candidate, entry.cluster, entry.offer, setup)
        if not self._is_within_limits(scored):
            return None
        self._within.append(scored)
        return scored

    def _only_within_limits(self, entries: Iterable[ScoredSetup]) -> list[ScoredSetup]:
        return [entry for entry in entries if self._is_within_limits(entry)]

    def _is_within_limits(self, entry: ScoredSetup | UnexploredMethod) -> bool:
        limits = self.limits
        if limits.max_usd is not None and (entry.usd is None or entry.usd > limits.max_usd):
            return False
        return limits.max_hours is None or (entry.hours is not None and entry.hours <= limits.max_hours)

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
            heapq.heappush(ordered, (entry.key(self.objective), next(places), entry))

        for entry in self._open:
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
                for one in self._next_of(entry):
                    push(one)
                continue
            if not entry.is_measured:
                self._measure(entry)
                other = self._with_fewer_answers(entry) if entry.has_failed else entry
                if other is not None:
                    push(other)
                continue
            plan = self._exact_plan(entry)
            if plan is None or (ordered and entry.key(self.objective) > ordered[0][0]):  # others may be better then
                other = self._with_smaller_batch(entry) if plan is None else entry
                if other is not None:
                    push(other)
                continue
            seen.add(place)
            wanted.discard(entry.method)
            plans.append(plan)
        return sorted(plans, key=self._plan_key)

    def _measure(self, entry: ScoredSetup) -> None:
        """Look closer at what does not fit by its bound, or whose memory is what counts: first by closer bounds, then
        at its timeline."""
        budget = self.space.models.budget_bytes(entry.cluster, entry.setup.recipe)
        if not entry.is_bounded_closely:
            entry.setup = self.space.closer(entry.setup, entry.cluster)
            entry.is_bounded_closely = True
            entry.is_measured = entry.setup.fits and self.objective is not Objective.VRAM
        else:
            needed = self.space.needed_bytes(entry.setup, entry.cluster)
            entry.setup = replace(entry.setup, most_bytes=needed, least_bytes=needed, fits=True)
            entry.is_measured = True
        entry.has_failed = entry.setup.least_bytes > budget

    def _exact_plan(self, entry: ScoredSetup) -> RankedPlan | None:
        """The entry computed exactly, once; None where it does not fit then."""
        if entry.plan is None:
            estimate = self.space.estimate(entry.setup, entry.cluster)
            plan = RankedPlan(estimate=estimate, offer=entry.offer, assumed=self.assumed)
            if plan.estimate.verdict is not Verdict.FITS:
                entry.has_failed = True
                self._unplaced.add(id(entry.candidate))
                return None
            entry.plan, entry.hours, entry.usd = plan, plan.hours, plan.usd
        return entry.plan

    def _settled(self, entry: ScoredSetup) -> ScoredSetup | None:
        """What takes the place of an entry on the front: its exact self, else the same with a smaller micro batch.

        What is within its bound fits, unless torch's own segments leave gaps: only those need all of the estimate.
        """
        if entry.setup.recipe.expandable_segments:
            self._time(entry)
        elif self._exact_plan(entry) is None:
            return self._with_smaller_batch(entry)
        return entry if self._is_within_limits(entry) else None

    def _time(self, entry: ScoredSetup) -> None:
        seconds = self.space.models.exact_seconds(entry.setup.recipe, entry.cluster)
        entry.hours, entry.usd = self._scorer.hours_and_usd(seconds, entry.cluster, entry.offer, entry.setup)
        entry.is_timed = True

    def front(self) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
        """The front of cost against time of all that fits, its members computed exactly, and all points. A setup that
        fits by no bound is on it only if it was computed already.
        """
        while self._compares_all and self._open:
            self._next_of(self._open[0])
        while True:
            self._explore_front()
            members, left = settled(self._fitting(), self._settled)
            self._within = left
            if not self._may_be_on_front(members):
                break
        points = {id(entry): point for entry in left if (point := pareto_point(entry)) is not None}
        return tuple(points[id(entry)] for entry in members), tuple(points.values())

    def _fitting(self) -> list[ScoredSetup]:
        return [entry for entry in self._within if entry.setup.fits and not entry.has_failed]

    def _explore_front(self) -> None:
        """Look at what may be on the front, the cheapest first, until what is known beats all that is left.

        What the front beats stays beaten, as that only gets better.
        """
        members, places = front_of(self._fitting()), count()
        ordered: list[tuple[Any, int, UnexploredMethod]] = []

        def push(entry: UnexploredMethod) -> None:
            if entry.usd is not None:
                heapq.heappush(ordered, (entry.key(Objective.COST), next(places), entry))

        for entry in self._open:
            push(entry)
        while ordered:
            *_, entry = heapq.heappop(ordered)
            if not entry.may_be_better_than(_points(members)):
                continue
            for one in self._next_of(entry):
                if isinstance(one, UnexploredMethod):
                    push(one)
                elif one.setup.fits:
                    members = front_of([*members, one])

    def _may_be_on_front(self, members: Sequence[ScoredSetup]) -> bool:
        """Whether something is left that none of ``members`` of a front beats."""
        front = _points(members)
        return any(entry.usd is not None and entry.may_be_better_than(front) for entry in self._open)

    def _plan_key(self, plan: RankedPlan) -> tuple[Any, ...]:
        num_gpus, num_bytes = plan.estimate.cluster.num_gpus, plan.estimate.device.device_bytes
        return rank_key(self.objective, plan.hours, plan.usd, num_gpus, num_bytes)

    def rejections(self) -> Iterator[Rejection]:
        """The candidates for which no setup is left."""
        left = {id(entry.candidate) for entry in self._within if entry.setup.fits and not entry.has_failed}
        for entry in self._open:  # that they may be possible is all that is known
            if id(entry.candidate) not in left and (
                entry.ways or self.space.has_ways(entry.candidate.cluster, entry.method)
            ):
                left.add(id(entry.candidate))
        for candidate in self._candidates:
            if id(candidate) not in left:
                reason, change = self._reason(candidate)
                yield Rejection(cluster=candidate.cluster, reason=reason, smallest_change=change)

    def _reason(self, candidate: Candidate) -> tuple[str, str | None]:
        """Why there is no plan: too little memory on the GPUs or the host, or a limit; and what would help."""
        key = id(candidate)
        if key in self._over_limits:
            return over_limits_text(self._over_limits[key]), None
        if key in self._unplaced:
            return "its tensors fit, but the allocator cannot place them; --expandable-segments lets it", None
        short_bytes = self._hosts.short_bytes(candidate)
        if short_bytes is not None:
            return f"the host needs {gib_text(short_bytes)} and {candidate.host_text}", None
        return refusal(self.space, candidate.cluster)


def _points(members: Sequence[ScoredSetup]) -> list[tuple[float, float]]:
    """(hours, usd) of each."""
    return [(entry.hours, entry.usd) for entry in members if entry.hours is not None and entry.usd is not None]
