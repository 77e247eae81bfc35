"""What can be trained on given cards and how: of every model the fastest setup of each method that fits."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import chain

from vlmplan.errors import InputError, require_within
from vlmplan.hardware import Cluster
from vlmplan.machine.host import num_host_cpus
from vlmplan.proposals.confirmation import searched
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import SEARCHED_METHODS, Method
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request import WorkloadRequest
from vlmplan.request.samples import workload_of
from vlmplan.requested import model_of_many_setups
from vlmplan.search import Objective, Recommendation, SearchQuery
from vlmplan.search.answer import SHOWN_REASONS
from vlmplan.search.clusters import Candidate, taken_host_bytes
from vlmplan.search.recommendation import possible_methods
from vlmplan.units import MAX_COUNT
from vlmplan.workload import ModelFiles

MODELS_PER_PROCESS = 8
"""Models that are worth another process, whose start costs as much as two or three take. A choice."""
MAX_PROCESSES = 8
MODELS_AT_ONCE = 4
"""Models that a process is given at once, after which it collects what their searches left. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestSetup:
    """The fastest setup of one method; ``hours`` of the whole workload are None where the speed is not known."""

    recipe: Recipe
    seq_len: int
    num_samples: int
    device_bytes: int
    usable_bytes: int
    host_bytes: int
    step_seconds: float | None
    hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableModel:
    """One model: its ways by method, those that fit; ``reason`` says why there is none. ``is_refused``: however much
    memory there is."""

    model_id: str
    ways: Mapping[Method, FastestSetup] = field(hash=False)
    reason: str | None = None
    is_refused: bool = False

    @property
    def best(self) -> FastestSetup | None:
        """The way that trains most: full before LoRA before QLoRA."""
        return next((self.ways[method] for method in Method if method in self.ways), None)


def with_known_host(cluster: Cluster) -> Cluster:
    """The cluster with the assumed host memory where it is not known."""
    node = cluster.node
    if node.host_ram_bytes is not None:
        return cluster
    ram = taken_host_bytes(node)
    return replace(cluster, node=replace(node, host_ram_bytes=ram, host_ram_source="a machine as it is assumed"))


def trainable(
    models: Sequence[ModelFiles],
    cluster: Cluster,
    *,
    methods: Sequence[Method],
    seq_len: int | None,
    today: date,
    say: Callable[[str], None] = lambda text: None,
) -> list[TrainableModel]:
    """What of the models can be trained on the cluster, in several processes where there are many. ``say`` is called
    with the name of every model that is done, in their order.

    Raises InputError for a length that no sample has.
    """
    require_within("--seq-len", seq_len, least=1, most=MAX_COUNT)
    one = partial(trainable_model, cluster=cluster, methods=methods, seq_len=seq_len, today=today)
    most = min(num_host_cpus() or 1, MAX_PROCESSES, len(models) // MODELS_PER_PROCESS)
    if most < 2:
        return list(_told(map(one, models), say))
    parts = [models[start : start + MODELS_AT_ONCE] for start in range(0, len(models), MODELS_AT_ONCE)]
    with ProcessPoolExecutor(max_workers=most, initializer=gc.freeze) as pool:
        return list(_told(chain.from_iterable(pool.map(partial(_rows, one=one), parts)), say))


def _rows(models: Sequence[ModelFiles], one: Callable[[ModelFiles], TrainableModel]) -> list[TrainableModel]:
    """The models' rows. An estimator refers to itself, and a command collects nothing: after the models of a whole list
    a process would have a gigabyte of them."""
    rows = [one(model) for model in models]
    gc.collect()
    return rows


def _told(rows: Iterable[TrainableModel], say: Callable[[str], None]) -> Iterator[TrainableModel]:
    for row in rows:
        say(row.model_id)
        yield row


def trainable_model(
    model: ModelFiles, *, cluster: Cluster, methods: Sequence[Method], seq_len: int | None, today: date
) -> TrainableModel:
    """The fastest setup of each method for the default workload, by the search of ``recommend``."""
    ways: dict[Method, FastestSetup] = {}
    refused: dict[str, bool] = {}
    try:
        samples = WorkloadRequest(seq_len=seq_len)
        workload = workload_of(model_of_many_setups(model, samples), samples)
        for method in [None] if set(methods) == set(SEARCHED_METHODS) else methods:
            fixed = DecidedRecipe(method=method)
            candidates = [Candidate(cluster=cluster)]
            query = SearchQuery(
                workload=workload, candidates=candidates, fixed=fixed, objective=Objective.TIME, today=today
            )
            found = _fitting(query)
            refused |= {rejection.reason: rejection.is_rule for rejection in found.rejected}
            for plan in found.plans:
                estimate = plan.estimate
                ways[estimate.recipe.method] = FastestSetup(
                    recipe=estimate.recipe,
                    seq_len=workload.seq_len,
                    num_samples=workload.num_samples,
                    device_bytes=estimate.device.device_bytes,
                    usable_bytes=estimate.device.usable_bytes,
                    host_bytes=estimate.host.peak_bytes,
                    step_seconds=estimate.step_seconds,
                    hours=plan.hours,
                )
    except InputError as error:
        refused[str(error)] = True
    if ways:
        return TrainableModel(model_id=model.id, ways=ways)
    reason = "; ".join(refused) or "nothing fits"
    return TrainableModel(
        model_id=model.id, ways=ways, reason=reason, is_refused=bool(refused) and all(refused.values())
    )


def refuse_rules(rows: Sequence[TrainableModel]) -> None:
    """Raise InputError, as ``recommend`` does, where no model could be trained with any amount of memory."""
    if not rows or not all(row.is_refused for row in rows):
        return
    reasons = {str(row.reason): row.model_id for row in rows}
    if len(reasons) == 1:
        raise InputError(next(iter(reasons)))
    shown = "; ".join(f"{name}: {reason}" for reason, name in list(reasons.items())[:SHOWN_REASONS])
    raise InputError(f"none of the {len(rows)} models can be trained; {shown}")


def _fitting(query: SearchQuery) -> Recommendation:
    """What a search finds, which looks at methods that have no plan only where there is none at all, for the reason."""
    methods = possible_methods(query)
    found = searched(replace(query, methods=methods)) if methods else None
    return found if found is not None and found.plans else searched(query)
