"""What to do where a setup does not fit: change the least on the same cards, or take the cheapest other machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date

from vlmplan.catalog import Catalog
from vlmplan.changes.kinds import all_changes
from vlmplan.changes.least import Combination, least_combination
from vlmplan.changes.trials import Trials
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster
from vlmplan.proposals.other_machine import OtherMachine, cheapest_other_machine
from vlmplan.proposals.searches import ANY_GPU, Searches
from vlmplan.proposals.single_changes import searched_changes
from vlmplan.request import Objective, Options, Request, on_other_machines, parse
from vlmplan.request.setup import RequestedSetup
from vlmplan.search import SearchQuery
from vlmplan.search.clusters import Candidate, taken_host_bytes
from vlmplan.search.step_samples import samples_of_every_step
from vlmplan.units import GIB

UNLIMITED: Options = {"max_usd": None, "max_hours": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToFit:
    """Changes and what the setup takes with them."""

    combination: Combination
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """What to change where nothing fits on ``clusters``. Either may be None: nothing that was tried fits.

    ``tries_other_machines`` is False where the search itself has looked at every machine already.
    ``taken_host_bytes``: host memory of a node that nothing is known of, beyond which nothing was put there; None
    where it is known, or nothing was held to it. ``with_more_host`` are then the least changes on a host that has what
    they take, where they keep the results and those within ``taken_host_bytes`` do not. ``card_bytes``: memory of the
    card that ``to_fit`` fits on, where a run told of one that is smaller than those of ``clusters``.
    """

    clusters: tuple[Cluster, ...]
    tries_other_machines: bool = True
    to_fit: ToFit | None = None
    other_machine: OtherMachine | None = None
    taken_host_bytes: int | None = None
    with_more_host: ToFit | None = None
    card_bytes: int | None = None


def way_out(
    request: Request,
    present: Estimate,
    catalog: Catalog,
    today: date,
    *,
    accepts: Callable[[Estimate], bool] | None = None,
    corrected: Callable[[Estimate], Estimate] | None = None,
) -> WayOut:
    """The way out for a request of ``estimate``, which ``present`` is of; ``accepts``: what else what fits on these
    cards has to be; ``corrected``: an estimate with what samples of different lengths take, which ``present`` has.

    A host of unknown memory is taken to have ``taken_host_bytes``, or what the unchanged setup needs if that is more:
    offloading beyond that is proposed apart, with the memory that it takes.
    """
    model, cluster = present.workload.model, present.cluster
    trials = _trials(request, present, catalog, accepts=accepts, corrected=corrected)
    to_fit = _to_fit(request, present, trials)
    others = trials if accepts is None else Trials(catalog, model, corrected=corrected)
    other = cheapest_other_machine(request, cluster, catalog, others, today)
    found = WayOut(clusters=(cluster,), to_fit=to_fit, other_machine=other)
    if cluster.node.host_ram_bytes is not None:
        return found
    more = None
    if to_fit is None or not to_fit.combination.keeps_results:
        more = _with_more_host(request, present, trials.unheld())
    return replace(found, taken_host_bytes=_least_host_bytes(present), with_more_host=more)


def _with_more_host(request: Request, present: Estimate, trials: Trials) -> ToFit | None:
    """The least changes of ``trials``, which hold no host to anything, with the option that says what theirs has."""
    found = _to_fit(request, present, trials)
    if found is None or not found.combination.keeps_results:
        return None
    asked = found.combination.request.with_options({"host_ram": -(-found.estimate.host.peak_bytes // GIB)})
    return replace(found, combination=replace(found.combination, request=asked))


def _to_fit(request: Request, present: Estimate, trials: Trials) -> ToFit | None:
    found = _least_changes(request, present, trials)
    return None if found is None else ToFit(combination=found, estimate=trials.estimate(found.request))


def _trials(
    request: Request,
    present: Estimate,
    catalog: Catalog,
    *,
    accepts: Callable[[Estimate], bool] | None = None,
    corrected: Callable[[Estimate], Estimate] | None = None,
) -> Trials:
    return Trials(
        catalog,
        present.workload.model,
        accepts=accepts,
        least_host_bytes=_least_host_bytes(present),
        own_setup=_own_setup(request, present),
        corrected=corrected,
    )


def _least_host_bytes(present: Estimate) -> int:
    return max(taken_host_bytes(present.cluster.node), present.host.peak_bytes)


def _least_changes(request: Request, present: Estimate, trials: Trials) -> Combination | None:
    space = all_changes(trials.known_setup(request))
    if _own_setup(request, present) is not None:
        from vlmplan.changes.in_file import of_other_trainers

        space = of_other_trainers(space)
    return least_combination(space, request, trials)


def _own_setup(request: Request, present: Estimate) -> Callable[[Request, Cluster], RequestedSetup] | None:
    """What makes setups that the trainer of the request's configuration can train; None for the bundled one."""
    if request.configured is None:
        return None
    from vlmplan.proposals.own_setups import setups_of_trainer

    return setups_of_trainer(request.configured.config.trainer, present)


