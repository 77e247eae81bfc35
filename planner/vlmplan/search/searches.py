"""Searches of one model with changed requests; what they trace alike they share."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.request import Request
from vlmplan.search import RankedPlan, Recommendation, Sought, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.options import sought
from vlmplan.search.prepared_models import Prepared
from vlmplan.workload import ModelFiles

SHARED_FIELDS = ("method", "activation_checkpointing", "vision_activation_checkpointing")
"""Fields of the recipe that searches with the same traces may differ in."""


class Searches:
    """What ``vlmplan recommend`` says of requests: a ``changes.least.Judge`` for which time counts nothing."""

    def __init__(self, catalog: Catalog, model: ModelFiles, today: date) -> None:
        self._catalog, self._model, self._today = catalog, model, today
        self._prepared: list[tuple[Any, Prepared]] = []
        self._best: dict[Request, RankedPlan | None] = {}

    def sought(self, request: Request, wants: Callable[[Candidate], bool] = lambda _: True) -> Sought:
        return sought(request, self._catalog, self._model, self._today, wants=wants)

    def found(self, asked: Sought) -> Recommendation:
        key = asked.workload, replace(asked.fixed, **dict.fromkeys(SHARED_FIELDS))
        prepared = next((prepared for known, prepared in self._prepared if known == key), None)
        if prepared is None:
            prepared = Prepared()
            self._prepared.append((key, prepared))
        return recommend(asked, prepared=prepared)

    def best(self, request: Request) -> RankedPlan | None:
        """The first plan; None where nothing fits, or what is asked for does not go together."""
        if request not in self._best:
            try:
                plans = self.found(self.sought(request)).plans
            except (InputError, DoesNotFitError):
                plans = ()
            self._best[request] = plans[0] if plans else None
        return self._best[request]

    def is_possible(self, request: Request) -> bool:
        try:
            self.sought(request)
        except (InputError, DoesNotFitError):
            return False
        return True

    def fits(self, request: Request) -> bool:
        return self.best(request) is not None

    def seconds(self, request: Request) -> float | None:
        return None

    def are_same(self, request: Request, other: Request) -> bool:
        if not (self.is_possible(request) and self.is_possible(other)):
            return False
        asked, also = self.sought(request), self.sought(other)
        return (asked.workload, asked.fixed) == (also.workload, also.fixed)
