"""Searches of one model with changed requests; what they trace alike they share."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.request import Request
from vlmplan.search import RankedPlan, Recommendation, SearchQuery, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.memoized_estimates import SharedTraces
from vlmplan.search.options import search_query
from vlmplan.workload import ModelFiles

SHARED_FIELDS = ("method", "activation_checkpointing", "vision_activation_checkpointing")
"""Fields of the recipe that searches with the same traces may differ in."""


class Searches:
    """What ``vlmplan recommend`` says of requests: a ``changes.least.Judge`` for which time counts nothing."""

    def __init__(self, catalog: Catalog, model: ModelFiles, today: date) -> None:
        self._catalog, self._model, self._today = catalog, model, today
        self._shared: list[tuple[Any, SharedTraces]] = []
        self._best: dict[Request, RankedPlan | None] = {}

    def query(self, request: Request, wants: Callable[[Candidate], bool] = lambda _: True) -> SearchQuery:
        return search_query(request, self._catalog, self._model, self._today, wants=wants)

    def recommendation(self, query: SearchQuery) -> Recommendation:
        key = query.workload, query.made_for, replace(query.fixed, **dict.fromkeys(SHARED_FIELDS))
        shared = next((shared for known, shared in self._shared if known == key), None)
        if shared is None:
            shared = SharedTraces()
            self._shared.append((key, shared))
        return recommend(query, shared=shared)

    def best(self, request: Request) -> RankedPlan | None:
        """The first plan; None where nothing fits, or the options contradict each other."""
        if request not in self._best:
            try:
                plans = self.recommendation(self.query(request)).plans
            except (InputError, DoesNotFitError):
                plans = ()
            self._best[request] = plans[0] if plans else None
        return self._best[request]

    def is_possible(self, request: Request) -> bool:
        try:
            self.query(request)
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
        query, also = self.query(request), self.query(other)
        return (query.workload, query.fixed) == (also.workload, also.fixed)
