"""Which setup to take: every method, engine and checkpointing choice on every cluster, ranked.

Memory is bounded in closed form first (``memory.bounds``), the micro batch is solved for from that, and seconds come
from the roofline; what is ranked best is then estimated exactly before it is believed.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum
from itertools import count
from math import inf
from typing import Any

from vlmplan.cost import CostAssumptions, RunBytes, RunCost, run_cost
from vlmplan.errors import InputError
from vlmplan.estimate import Estimate
from vlmplan.hardware import Cluster, Offer
from vlmplan.memory.device import Verdict, budget_bytes, device_memory
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.recipe import Method, Offload, Recipe
from vlmplan.search.choices import Engine
from vlmplan.search.clusters import Candidate
from vlmplan.search.pareto import Point, settled
from vlmplan.search.prices import price_note
from vlmplan.search.setups import Prepared, Setup, SetupSpace, Way
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
NOTICEABLE_FRACTION = 0.005
"""Part by which a setup has to be better before it is worth finding out exactly whether it fits. A choice: seconds are
less certain."""
EQUAL_FRACTION = 0.002
"""Part by which two engines' time and money may differ and the simpler one is taken. A choice."""


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
    is_measured: bool = False
    """Bytes are those of its timeline."""
    has_failed: bool = False
    """It does not fit when computed exactly."""

    @property
    def method(self) -> Method:
        return self.setup.recipe.method

    @property
    def is_exact(self) -> bool:
        return self.is_timed or self.plan is not None

    @property
    def simplicity(self) -> tuple[Any, ...]:
        """Orders engines by how much has to go well, the simplest first."""
        recipe = self.setup.recipe
        on_host = (recipe.offload_params is not Offload.NONE, recipe.offload_optimizer is not Offload.NONE)
        return (*on_host, -1 if recipe.zero_stage is None else recipe.zero_stage, recipe.hpz)

    def is_as_good_as(self, other: "_Scored", tolerance: float = 0.0) -> bool:
        """Whether it takes no more time and no more money, up to a part; what is not known takes most."""
        pairs = ((self.hours, other.hours), (self.usd, other.usd))
        return all(theirs is None or (ours is not None and ours <= theirs * (1 + tolerance)) for ours, theirs in pairs)

    def key(self, objective: Objective) -> tuple[Any, ...]:
        device_bytes = _device_bytes(self.setup.least_bytes, self.cluster)
        return _rank_key(objective, self.hours, self.usd, self.cluster.num_gpus, device_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class _Unexplored:
    """A method on a candidate, with what none of its setups undercuts: time and money, or bytes of a GPU."""

    candidate: Candidate
    method: Method
    ways: list[Way]
    hours: float
    usd: float | None
    device_bytes: int = 0

    def key(self, objective: Objective) -> tuple[Any, ...]:
        return _rank_key(objective, self.hours, self.usd, self.candidate.cluster.num_gpus, self.device_bytes)

    def may_be_better_than(self, others: Iterable[_Scored]) -> bool:
        """Whether none of ``others`` is both as fast and as cheap as it could be."""
        usd = inf if self.usd is None else self.usd
        known = [(inf if one.hours is None else one.hours, inf if one.usd is None else one.usd) for one in others]
        return not any(hours <= self.hours and price <= usd for hours, price in known)


def _device_bytes(num_bytes: int, cluster: Cluster) -> int:
    """What a GPU shows whose tensors take ``num_bytes``."""
    return device_memory(num_bytes + workspace_bytes(cluster.node.gpu), cluster).device_bytes


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
    """What has been found: setups ``_within`` the limits, and what is still ``_open``: nobody has looked at it yet."""

    def __init__(self, sought: Sought, prepared: Prepared | None) -> None:
        self.objective, self.limits, self.assumed = sought.objective, sought.limits, sought.assumed
        global_batch = sought.workload.global_batch or DEFAULT_GLOBAL_BATCH
        self.space = SetupSpace(sought.workload, sought.fixed, global_batch, prepared=prepared)
        self._candidates = sought.candidates
        self._within: list[_Scored] = []
        self._open: list[_Unexplored] = []
        # Why a candidate has no plan: setups over the limits, bytes that a host lacks, what the allocator cannot place.
        self._over_limits: dict[int, list[_Scored | _Unexplored]] = {}
        self._host_short: dict[int, int] = {}
        self._unplaced: set[int] = set()
        self._machines: dict[tuple[int, int], Cluster] = {}

    def consider(self, candidate: Candidate) -> None:
        """Note what the methods could reach on the candidate."""
        for method in self.space.choices.methods:
            ways = self.space.ways(candidate.cluster, method)
            if ways:
                unexplored = self._unexplored(candidate, ways)
                if self._is_within_limits(unexplored):
                    self._open.append(unexplored)
                else:
                    self._over_limits.setdefault(id(candidate), []).append(unexplored)

    def _unexplored(self, candidate: Candidate, ways: list[Way]) -> _Unexplored:
        cluster, method = candidate.cluster, ways[0].recipe.method
        hours = ways[0].least_seconds / SECONDS_PER_HOUR
        offer = candidate.offers[0] if candidate.offers else None
        cost = _cost(hours, offer, cluster, self.space.least_disk(cluster, method), self.assumed)
        num_bytes = self.space.floor_bytes(cluster, method) if self.objective is Objective.VRAM else 0
        usd = None if cost is None else cost.usd
        return _Unexplored(candidate, method, ways, hours, usd, _device_bytes(num_bytes, cluster))

    def _explored(self, entry: _Unexplored) -> list[_Scored]:
        """The setups of a method that fit one of the candidate's machines, or may.

        Where none does by its bound, those that take least memory are computed exactly: others are worth a look only if
        one of them fits.
        """
        self._open.remove(entry)
        candidate, method = entry.candidate, entry.method
        cluster = candidate.cluster
        if self.objective is Objective.VRAM:
            found = self._scored(candidate, self.space.smallest(cluster, method))
        else:
            found = self._of_least_seconds(candidate, entry.ways)
            if not any(one.setup.fits for one in found):
                lightest = self.space.fitting_lightest(cluster, method)
                fitting = [] if lightest is None else self._scored(candidate, [lightest])
                found = self._simplest([*fitting, *found]) if fitting else []
        within = self._only_within_limits(found)
        if found and not within:
            self._over_limits.setdefault(id(candidate), []).extend(found)
        self._within += within
        return within

    def _of_least_seconds(self, candidate: Candidate, ways: list[Way]) -> list[_Scored]:
        """The fastest setups that fit, and faster ones that may, unless another is faster and cheaper than they can
        be.

        Without expandable segments everything stays: what fits may still be more than the allocator can place.
        """
        cluster = candidate.cluster
        is_exact = ways[0].recipe.expandable_segments
        best: _Scored | None = None

        def below(way: Way) -> float:
            if not is_exact or best is None or best.hours is None or not self._writes_less(best, way.engine):
                return inf
            return best.hours * SECONDS_PER_HOUR * (1 + EQUAL_FRACTION)

        found: list[_Scored] = []
        for setup in self.space.fastest(ways, cluster, below):
            for entry in self._scored(candidate, [setup]):
                found.append(entry)
                is_cheapest = entry.cluster is cluster and setup.fits and entry.hours is not None
                if is_cheapest and (best is None or entry.is_as_good_as(best)):
                    best = entry
        return self._simplest(found) if is_exact else found

    def _writes_less(self, entry: _Scored, engine: Engine) -> bool:
        """Whether the entry's checkpoints and results take no more room than the engine's."""
        ours, theirs = self.space.disk(entry.setup.recipe), self.space.disk(engine[0])
        return ours.checkpoint_bytes <= theirs.checkpoint_bytes and ours.export_bytes <= theirs.export_bytes

    def _simplest(self, found: list[_Scored]) -> list[_Scored]:
        """Without what is not noticeably better than a setup that fits: of equals the simplest engine stays."""
        kept: list[_Scored] = []
        for entry in sorted(found, key=lambda entry: entry.simplicity):
            tolerance = EQUAL_FRACTION if entry.setup.fits else NOTICEABLE_FRACTION
            if not any(other.setup.fits and other.is_as_good_as(entry, tolerance) for other in kept):
                kept = [other for other in kept if not (entry.setup.fits and entry.is_as_good_as(other))]
                kept.append(entry)
        return kept

    def _scored(self, candidate: Candidate, setups: Iterable[Setup]) -> list[_Scored]:
        """The setups that one of the candidate's machines has enough host memory for."""
        scored: list[_Scored] = []
        for setup in setups:
            host_bytes = self.space.host_bytes(setup, candidate.cluster)
            machine = self._machine(candidate, host_bytes)
            if machine is None:
                known = self._host_short.setdefault(id(candidate), host_bytes)
                self._host_short[id(candidate)] = min(known, host_bytes)
            else:
                scored.append(self._score(candidate, *machine, setup))
        return scored

    def _machine(self, candidate: Candidate, num_bytes: int) -> tuple[Cluster, Offer | None] | None:
        """The cheapest with ``num_bytes`` of host memory; each is one object."""
        found = candidate.with_host_bytes(num_bytes)
        if found is None:
            return None
        cluster, offer = found
        if offer is None or offer is candidate.offers[0]:
            return candidate.cluster, offer
        return self._machines.setdefault((id(candidate), id(offer)), cluster), offer

    def _score(self, candidate: Candidate, cluster: Cluster, offer: Offer | None, setup: Setup) -> _Scored:
        seconds = self.space.run_seconds(setup, cluster)
        hours, usd = self._hours_and_usd(seconds, cluster, offer, setup)
        is_measured = setup.fits and self.objective is not Objective.VRAM
        return _Scored(candidate, cluster, offer, setup, hours, usd, is_measured=is_measured)

    def _hours_and_usd(
        self, seconds: float | None, cluster: Cluster, offer: Offer | None, setup: Setup
    ) -> tuple[float | None, float | None]:
        hours = None if seconds is None else seconds / SECONDS_PER_HOUR
        cost = _cost(hours, offer, cluster, self.space.disk(setup.recipe), self.assumed)
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

    def _only_within_limits(self, entries: Iterable[_Scored]) -> list[_Scored]:
        return [entry for entry in entries if self._is_within_limits(entry)]

    def _is_within_limits(self, entry: _Scored | _Unexplored) -> bool:
        limits = self.limits
        if limits.max_usd is not None and (entry.usd is None or entry.usd > limits.max_usd):
            return False
        return limits.max_hours is None or (entry.hours is not None and entry.hours <= limits.max_hours)

    def best_plans(self) -> list[RankedPlan]:
        """The first plans that fit when computed exactly: one per candidate and method, every method once.

        What fits by no bound is computed when it would come next. Tensors that fit may still be more than the native
        allocator can place; a smaller micro batch comes next then.
        """
        places = count()
        ordered: list[tuple[Any, int, _Scored | _Unexplored]] = []

        def push(entry: _Scored | _Unexplored) -> None:
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
            if isinstance(entry, _Unexplored):
                for one in self._explored(entry):
                    push(one)
                continue
            if not entry.is_measured:
                self._measure(entry)
                if not entry.has_failed:
                    push(entry)
                continue
            plan = self._exact_plan(entry)
            if plan is None:
                smaller = self._with_smaller_batch(entry)
                if smaller is not None:
                    push(smaller)
                continue
            seen.add(place)
            wanted.discard(entry.method)
            plans.append(plan)
        return sorted(plans, key=self._plan_key)

    def _measure(self, entry: _Scored) -> None:
        """Look at the timeline of what does not fit by its bound, or whose memory is what counts."""
        needed = self.space.needed_bytes(entry.setup, entry.cluster)
        entry.setup = replace(entry.setup, most_bytes=needed, least_bytes=needed, fits=True)
        entry.is_measured = True
        if needed > budget_bytes(entry.cluster):
            entry.has_failed = True

    def _exact_plan(self, entry: _Scored) -> RankedPlan | None:
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
        """The front of cost against time of all that fits, its members computed exactly, and all that it is of.

        What fits by no bound is on it only if it was computed already.
        """
        while True:
            fitting = [entry for entry in self._within if entry.setup.fits and not entry.has_failed]
            members, left = settled(fitting, self._settled)
            self._within = left
            better = [entry for entry in self._open if entry.usd is not None and entry.may_be_better_than(members)]
            if not better:
                break
            for entry in better:
                self._explored(entry)
        points = {id(entry): point for entry in left if (point := _point(entry)) is not None}
        return tuple(points[id(entry)] for entry in members), tuple(points.values())

    def _plan_key(self, plan: RankedPlan) -> tuple[Any, ...]:
        num_gpus, num_bytes = plan.estimate.cluster.num_gpus, plan.estimate.device.device_bytes
        return _rank_key(self.objective, plan.hours, plan.usd, num_gpus, num_bytes)

    def rejections(self) -> Iterator[Rejection]:
        """The candidates for which no setup is left."""
        left = {id(entry.candidate) for entry in self._within if entry.setup.fits and not entry.has_failed}
        left |= {id(entry.candidate) for entry in self._open}  # that they may be possible is all that is known
        for candidate in self._candidates:
            if id(candidate) not in left:
                reason, change = self._reason(candidate)
                yield Rejection(cluster=candidate.cluster, reason=reason, smallest_change=change)

    def _reason(self, candidate: Candidate) -> tuple[str, str | None]:
        """Why there is no plan: too little memory on the GPUs or the host, or a limit; and what would help."""
        key = id(candidate)
        if key in self._over_limits:
            return _over_limits(self._over_limits[key]), None
        if key in self._unplaced:
            return "its tensors fit, but the allocator cannot place them; --expandable-segments lets it", None
        if key in self._host_short:
            return self._host_reason(candidate, self._host_short[key]), None
        return self.space.refusal(candidate.cluster)

    def _host_reason(self, candidate: Candidate, needed: int) -> str:
        return f"the host needs {gib_text(needed)} and {candidate.host_text}"


def _point(entry: _Scored) -> Point | None:
    hours, usd, recipe = entry.hours, entry.usd, entry.setup.recipe
    if hours is None or usd is None:
        return None
    offer, is_exact = entry.offer, entry.is_exact
    return Point(cluster=entry.cluster, offer=offer, recipe=recipe, hours=hours, usd=usd, is_exact=is_exact)


def _over_limits(scored: Sequence[_Scored | _Unexplored]) -> str:
    hours = min((entry.hours for entry in scored if entry.hours is not None), default=None)
    usd = min((entry.usd for entry in scored if entry.usd is not None), default=None)
    if hours is None and usd is None:
        return "fits, but its speed or price is not known"
    parts = [] if hours is None else [duration_text(hours * SECONDS_PER_HOUR)]
    parts += [] if usd is None else [usd_text(usd)]
    return f"fits, but needs at least {' or '.join(parts)}: over the limits"
