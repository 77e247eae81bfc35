"""What a search ranks: setups on machines, and methods on machines that are not explored yet."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from vlmplan.hardware import Cluster, Offer
from vlmplan.memory.device import expandable_device_bytes
from vlmplan.memory.overhead import ProcessGroup, process_group, workspace_bytes
from vlmplan.recipe.choices import Method, Offload
from vlmplan.search.answer import Limits, Objective, RankedPlan
from vlmplan.search.clusters import Candidate
from vlmplan.search.pareto import Point
from vlmplan.search.setup_records import BoundedSetup, RecipeCandidate
from vlmplan.units import SECONDS_PER_HOUR, duration_text, usd_text


@dataclass(slots=True)
class ScoredSetup:
    """A setup on a machine of a candidate, with the numbers it is ranked by: those of ``plan`` once that is known."""

    candidate: Candidate
    cluster: Cluster
    offer: Offer | None
    setup: BoundedSetup
    hours: float | None
    usd: float | None
    plan: RankedPlan | None = None
    is_timed: bool = False
    """Hours and price are those of the setup itself, though it has no plan."""
    is_bounded_closely: bool = False
    is_measured: bool = False
    """It fits by its bound, or bytes are those of its timeline."""
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
        stage = -1 if recipe.zero_stage is None else recipe.zero_stage
        return (*on_host, stage, recipe.hpz, -(recipe.dp_shard_size or inf))

    def is_as_good_as(self, other: "ScoredSetup", tolerance: float = 0.0) -> bool:
        """Whether it takes no more time and no more money, up to a part; what is not known takes most."""
        pairs = ((self.hours, other.hours), (self.usd, other.usd))
        return all(theirs is None or (ours is not None and ours <= theirs * (1 + tolerance)) for ours, theirs in pairs)

    def key(self, objective: Objective) -> tuple[Any, ...]:
        plan = self.plan
        if plan is None:
            group = process_group(self.setup.recipe, self.cluster.num_gpus)
            device_bytes = shown_bytes(self.setup.least_bytes, self.cluster, group)
        else:
            device_bytes = plan.estimate.device.device_bytes
        return rank_key(objective, self.hours, self.usd, self.cluster.num_gpus, device_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class UnexploredMethod:
    """A method on a candidate, with what none of its setups undercuts: time and money, or bytes of a GPU.

    ``ways`` are None until somebody asks whether it has any; its floors are those of all ways then, whatever fits.
    """

    candidate: Candidate
    method: Method
    ways: list[RecipeCandidate] | None
    hours: float
    usd: float | None
    device_bytes: int = 0

    def key(self, objective: Objective) -> tuple[Any, ...]:
        return rank_key(objective, self.hours, self.usd, self.candidate.cluster.num_gpus, self.device_bytes)

    def may_be_better_than(self, front: Sequence[tuple[float, float]]) -> bool:
        """Whether nothing on a front, (hours, usd) by rising hours, is both as fast and as cheap as it could be."""
        place = bisect_right(front, (self.hours, inf))
        return place == 0 or (self.usd is not None and self.usd < front[place - 1][1])


def shown_bytes(num_bytes: int, cluster: Cluster, group: ProcessGroup = ProcessGroup.NONE) -> int:
    """What a GPU shows whose tensors take ``num_bytes``; at the least, where no recipe says the process group."""
    return expandable_device_bytes(num_bytes + workspace_bytes(cluster.node.gpu), cluster, group)


def rank_key(
    objective: Objective, hours: float | None, usd: float | None, num_gpus: int, num_bytes: int
) -> tuple[Any, ...]:
    """What is not known comes last; without prices the fewest GPU hours win."""
    hours = inf if hours is None else hours
    usd = inf if usd is None else usd
    if objective is Objective.TIME:
        return (hours, usd)
    if objective is Objective.VRAM:
        return (num_bytes, usd, hours)
    return (usd, hours * num_gpus, hours)


def pareto_point(entry: ScoredSetup) -> Point | None:
    """The entry among cost and time; None where one of them is not known."""
    hours, usd, recipe = entry.hours, entry.usd, entry.setup.recipe
    if hours is None or usd is None:
        return None
    offer, is_exact = entry.offer, entry.is_exact
    return Point(cluster=entry.cluster, offer=offer, recipe=recipe, hours=hours, usd=usd, is_exact=is_exact)


class OverLimits(NamedTuple):
    """What is over a limit on a machine: ``hours`` and ``usd`` are the least of what was looked at there, None where
    nothing is known. ``fits``: some of it is known to; of the rest nothing but the least of its time was looked at."""

    hours: float | None
    usd: float | None
    limits: Limits
    fits: bool

    @classmethod
    def of(cls, scored: Sequence[ScoredSetup | UnexploredMethod], limits: Limits) -> "OverLimits":
        hours = min((entry.hours for entry in scored if entry.hours is not None), default=None)
        usd = min((entry.usd for entry in scored if entry.usd is not None), default=None)
        fits = any(isinstance(entry, ScoredSetup) and entry.setup.fits for entry in scored)
        return cls(hours=hours, usd=usd, limits=limits, fits=fits)

    @property
    def share_of_limit(self) -> float:
        """The least of what is over a limit, as a part of it; infinite where it is not known."""
        pairs = ((self.hours, self.limits.max_hours), (self.usd, self.limits.max_usd))
        return max(inf if least is None else least / most for least, most in pairs if most is not None)

    @property
    def text(self) -> str:
        """Why the machine has no plan: every limit that is not kept, or both that cannot be kept at once."""
        max_hours, max_usd, reasons = self.limits.max_hours, self.limits.max_usd, list[str]()
        if max_usd is not None and self.usd is None:
            reasons.append(f"no price is known to hold against --max-usd {max_usd:g}")
        elif max_usd is not None and self.usd is not None and self.usd > max_usd:
            reasons.append(f"the run costs at least {usd_text(self.usd)}, --max-usd is {max_usd:g}")
        if max_hours is not None and self.hours is None:
            reasons.append(f"no speed is known to hold against --max-hours {max_hours:g}")
        elif max_hours is not None and self.hours is not None and self.hours > max_hours:
            least = duration_text(self.hours * SECONDS_PER_HOUR)
            reasons.append(f"training takes at least {least}, --max-hours is {max_hours:g}")
        both = f"--max-usd {max_usd or 0:g} and --max-hours {max_hours or 0:g} are not kept by the same setup"
        begin = "fits, but over the limits" if self.fits else "over the limits, whether it fits or not"
        return f"{begin}: {'; '.join(reasons) or both}"
