"""Which setup to take: every method, engine and checkpointing choice on every cluster, ranked.

Memory is bounded in closed form first (``memory.bounds``), the micro batch is solved for from that, and seconds come
from the roofline; what is ranked best is then estimated exactly before it is believed.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any

from vlmplan.cost import CostAssumptions, RunBytes, RunCost, run_cost
from vlmplan.errors import InputError
from vlmplan.estimate import Estimate
from vlmplan.hardware import Cluster, Offer
from vlmplan.memory.device import Verdict
from vlmplan.memory.disk import DiskSpace
from vlmplan.recipe import Method, Recipe
from vlmplan.search.clusters import Candidate
from vlmplan.search.pareto import Point, settled
from vlmplan.search.prices import price_note
from vlmplan.search.setups import Prepared, Setup, SetupSpace
from vlmplan.units import duration_text, gib_text, usd_text
from vlmplan.workload import DEFAULT_GLOBAL_BATCH, Workload

SECONDS_PER_HOUR = 3600


class Objective(Enum):
    COST = "cost"
    TIME = "time"
    VRAM = "vram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan may cost and take."""

    max_usd: float | None = None
    max_hours: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_usd", "max_hours"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"--{name.replace('_', '-')} is {value}; more than 0 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """One plan with its price, None where speed or price is not known.

    ``hours`` are of training, ``usd`` is for all that the run costs: ``cost`` has its parts.
    """

    estimate: Estimate
    offer: Offer | None
    assumed: CostAssumptions = field(default_factory=CostAssumptions)

    @property
    def hours(self) -> float | None:
        seconds = self.estimate.run_seconds
        return None if seconds is None else seconds / SECONDS_PER_HOUR

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.offer is None else self.offer.usd_per_hour * self.estimate.cluster.num_nodes

    @property
    def cost(self) -> RunCost | None:
        estimate = self.estimate
        return _cost(self.hours, self.offer, estimate.cluster, estimate.disk, self.assumed)

    @property
    def usd(self) -> float | None:
        cost = self.cost
        return None if cost is None else cost.usd

    @property
    def billed_hours(self) -> float | None:
        """Hours that the machines are there for: start-up, download, and what interruptions take."""
        cost = self.cost
        return None if cost is None else cost.billed_hours

    @property
    def save_every_steps(self) -> int | None:
        """Steps between two of ``cost.num_checkpoints``."""
        cost = self.cost
        return None if cost is None else -(-self.estimate.num_steps // cost.num_checkpoints)


def _cost(
    hours: float | None, offer: Offer | None, cluster: Cluster, disk: DiskSpace, assumed: CostAssumptions
) -> RunCost | None:
    if hours is None or offer is None:
        return None
    size = RunBytes(
        download_bytes=disk.download_bytes, checkpoint_bytes=disk.checkpoint_bytes, export_bytes=disk.export_bytes
    )
    return run_cost(training_hours=hours, offer=offer, num_nodes=cluster.num_nodes, size=size, assumed=assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A cluster on which nothing fits, with the reason and the smallest change that would help, if one is known."""

    cluster: Cluster
    reason: str
    smallest_change: str | None = None

    @property
    def label(self) -> str:
        return f"{self.cluster.num_gpus} x {self.cluster.node.gpu.id}"

    def as_json(self) -> dict[str, Any]:
        return {
            "gpu": self.cluster.node.gpu.id,
            "num_gpus": self.cluster.node.num_gpus,
            "num_nodes": self.cluster.num_nodes,
            "reason": self.reason,
            "smallest_change": self.smallest_change,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans best first, what was rejected, and how much was looked at.

    ``pareto`` are the setups than which none of ``scored``, those within the limits, is both faster and cheaper, the
    fastest first; both leave out what has no price or no known speed.
    """

    workload: Workload
    objective: Objective
    plans: tuple[RankedPlan, ...]
    rejected: tuple[Rejection, ...]
    num_clusters: int
    num_considered: int
    as_of: date
    notes: tuple[str, ...] = field(default=())
    pareto: tuple[Point, ...] = ()
    scored: tuple[Point, ...] = ()

    def best_of(self, method: Method) -> RankedPlan | None:
        return next((plan for plan in self.plans if plan.estimate.recipe.method is method), None)


MAX_PLANS = 12


@dataclass(slots=True)
class _Scored:
    """A setup on a machine of a candidate, with the numbers it is ranked by: those of ``plan`` once that is known."""

    candidate: Candidate
    cluster: Cluster
    offer: Offer | None
    setup: Setup
    hours: float | None
    usd: float | None
    plan: RankedPlan | None = None
    is_timed: bool = False
    """Hours and price are those of the setup itself, though it has no plan."""

    @property
    def is_exact(self) -> bool:
        return self.is_timed or self.plan is not None

    def key(self, objective: Objective) -> tuple[Any, ...]:
        return _rank_key(objective, self.hours, self.usd, self.cluster.num_gpus, self.setup.peak_bound)


def _rank_key(
    objective: Objective, hours: float | None, usd: float | None, num_gpus: int, num_bytes: int
) -> tuple[Any, ...]:
    """What is not known comes last; without prices the fewest GPU hours win."""
    hours = float("inf") if hours is None else hours
    usd = float("inf") if usd is None else usd
    if objective is Objective.TIME:
        return (hours, usd)
    if objective is Objective.VRAM:
        return (num_bytes, usd, hours)
    return (usd, hours * num_gpus, hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A search: ``fixed`` are recipe fields that the user decided, ``assumed`` what prices need and no list says."""

    workload: Workload
    candidates: Sequence[Candidate]
    fixed: dict[str, Any] = field(default_factory=dict[str, Any])
    objective: Objective = Objective.COST
    limits: Limits = field(default_factory=Limits)
    assumed: CostAssumptions = field(default_factory=CostAssumptions)
    today: date
    notes: tuple[str, ...] = ()


def recommend(sought: Sought, *, prepared: Prepared | None = None) -> Recommendation:
    """The best plans among the candidates; ``prepared`` is of other searches of the same workload."""
    Recipe(**sought.fixed)  # refuses what is wrong on every cluster
    search = _Search(sought, prepared)
    for candidate in sought.candidates:
        search.consider(candidate)
    plans = search.best_plans()
    pareto, scored = search.front()
    of_winner = _notes(plans[0], sought.today) if plans else ()
    return Recommendation(
        workload=sought.workload,
        objective=sought.objective,
        plans=tuple(plans),
        rejected=tuple(search.rejections()),
        num_clusters=len(sought.candidates),
        num_considered=search.space.num_considered,
        as_of=sought.today,
        notes=(*sought.notes, *of_winner),
        pareto=pareto,
        scored=scored,
    )


def _notes(winner: RankedPlan, today: date) -> tuple[str, ...]:
    """What should be known of the first plan's price and seconds."""
    old_price = price_note(winner.offer, today)
    return (*([old_price] if old_price else []), *winner.estimate.cautions)


class _Search:
    """What has been found, candidate by candidate; ``_refused`` holds the reason for those without a plan."""

    def __init__(self, sought: Sought, prepared: Prepared | None) -> None:
        self.objective, self.limits, self.assumed = sought.objective, sought.limits, sought.assumed
        global_batch = sought.workload.global_batch or DEFAULT_GLOBAL_BATCH
        is_exhaustive = sought.objective is Objective.VRAM
        self.space = SetupSpace(
            sought.workload, sought.fixed, global_batch, is_exhaustive=is_exhaustive, prepared=prepared
        )
        self._within: list[_Scored] = []
        self._refused: dict[int, tuple[Candidate, str, str | None]] = {}
        self._failed: set[int] = set()

    def consider(self, candidate: Candidate) -> None:
        """Score the setups that fit the candidate's GPUs and one of its machines."""
        setups = self.space.fitting(candidate.cluster)
        if not setups:
            self._refuse(candidate, *self.space.refusal(candidate.cluster))
            return
        scored: list[_Scored] = []
        for setup in setups:
            machine = candidate.with_host_bytes(self.space.host_bytes(setup, candidate.cluster))
            if machine is not None:
                scored.append(self._score(candidate, *machine, setup))
        within = [entry for entry in scored if self._is_within_limits(entry)]
        if not scored:
            self._refuse(candidate, self._host_reason(candidate, setups), None)
        elif not within:
            self._refuse(candidate, _over_limits(scored), None)
        self._within += within

    def _score(self, candidate: Candidate, cluster: Cluster, offer: Offer | None, setup: Setup) -> _Scored:
        seconds = self.space.run_seconds(setup, cluster)
        return _Scored(candidate, cluster, offer, setup, *self._hours_and_usd(seconds, cluster, offer, setup))

    def _hours_and_usd(
        self, seconds: float | None, cluster: Cluster, offer: Offer | None, setup: Setup
    ) -> tuple[float | None, float | None]:
        hours = None if seconds is None else seconds / SECONDS_PER_HOUR
        cost = _cost(hours, offer, cluster, self.space.disk(setup), self.assumed)
        return hours, None if cost is None else cost.usd

    def _with_smaller_batch(self, entry: _Scored) -> _Scored | None:
        """The same with the next smaller micro batch, where there is one within the limits."""
        setup = self.space.smaller(entry.setup, entry.cluster)
        if setup is None:
            return None
        scored = self._score(entry.candidate, entry.cluster, entry.offer, setup)
        if not self._is_within_limits(scored):
            return None
        self._within.append(scored)
        return scored

    def _refuse(self, candidate: Candidate, reason: str, change: str | None) -> None:
        self._refused.setdefault(id(candidate), (candidate, reason, change))

    def _host_reason(self, candidate: Candidate, setups: Sequence[Setup]) -> str:
        needed = min(self.space.host_bytes(setup, candidate.cluster) for setup in setups)
        return f"the host needs {gib_text(needed)} and {candidate.host_text}"

    def _is_within_limits(self, entry: _Scored) -> bool:
        limits = self.limits
        if limits.max_usd is not None and (entry.usd is None or entry.usd > limits.max_usd):
            return False
        return limits.max_hours is None or (entry.hours is not None and entry.hours <= limits.max_hours)

    def best_plans(self) -> list[RankedPlan]:
        """The first plans that fit when estimated exactly: one per candidate and method, every method once.

        Tensors that fit may still be more than the native allocator can place; a smaller micro batch comes next then.
        """
        ordered = [(entry.key(self.objective), place, entry) for place, entry in enumerate(self._within)]
        heapq.heapify(ordered)
        wanted = {entry.setup.recipe.method for entry in self._within}
        seen: set[tuple[int, Method]] = set()
        plans: list[RankedPlan] = []
        while ordered:
            *_, entry = heapq.heappop(ordered)
            method = entry.setup.recipe.method
            place = (id(entry.candidate), method)
            if place in seen or (len(plans) >= MAX_PLANS and method not in wanted):
                continue
            plan = self._exact_plan(entry)
            if plan is None:
                smaller = self._with_smaller_batch(entry)
                if smaller is not None:
                    heapq.heappush(ordered, (smaller.key(self.objective), len(self._within), smaller))
                continue
            seen.add(place)
            wanted.discard(method)
            plans.append(plan)
            if len(plans) >= MAX_PLANS and not wanted:
                break
        return sorted(plans, key=self._plan_key)

    def _exact_plan(self, entry: _Scored) -> RankedPlan | None:
        """The entry computed exactly, once; None where it does not fit then."""
        if entry.plan is None:
            estimate = self.space.estimate(entry.setup, entry.cluster)
            plan = RankedPlan(estimate=estimate, offer=entry.offer, assumed=self.assumed)
            if plan.estimate.verdict is not Verdict.FITS:
                self._failed.add(id(entry))
                method = entry.setup.recipe.method.value
                self._refuse(entry.candidate, f"{method} fits by its bound, but not when computed exactly", None)
                return None
            entry.plan, entry.hours, entry.usd = plan, plan.hours, plan.usd
        return entry.plan

    def _settled(self, entry: _Scored) -> _Scored | None:
        """What takes the place of an entry on the front: its exact self, else the same with a smaller micro batch.

        What is within its bound fits, unless torch's own segments leave gaps: only those need all of the estimate.
        """
        if entry.setup.recipe.expandable_segments:
            self._time(entry)
        elif self._exact_plan(entry) is None:
            return self._with_smaller_batch(entry)
        return entry if self._is_within_limits(entry) else None

    def _time(self, entry: _Scored) -> None:
        seconds = self.space.exact_run_seconds(entry.setup, entry.cluster)
        entry.hours, entry.usd = self._hours_and_usd(seconds, entry.cluster, entry.offer, entry.setup)
        entry.is_timed = True

    def front(self) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
        """The front of cost against time, its members computed exactly, and everything that it is the front of."""
        fitting = [entry for entry in self._within if id(entry) not in self._failed]
        members, left = settled(fitting, self._settled)
        points = {id(entry): point for entry in left if (point := _point(entry)) is not None}
        return tuple(points[id(entry)] for entry in members), tuple(points.values())

    def _plan_key(self, plan: RankedPlan) -> tuple[Any, ...]:
        num_gpus, num_bytes = plan.estimate.cluster.num_gpus, plan.estimate.device.device_bytes
        return _rank_key(self.objective, plan.hours, plan.usd, num_gpus, num_bytes)

    def rejections(self) -> Iterator[Rejection]:
        """The candidates for which no setup is left."""
        left = {id(entry.candidate) for entry in self._within if id(entry) not in self._failed}
        for key, (candidate, reason, change) in self._refused.items():
            if key not in left:
                yield Rejection(cluster=candidate.cluster, reason=reason, smallest_change=change)


def _point(entry: _Scored) -> Point | None:
    hours, usd, recipe = entry.hours, entry.usd, entry.setup.recipe
    if hours is None or usd is None:
        return None
    offer, is_exact = entry.offer, entry.is_exact
    return Point(cluster=entry.cluster, offer=offer, recipe=recipe, hours=hours, usd=usd, is_exact=is_exact)


def _over_limits(scored: Sequence[_Scored]) -> str:
    hours = min((entry.hours for entry in scored if entry.hours is not None), default=None)
    usd = min((entry.usd for entry in scored if entry.usd is not None), default=None)
    if hours is None and usd is None:
        return "fits, but its speed or price is not known"
    parts = [] if hours is None else [duration_text(hours * SECONDS_PER_HOUR)]
    parts += [] if usd is None else [usd_text(usd)]
    return f"fits, but needs at least {' or '.join(parts)}: over the limits"
