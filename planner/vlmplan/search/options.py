"""The search that a request means."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import product

from vlmplan.catalog import Catalog
from vlmplan.cost import CostAssumptions
from vlmplan.errors import InputError
from vlmplan.hardware import Pricing
from vlmplan.recipe import PLAIN
from vlmplan.recipe.choices import SEARCHED_METHODS
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request import Request, SearchRequest, network_notes
from vlmplan.request.idle_options import idle_notes_of_evaluation, idle_notes_of_search, typed_recipe
from vlmplan.request.samples import length_notes, workload_of
from vlmplan.request.saving_and_loading import requested_loader_workers, requested_saving
from vlmplan.request.setup import file_notes, fixed_recipe, samples_per_step, with_task
from vlmplan.search import Limits, Objective, SearchQuery
from vlmplan.search.clusters import Candidate, candidates
from vlmplan.search.offers import OfferFilter
from vlmplan.search.step_samples import refuse_other_steps
from vlmplan.workload import DEFAULT_GLOBAL_BATCH, ModelFiles, Workload

ASSUMED_OPTIONS = {
    "interruptions_per_day": "spot_interruptions_per_day",
    "download_gbit_per_second": "download_gbit",
}
"""Options by the field of ``CostAssumptions`` that they state."""


def search_query(
    request: Request,
    catalog: Catalog,
    model: ModelFiles,
    today: date,
    *,
    wants: Callable[[Candidate], bool] = lambda _: True,
) -> SearchQuery:
    """The search of ``request`` among the candidates that ``wants`` takes.

    Raises InputError for a value that is not allowed, DoesNotFitError where no offer is left.
    """
    fixed, wanted, hardware = fixed_recipe(request, model), request.search, request.hardware
    limits = Limits(max_usd=wanted.max_usd, max_hours=wanted.max_hours)
    assumed, offers = _assumed(wanted), _offers(wanted)
    _refuse_what_no_setup_can_do(fixed, request, model)
    if hardware.host_bytes is not None:
        _check_own_machine(request)
    found, more = candidates(
        catalog if hardware.uses_calibration else catalog.without_calibrations(),
        choices=hardware.gpus,
        offers=offers,
        num_nodes=hardware.node_count,
        host_bytes=hardware.host_bytes,
        today=today,
    )
    if (rate := hardware.inter_node_bytes_per_second) is not None:
        found = [candidate.with_network(rate) for candidate in found]
    workload = _workload(request, model)
    refuse_other_steps(workload, fixed, [candidate.cluster for candidate in found])
    notes = (*_notes_of(request, workload, fixed, model), *more, *_notes_without_prices(wanted, found))
    return SearchQuery(
        workload=workload,
        candidates=[candidate for candidate in found if wants(candidate)],
        fixed=fixed,
        made_for=request.made_for,
        grows_on_several=request.configured is not None and request.configured.config.grows_on_several,
        objective=wanted.objective or Objective.COST,
        limits=limits,
        assumed=assumed,
        today=today,
        known_offers=catalog.offers,
        notes=(*notes, *file_notes(request, fixed)),
    )


def _notes_of(request: Request, workload: Workload, fixed: DecidedRecipe, model: ModelFiles) -> tuple[str, ...]:
    """What is said of the request and its samples before anything is searched."""
    own = (*request.config_notes, *workload.model.notes, *network_notes(request.hardware))
    lengths = length_notes(workload, request.workload)
    idle = (*idle_notes_of_search(typed_recipe(request), fixed, model), *idle_notes_of_evaluation(request))
    return (*own, *lengths, *idle)


def _notes_without_prices(wanted: SearchRequest, found: Sequence[Candidate]) -> Iterator[str]:
    """A sentence on what is said of prices where no machine has one."""
    if wanted.download_gbit is not None and not any(candidate.offers for candidate in found):
        yield (
            f"--download-gbit {wanted.download_gbit:g} changes nothing here: it is of what a run costs, and no price "
            f"is known of these machines"
        )


def _workload(request: Request, model: ModelFiles) -> Workload:
    asked = replace(request.workload, global_batch=samples_per_step(request))
    samples = workload_of(model, asked, requested_saving(request), requested_loader_workers(request))
    workload = with_task(samples, request.task.task())
    _refuse_groups(request, workload)
    return workload


def _refuse_groups(request: Request, workload: Workload) -> None:
    """Raise InputError where the samples of a step, which are generated together, are not whole groups of answers."""
    task = request.task.task()
    if task is None or not task.is_grpo or task.is_of_verl or task.scores_rows:  # whose file says it all
        return
    batch = workload.global_batch or DEFAULT_GLOBAL_BATCH
    if task.steps_per_generation is not None:
        raise InputError(
            "--steps-per-generation is of one setup, for estimate; a search generates the answers of a step at once: "
            "leave it off"
        )
    is_fixed = None not in (request.recipe.micro_batch, request.recipe.grad_accum)
    if workload.global_batch is None and is_fixed:  # the sizes are checked with the number of GPUs of a setup
        return
    if batch % task.num_generations:
        raise InputError(
            f"--num-generations {task.num_generations} does not divide the {batch} answers of a step; give another "
            f"--global-batch"
        )


def _refuse_what_no_setup_can_do(fixed: DecidedRecipe, request: Request, model: ModelFiles) -> None:
    """Raise InputError where the trainer that is searched for cannot do what is fixed, whatever else is tried."""
    if request.made_for is None:
        return
    from vlmplan.other_trainers.writing import behaviour, objection, objection_to_experts

    reasons: list[str] = []
    same_everywhere = DecidedRecipe(
        activation_checkpointing=fixed.vision_activation_checkpointing,
        vision_activation_checkpointing=fixed.activation_checkpointing,
    )
    fixed = fixed.completed(same_everywhere)  # where one is said, the other may be the same
    for method, stage in product(SEARCHED_METHODS, (PLAIN, 2)):
        recipe = fixed.completed(DecidedRecipe(method=method, zero_stage=stage)).recipe()
        recipe = fixed.completed(behaviour(request.made_for, recipe, model)).applied_to(recipe)
        reason = objection(request.made_for, recipe, model) or objection_to_experts(request.made_for, recipe, model)
        if reason is None:
            return
        reasons.append(reason)
    raise InputError(reasons[0])


def _assumed(wanted: SearchRequest) -> CostAssumptions:
    if wanted.spot_interruptions_per_day is not None and Pricing.INTERRUPTIBLE not in wanted.pricing:
        raise InputError(
            "--spot-interruptions-per-day is of interruptible machines, which are not looked at; give --pricing "
            "interruptible too, or leave it off"
        )
    stated = {field: getattr(wanted, name) for field, name in ASSUMED_OPTIONS.items()}
    return CostAssumptions(**{field: value for field, value in stated.items() if value is not None})


def _offers(wanted: SearchRequest) -> OfferFilter:
    return OfferFilter(
        pricing=wanted.pricing,
        providers=wanted.providers,
        regions=wanted.regions,
        max_usd_per_hour=wanted.max_usd_per_hour,
        max_price_age_days=wanted.max_price_age_days,
    )


def _check_own_machine(request: Request) -> None:
    """Raise InputError where --host-ram, which is of a machine of the user's own, meets options that say otherwise."""
    wanted = request.search
    if not request.hardware.gpus:
        raise InputError("--host-ram is what a machine of your own has; name its GPUs with --gpu, or --gpu local")
    renting = [name for name in ("provider", "region", "max_usd_per_hour") if request.option(name) is not None]
    renting += ["pricing"] if set(wanted.pricing) - {Pricing.OWN} else []
    if renting:
        flag = "--" + renting[0].replace("_", "-")
        raise InputError(
            f"--host-ram is what a machine of your own has, but {flag} asks for one to rent; one of the two has to go"
        )
