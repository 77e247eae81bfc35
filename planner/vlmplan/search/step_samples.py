"""Samples of a step on as many GPUs as a machine has, and the micro batches that hold them."""

from collections.abc import Iterable, Sequence
from math import gcd

from vlmplan.errors import InputError
from vlmplan.estimation import refuse_lone_answer, refuse_parts_of_groups, refuse_too_small
from vlmplan.hardware import Cluster
from vlmplan.notes import Caveat
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.request.setup import batch_sizes
from vlmplan.search.answer import RankedPlan
from vlmplan.search.recipe_bounds import BatchSize
from vlmplan.units import divisors
from vlmplan.workload import DEFAULT_GLOBAL_BATCH, Workload


def step_sizes(fixed: DecidedRecipe, global_batch: int, num_gpus: int) -> list[BatchSize]:
    """(micro batch, accumulation), smallest micro batch first, that hold the global batch.

    Exactly where it divides by the GPUs and by what is ``fixed``, and is made of whole groups of answers to a prompt,
    as those that GRPO generates for a step are; else with the least samples above it, all of them with as many.
    """
    num_groups = _num_groups(fixed, num_gpus)
    micro_batch, grad_accum = fixed.micro_batch, fixed.grad_accum
    decided = num_groups * (micro_batch or 1) * (grad_accum or 1)
    left = -(-global_batch // decided)
    together = fixed.task.num_generations if fixed.task is not None and fixed.task.is_grpo else 1
    rest = together // gcd(together, decided)
    least = 1 if fixed.task is None else fixed.task.least_micro_batch
    left = -(-left // rest) * rest
    if micro_batch is not None:
        return [(micro_batch, grad_accum or left)]
    if grad_accum is not None:
        return [(max(least, left), grad_accum)]
    left = max(least, left)
    return [(size, left // size) for size in divisors(left) if size >= least]


def samples_of_step(fixed: DecidedRecipe, global_batch: int, num_gpus: int) -> int:
    """Samples that all GPUs take in a step, with any of ``step_sizes``."""
    micro_batch, grad_accum = step_sizes(fixed, global_batch, num_gpus)[0]
    return micro_batch * grad_accum * _num_groups(fixed, num_gpus)


def least_accumulation(workload: Workload, fixed: DecidedRecipe, num_gpus: int) -> int:
    """The fewest micro batches of a step that what is ``fixed`` leaves."""
    sizes = step_sizes(fixed, workload.global_batch or DEFAULT_GLOBAL_BATCH, num_gpus)
    return min(grad_accum for _, grad_accum in sizes)


def samples_of_every_step(workload: Workload, fixed: DecidedRecipe, clusters: Iterable[Cluster]) -> int | None:
    """Samples of a step on each of the clusters; None where they differ from one to another."""
    global_batch = workload.global_batch or DEFAULT_GLOBAL_BATCH
    found = {samples_of_step(fixed, global_batch, cluster.num_gpus) for cluster in clusters}
    return found.pop() if len(found) == 1 else None


def step_objection(workload: Workload, fixed: DecidedRecipe, num_gpus: int) -> str | None:
    """Why the global batch that the user asks for is no whole number of what he decided of it, or what he decided no
    whole groups of answers, in the words of an estimate; None where it is, and where he leaves micro batch and
    accumulation to the search."""
    asked, decided = workload.global_batch, (fixed.micro_batch, fixed.grad_accum)
    if decided == (None, None) and asked != 1:
        return None
    try:
        refuse_lone_answer(fixed.task, samples_of_step(fixed, asked or DEFAULT_GLOBAL_BATCH, num_gpus))
        refuse_too_small(fixed.task, fixed.micro_batch)
        if None not in decided:
            refuse_parts_of_groups(fixed.recipe(), num_gpus)
        if asked is not None:
            batch_sizes(asked, _num_groups(fixed, num_gpus), *decided)
    except InputError as error:
        return str(error)
    return None


def refuse_other_steps(workload: Workload, fixed: DecidedRecipe, clusters: Sequence[Cluster]) -> None:
    """Raise InputError where ``step_objection`` has something against every cluster."""
    reasons = [step_objection(workload, fixed, cluster.num_gpus) for cluster in clusters]
    if reasons and reasons[0] is not None and None not in reasons:
        raise InputError(reasons[0])


def step_notes(plans: Sequence[RankedPlan], asked: int | None) -> list[str]:
    """What the global batch that was ``asked`` for became where it does not divide by the GPUs: of the first plan as a
    caveat, of the others as notes."""
    samples = {plan.estimate.cluster.num_gpus: plan.estimate.samples_per_step for plan in reversed(plans)}
    first = plans[0].estimate.cluster.num_gpus if plans else 0
    notes: list[str] = []
    for num_gpus, planned in reversed(samples.items()):
        if asked is None or planned == asked:
            continue
        shared = f"--global-batch is {asked}, but {num_gpus} GPUs cannot share it alike"
        text = f"{shared}: {planned} samples a step are planned there"
        notes.append(Caveat(text) if num_gpus == first else text)
    return notes


def _num_groups(fixed: DecidedRecipe, num_gpus: int) -> int:
    """What samples go to: GPUs, or groups of them that share one."""
    return max(1, num_gpus // (fixed.sequence_parallel or 1))
