"""The cheapest machine of the catalog's offers on which a setup fits as it is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from vlmplan.catalog import Catalog
from vlmplan.changes.trials import Trials
from vlmplan.cost import CostAssumptions
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.hardware import Cluster, Offer
from vlmplan.request import Options, Request, on_other_machines
from vlmplan.search import RankedPlan
from vlmplan.search.answer import cost_of_run
from vlmplan.search.clusters import Candidate, candidates
from vlmplan.units import divisors


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMachine:
    """A machine with its price, and the request that asks for it."""

    plan: RankedPlan
    request: Request


def cheapest_other_machine(
    request: Request, present: Cluster, catalog: Catalog, trials: Trials, today: date
) -> OtherMachine | None:
    """The machine on which a run of ``request`` costs least, other than ``present``; None where none fits it.

    What changes is ``--gpu``, and on other numbers of GPUs what keeps the samples of a step, where the user said
    anything of them; what follows from it, as the stage where nobody names one, does so as in ``estimate``.
    """
    uses_calibration = request.hardware.uses_calibration
    catalog = catalog.with_readable_calibrations() if uses_calibration else catalog.without_calibrations()
    try:
        found, _ = candidates(catalog, num_nodes=present.num_nodes, today=today)
    except DoesNotFitError:
        return None
    read_for: dict[int, Request | None] = {}  # the request by the number of GPUs that a configuration is read for
    priced: list[_Priced] = []
    for place, candidate in enumerate(found):
        node = candidate.cluster.node
        if (node.gpu.id, node.num_gpus) == (present.node.gpu.id, present.node.num_gpus):
            continue
        gpu = f"{node.gpu.id}:{node.num_gpus}"
        if node.num_gpus not in read_for:
            read_for[node.num_gpus] = _read_for(request, trials, candidate.cluster, gpu)
        read = read_for[node.num_gpus]
        if read is None:
            continue
        asked = read.with_options({"gpu": gpu})
        if trials.is_possible(asked):
            offer = candidate.offers[0]
            key = (_run_usd(trials, asked, offer), offer.usd_per_hour, place)
            priced.append(_Priced(key, candidate, asked))
    return _cheapest(sorted(priced, key=lambda one: one.key), trials)


class _Priced(NamedTuple):
    """A machine at its cheapest offer. ``key``: usd of the run, usd of an hour, and its place in the catalog."""

    key: tuple[float, float, int]
    candidate: Candidate
    request: Request


def _cheapest(priced: Sequence[_Priced], trials: Trials) -> OtherMachine | None:
    """The first that fits, the cheapest first; where its host takes a dearer offer, the others up to that price are
    looked at too."""
    best: tuple[tuple[float, float, int], OtherMachine] | None = None
    for key, candidate, asked in priced:
        if best is not None and best[0] <= key:
            break
        if not trials.fits(asked):
            continue
        estimate = trials.estimate(asked)
        machine = candidate.with_host_bytes(estimate.host.peak_bytes, estimate.resume_host_bytes)
        if machine is None or machine[1] is None:
            continue
        own = (_run_usd(trials, asked, machine[1]), machine[1].usd_per_hour, key[2])
        if best is None or own < best[0]:
            best = own, OtherMachine(plan=RankedPlan(estimate=estimate, offer=machine[1]), request=asked)
    return None if best is None else best[1]


def _read_for(request: Request, trials: Trials, cluster: Cluster, gpu: str) -> Request | None:
    """The request on machines like ``cluster``, which are called ``gpu``; None where there can be none."""
    batch = _same_batch(request, trials, cluster)
    if batch is None:
        return None
    try:
        return on_other_machines(request, {"gpu": gpu, "host_ram": None, **batch})
    except InputError:  # what a configuration means there
        return None


def _run_usd(trials: Trials, request: Request, offer: Offer) -> float:
    """What the run costs; infinite where a speed is not known."""
    cluster, assumed = trials.known_setup(request).cluster, CostAssumptions()
    cost = cost_of_run(trials.run_hours(request), offer, cluster, trials.disk(request), assumed)
    return float("inf") if cost is None else cost.usd


def _same_batch(request: Request, trials: Trials, cluster: Cluster) -> Options | None:
    """Options with which a step on ``cluster`` has as many samples as now, in micro batches no larger; None where that
    cannot be."""
    present = trials.known_setup(request)
    is_said = any(request.option(name) is not None for name in ("micro_batch", "grad_accum", "global_batch"))
    if cluster.num_gpus == present.cluster.num_gpus or not is_said or present.ds_config is not None:
        return {}
    micro_batch = present.recipe.micro_batch
    samples = present.recipe.samples_per_step(present.cluster.num_gpus)
    shares = present.recipe.sequence_parallel
    if cluster.num_gpus % shares:
        return None
    each, rest = divmod(samples, cluster.num_gpus // shares)
    if rest:
        return None
    size = max(size for size in divisors(each) if size <= micro_batch)
    if present.recipe.task is not None and size < present.recipe.task.least_micro_batch:
        return None
    follows = request.workload.global_batch is not None and request.recipe.grad_accum is None
    return {"micro_batch": size} | ({} if follows else {"grad_accum": each // size})
