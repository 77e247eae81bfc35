"""Searches of one model with changed requests."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date

from vlmplan.catalog import Catalog
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.gpu_choice import parse_gpu_choice
from vlmplan.request import Options, Request, on_other_machines
from vlmplan.search import Limits, RankedPlan, SearchQuery, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.options import search_query
from vlmplan.search.ranking import plan_key
from vlmplan.search.recommendation import may_have_plans
from vlmplan.workload import ModelFiles

NO_LIMITS = Limits()
ANY_GPU: Options = {"gpu": None, "host_ram": None}
"""Without what speaks of the user's machine and of no other."""


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
                query = self.query(request)
                plans = recommend(query).plans if may_have_plans(query) else ()
            except (InputError, DoesNotFitError):
                plans = ()
            self._best[request] = plans[0] if plans else None
        return self._best[request]

    def plans_elsewhere(
        self, request: Request, wants: Callable[[Candidate], bool], limits: Limits = NO_LIMITS
    ) -> list[RankedPlan]:
        """The plans within ``limits`` on the machines of all offers that ``wants`` takes, best first; none where such
        machines cannot be asked for. A configuration is read for as many GPUs as a machine has."""
        try:
            query = self.query(request.with_options(ANY_GPU), wants)
        except (DoesNotFitError, InputError):
            return []
        if request.configured is None:
            return list(recommend(replace(query, limits=limits)).plans)
        names = {candidate.cluster.node.num_gpus: candidate.cluster.node.gpu.id for candidate in query.candidates}
        plans = [
            plan
            for num_gpus, name in names.items()
            for plan in self._plans_of_as_many(request, wants, f"{name}:{num_gpus}", limits)
        ]
        return sorted(plans, key=lambda plan: plan_key(query.objective, plan))

    def _plans_of_as_many(
        self, request: Request, wants: Callable[[Candidate], bool], gpu: str, limits: Limits
    ) -> Sequence[RankedPlan]:
        """``plans_elsewhere`` on machines of as many GPUs as ``gpu``, which is one of them."""
        num_gpus = parse_gpu_choice(gpu).num_gpus

        def are_as_many(candidate: Candidate) -> bool:
            return candidate.cluster.node.num_gpus == num_gpus and wants(candidate)

        try:
            read = on_other_machines(request, {"gpu": gpu}).with_options(ANY_GPU)
            return recommend(replace(self.query(read, are_as_many), limits=limits)).plans
        except (DoesNotFitError, InputError):
            return ()

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
