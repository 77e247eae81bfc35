"""Searches of one model with changed options; what they trace alike they share."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.search import RankedPlan, Recommendation, Sought, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.options import sought
from vlmplan.search.prepared_models import Prepared
from vlmplan.workload import ModelFiles

SHARED_FIELDS = ("method", "activation_checkpointing", "vision_activation_checkpointing")
"""Fields of the recipe that searches with the same traces may differ in."""


class Searches:
    """What ``vlmplan recommend`` says of options: a ``changes.least.Judge`` for which time counts nothing."""

    def __init__(self, catalog: Catalog, model: ModelFiles, today: date) -> None:
        self._catalog, self._model, self._today = catalog, model, today
        self._prepared: list[tuple[Any, Prepared]] = []
        self._best: dict[Hashable, RankedPlan | None] = {}

    def sought(self, given: Mapping[str, Any], wants: Callable[[Candidate], bool] = lambda _: True) -> Sought:
        return sought(given, self._catalog, self._model, self._today, wants=wants)

    def found(self, asked: Sought) -> Recommendation:
        key = asked.workload, replace(asked.fixed, **dict.fromkeys(SHARED_FIELDS))
        prepared = next((prepared for known, prepared in self._prepared if known == key), None)
        if prepared is None:
            prepared = Prepared()
            self._prepared.append((key, prepared))
        return recommend(asked, prepared=prepared)

    def best(self, options: Mapping[str, Any]) -> RankedPlan | None:
        """The first plan; None where nothing fits, or the options do not go together."""
        key = tuple(sorted((name, value) for name, value in options.items() if value is not None))
        if key not in self._best:
            try:
                plans = self.found(self.sought(options)).plans
            except (InputError, DoesNotFitError):
                plans = ()
            self._best[key] = plans[0] if plans else None
        return self._best[key]

    def is_possible(self, options: Mapping[str, Any]) -> bool:
        try:
            self.sought(options)
        except (InputError, DoesNotFitError):
            return False
        return True

    def fits(self, options: Mapping[str, Any]) -> bool:
        return self.best(options) is not None

    def seconds(self, options: Mapping[str, Any]) -> float | None:
        return None

    def are_same(self, options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
        if not (self.is_possible(options) and self.is_possible(others)):
            return False
        asked, other = self.sought(options), self.sought(others)
        return (asked.workload, asked.fixed) == (other.workload, other.fixed)
