"""What a search is asked and what it answers: limits, plans with their prices, rejections, and all of them together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.catalog.price_lists import Spread
from vlmplan.cost import CostAssumptions, RunBytes, RunCost, run_cost
from vlmplan.errors import InputError, require_positive
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster, Offer
from vlmplan.memory.disk import DiskSpace
from vlmplan.recipe.choices import Method
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request import Objective
from vlmplan.search.clusters import Candidate
from vlmplan.search.pareto import Point
from vlmplan.units import MAX_AMOUNT, SECONDS_PER_HOUR, Choice
from vlmplan.workload import Workload

if TYPE_CHECKING:
    from vlmplan.other_trainers.writing import Tool


SHOWN_REASONS = 3
"""Different sentences of rules that are named together. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a plan may cost and take."""

    max_usd: float | None = None
    max_hours: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_usd", "max_hours"):
            require_positive(f"--{name.replace('_', '-')}", getattr(self, name), most=MAX_AMOUNT)


class Compared(Choice):
    """What a search looks at, for a plot of it."""

    NEEDED = "needed"  # what may be a plan or on the front
    MACHINES = "machines"  # every machine with the method that costs least there, too
    METHODS = "methods"  # every machine with every method


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What a search is asked.

    ``fixed`` is what the user decided of the recipe, ``assumed`` what prices need and no list says.
    ``methods`` are those that are looked at where the user leaves it open; None: all that a search looks at.
    ``made_for`` is the trainer within whose limits is searched, None the bundled one. ``grows_on_several``: the
    allocator's segments grow where several GPUs train, and not on one.
    ``known_offers``: of every GPU, to hold prices against.
    ``compares``: what is looked at beside what may be a plan or on the front, which are the same whatever it is.
    """

    workload: Workload
    candidates: Sequence[Candidate]
    fixed: DecidedRecipe = field(default_factory=DecidedRecipe)
    objective: Objective = Objective.COST
    limits: Limits = field(default_factory=Limits)
    assumed: CostAssumptions = field(default_factory=CostAssumptions)
    today: date
    notes: tuple[str, ...] = ()
    compares: Compared = Compared.NEEDED
    methods: tuple[Method, ...] | None = None
    made_for: "Tool | None" = None
    grows_on_several: bool = False
    known_offers: tuple[Offer, ...] | None = None

    @property
    def offers(self) -> Sequence[Offer]:
        """All offers that prices are held against: those of the catalog, else those of the candidates."""
        if self.known_offers is not None:
            return self.known_offers
        return [offer for candidate in self.candidates for offer in candidate.offers]


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
    def hours_range(self) -> tuple[float, float] | None:
        """``hours`` where every step is at the fast and where every step is at the slow end of its range."""
        seconds = self.estimate.run_seconds_range
        return None if seconds is None else (seconds[0] / SECONDS_PER_HOUR, seconds[1] / SECONDS_PER_HOUR)

    @property
    def usd_per_hour(self) -> float | None:
        return None if self.offer is None else self.offer.usd_per_hour * self.estimate.cluster.num_nodes

    @property
    def cost(self) -> RunCost | None:
        return self.cost_of(self.hours)

    def cost_of(self, hours: float | None) -> RunCost | None:
        """The same of a run of ``hours`` of training."""
        estimate = self.estimate
        return cost_of_run(hours, self.offer, estimate.cluster, estimate.disk, self.assumed)

    @property
    def usd(self) -> float | None:
        cost = self.cost
        return None if cost is None else cost.usd

    @property
    def usd_range(self) -> tuple[float, float] | None:
        """``usd`` of the two ends of ``hours_range``, with as many checkpoints as suit each."""
        least, most = map(self.cost_of, self.hours_range or (None, None))
        return None if least is None or most is None else (least.usd, most.usd)

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


def cost_of_run(
    hours: float | None, offer: Offer | None, cluster: Cluster, disk: DiskSpace, assumed: CostAssumptions
) -> RunCost | None:
    """What a run of ``hours`` of training costs on an offer's machines; None where one of them is not known."""
    if hours is None or offer is None:
        return None
    size = RunBytes(
        download_bytes=disk.download_bytes, checkpoint_bytes=disk.checkpoint_bytes, export_bytes=disk.export_bytes
    )
    return run_cost(training_hours=hours, offer=offer, num_nodes=cluster.num_nodes, size=size, assumed=assumed)


class Rejection(NamedTuple):
    """A cluster on which nothing fits, with the reason and the smallest change that would help, if one is known.

    ``share_of_limit``: where something fits that is over a limit, the least of it as a part of the limit. ``is_rule``
    and ``needed_bytes`` are of ``Reason``.
    """

    cluster: Cluster
    reason: str
    smallest_change: str | None = None
    share_of_limit: float | None = None
    is_rule: bool = False
    needed_bytes: int | None = None

    @property
    def label(self) -> str:
        return f"{self.cluster.num_gpus} x {self.cluster.node.gpu.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Plans best first, what was rejected, and how much was looked at.

    ``pareto`` are the setups than which none of ``scored``, those within the limits, is both faster and cheaper, the
    fastest first; both leave out what has no price or no known speed. ``spreads``: by GPU what it costs elsewhere,
    where the price of a plan is old.
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
    spreads: Mapping[str, Spread] = field(default_factory=dict[str, Spread])

    def refuse_rules(self) -> None:
        """Raise InputError where rules refuse every machine, with their one sentence, or that of each machine."""
        if self.plans or not self.rejected or not all(rejection.is_rule for rejection in self.rejected):
            return
        reasons = {rejection.reason: rejection.label for rejection in self.rejected}
        if len(reasons) == 1:
            raise InputError(self.rejected[0].reason)
        shown = "; ".join(f"{label}: {reason}" for reason, label in list(reasons.items())[:SHOWN_REASONS])
        raise InputError(f"none of the {len(self.rejected)} machines can run it; {shown}")

    def best_of(self, method: Method) -> RankedPlan | None:
        return next((plan for plan in self.plans if plan.estimate.recipe.method is method), None)
