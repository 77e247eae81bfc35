"""What ``vlmplan.recommend`` and ``vlmplan.advise`` return. US dollars and hours are floats."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.machine import OnMachine, Priced, Timed
from vlmplan.api.planned import Planned
from vlmplan.api.record import Value
from vlmplan.api.way_out import Answer
from vlmplan.units import counted

if TYPE_CHECKING:
    from pathlib import Path


class RankedPlan(OnMachine, Priced, Planned):
    """A setup that fits, with its machine and what the whole run costs there."""

    rank = Value[int]("The plan's place among all, from 1.")
    recipe = Value[Mapping[str, Any]]("How it is trained: every setting, and the samples.")
    offer = Value[Mapping[str, Any] | None](
        "Who rents it, which product, at which price of which day; None for a machine without one."
    )
    hours_range = Value[tuple[float, float] | None]("``hours`` at best and at worst.")
    usd_range = Value[tuple[float, float] | None]("``usd`` at best and at worst, at the price of ``offer``.")
    billed_hours = Value[float | None](
        "Hours that the machines are there for, start-up, download and interruptions included."
    )

    @property
    def estimate(self) -> EstimateResult:
        """The plan's bytes and seconds."""
        return EstimateResult(*self._more["estimate"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.rank}: {self.num_gpus} x {self.gpu}>"


class Rejection(OnMachine):
    """A machine on which nothing fits."""

    reason = Value[str]("Why, in a sentence.")
    smallest_change = Value[str | None]("What would help; None where nothing that is known does.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.num_gpus} x {self.gpu}: {self.reason}>"


class RecommendResult(Answer):
    """The best setups over many kinds of hardware: what ``vlmplan recommend`` answers (schema
    ``vlmplan.recommendation/1``)."""

    objective = Value[Literal["cost", "time", "vram"]]("What the plans are ordered by.")
    explanation = Value[str | None]("Why the best is before the next of other hardware or another method.")

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return bool(self._more["plans"])

    @property
    def plans(self) -> tuple[RankedPlan, ...]:
        """Setups that fit, the best first; empty where nothing does."""
        return tuple(RankedPlan(*parts) for parts in self._more["plans"])

    @property
    def plan(self) -> RankedPlan:
        """The best. Raises DoesNotFitError where nothing fits."""
        if not self._more["plans"]:
            from vlmplan.errors import DoesNotFitError

            raise DoesNotFitError("nothing fits, so there is no plan; rejected says why, and to_fit what to change")
        return RankedPlan(*self._more["plans"][0])

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """Machines on which nothing fits."""
        return tuple(map(Rejection, self._more["rejected"]))

    def save(self, path: str | PathLike[str], *, force: bool = False) -> "Path":
        """``plan.save``: write the best plan's plan.json."""
        return self.plan.save(path, force=force)

    def write(self, folder: str | PathLike[str], *, force: bool = False) -> "tuple[Path, ...]":
        """``plan.write``: write what ``recommend --out`` writes."""
        return self.plan.write(folder, force=force)

    def __repr__(self) -> str:
        best = repr(self.plan) if self.fits else "nothing fits"
        return f"<{type(self).__name__}: {counted(len(self._more['plans']), 'plan')}, {best}>"


class Change(Timed):
    """One change of the best plan, and what it buys."""

    name = Value[str]("The change in words.", at="change")
    options = Value[str]("The command line's options that make it.")
    keeps_results = Value[bool]("Whether the same model comes out, but for rounding.")
    fits = Value[bool]("Whether anything fits with it.")
    hours_change = Value[float | None]("Against the plan as it is: -0.5 is half the time.")
    usd_change = Value[float | None]("Against the plan as it is: -0.5 is half the money.")
    reason = Value[str | None]("Why nothing fits with it.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"


class AdviseResult(Answer):
    """What each single change of the best plan buys: what ``vlmplan advise`` answers (schema ``vlmplan.advice/1``)."""

    objective = Value[Literal["cost", "time"]]("What is to become less.")
    advice = Value[str]("The best change in a sentence, with what it buys.")

    @property
    def fits(self) -> bool:
        """Whether anything does without a change."""
        return self._values["base"] is not None

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that were tried."""
        return tuple(map(Change, self._more["changes"]))

    @property
    def best(self) -> Change | None:
        """The change that buys most; None where none buys anything."""
        return next((change for change in self.changes if change.name == self._values["best"]), None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.advice}>"