def searched_way_out(request: Request, query: SearchQuery, searches: Searches) -> WayOut:
    """The way out for a search of ``request`` that finds nothing, whatever it may cost and take.

    What the search decides by itself, it decides anew with every change. A configuration leaves it nothing to decide
    but the machine: then its setup is changed as ``way_out`` does.
    """
    request = request.with_options(UNLIMITED)
    clusters = tuple(candidate.cluster for candidate in query.candidates)
    largest = max(clusters, key=_usable_bytes)
    to_fit = None if request.configured is None else _configured_to_fit(request, searches)
    if to_fit is None:
        at = RequestedSetup(workload=query.workload, recipe=query.fixed.recipe(), cluster=largest)
        samples = samples_of_every_step(query.workload, query.fixed, clusters)
        found = least_combination(searched_changes(at, request, samples), request, searches)
        to_fit = None if found is None else _searched_to_fit(found, searches)
    if not request.hardware.gpus:
        return WayOut(clusters=(largest,), tries_other_machines=False, to_fit=to_fit)
    return WayOut(clusters=clusters, to_fit=to_fit, other_machine=_other_machine(request, clusters, searches))


def _searched_to_fit(found: Combination, searches: Searches) -> ToFit | None:
    best = searches.best(found.request)
    return None if best is None else ToFit(combination=found, estimate=best.estimate)


def _configured_to_fit(request: Request, searches: Searches) -> ToFit | None:
    """The least changes of a configuration's setup on the largest of the machines that the user names; None where he
    names none, where it cannot be trained there, and where a search does not find that it fits."""
    machines = [replace(request, hardware=replace(request.hardware, gpus=(gpu,))) for gpu in request.hardware.gpus]
    if not machines:
        return None
    catalog, model = searches.catalog, request.model_files
    plain = Trials(catalog, model)
    on_largest = max(machines, key=lambda one: _usable_bytes(plain.machine(one.hardware)[0]))
    try:
        present = plain.estimate(on_largest)
    except InputError:
        return None
    found = _least_changes(on_largest, present, _trials(on_largest, present, catalog))
    if found is None:
        return None
    options = replace(found.request, hardware=request.hardware).options()
    read_again = parse(options, request.given_model)  # where an engine is named, less of the file may hold
    return _searched_to_fit(replace(found, request=read_again), searches)


def _usable_bytes(cluster: Cluster) -> int:
    return cluster.num_gpus * cluster.node.gpu.usable_bytes


def _other_machine(request: Request, clusters: tuple[Cluster, ...], searches: Searches) -> OtherMachine | None:
    """The machine of all but these on which the same search finds the cheapest run, with its first plan there."""
    present = {(cluster.node.gpu.id, cluster.node.num_gpus) for cluster in clusters}

    def wants(candidate: Candidate) -> bool:
        node = candidate.cluster.node
        return (node.gpu.id, node.num_gpus) not in present

    goes_by_cost = request.search.objective in (None, Objective.COST)
    by_cost = request if goes_by_cost else request.with_options({"objective": Objective.COST.value})
    plans = searches.plans_elsewhere(by_cost, wants)
    if not plans:
        return None
    node = plans[0].estimate.cluster.node
    there = on_other_machines(request, {**ANY_GPU, "gpu": f"{node.gpu.id}:{node.num_gpus}"})
    plan = plans[0] if goes_by_cost else searches.best(there)
    return None if plan is None else OtherMachine(plan=plan, request=there)
