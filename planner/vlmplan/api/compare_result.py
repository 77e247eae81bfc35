"""What ``vlmplan.compare`` returns."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.record import Record, Result, Value


class Variant(Record):
    """A setup that differs in one choice."""

    name = Value[str]("The choice in words.")
    is_present = Value[bool]("Whether it is the setup that was asked for.")
    reason = Value[str | None]("Why it cannot be trained; None where it can.")

    @property
    def options(self) -> Mapping[str, Any]:
        """The arguments that differ; None for one that is to be left out."""
        return dict(self._more["options"])

    @property
    def estimate(self) -> EstimateResult | None:
        """What it takes; None where it cannot be trained."""
        parts = self._more["estimate"]
        return None if parts is None else EstimateResult(*parts)

    @property
    def fits(self) -> bool:
        """Whether it runs."""
        return self._values["verdict"] in ("fits", "tight")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}: {self._values['verdict']}>"


class CompareResult(Result):
    """One setup beside others that differ in one choice: what ``vlmplan estimate --compare`` answers (schema
    ``vlmplan.comparison/1``)."""

    by = Value[str]("What the variants differ in.", at="compare")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """All of them, those that cannot be trained too."""
        return tuple(Variant(*parts) for parts in self._more["variants"])

    @property
    def fits(self) -> bool:
        """Whether any of them does."""
        return any(variant.fits for variant in self.variants)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} by {self.by}: {len(self.variants)} variants>"
