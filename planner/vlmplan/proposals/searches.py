"""Searches of one model with changed requests."""

from collections.abc import Callable
from datetime import date

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.request import Request
from vlmplan.search import RankedPlan, SearchQuery, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.options import search_query
from vlmplan.workload import ModelFiles


class Searches:
    """What ``vlmplan recommend`` says of requests: a ``changes.least.Judge`` for which time counts nothing."""

    def __init__(self, catalog: Catalog, model: ModelFiles, today: date) -> None:
        self.catalog, self._model, self._today = catalog, model, today
        self._best: dict[Request, RankedPlan | None] = {}

    def query(self, request: Request, wants: Callable[[Candidate], bool] = lambda _: True) -> SearchQuery:
        return search_query(request, self.catalog, self._model, self._today, wants=wants)

    def best(self, request: Request) -> RankedPlan | None:
        """The first plan; None where nothing fits, or the options contradict each other."""
        if request not in self._best:
            try:
                plans = recommend(self.query(request)).plans
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
