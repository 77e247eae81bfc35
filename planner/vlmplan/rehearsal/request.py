"""What is asked of ``python -m vlmplan_trainer.rehearse``: the plan, samples as the estimate counts them, the rank."""

from dataclasses import asdict
from itertools import count

from vlmplan.catalog.objects import AMPERE
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, packed_samples
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Gpu
from vlmplan.plan import Plan
from vlmplan.plan.task_problems import setup_problems
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.task import TrainingTask
from vlmplan.sample_audio import sample_audio
from vlmplan.sample_images import sample_image
from vlmplan.workload import Workload

LEAST_STEPS = 3
"""The first step, one whose peaks are known, and one in which they are looked at when they come again."""


def request_json(plan: Plan, estimate: Estimate, *, rank: int, num_steps: int | None = None) -> JsonDict:
    """The request for one rank. Raises InputError if there is no such rank, or for fewer than three steps."""
    num_ranks = plan.hardware.num_gpus
    if not 0 <= rank < num_ranks:
        allowed = "one rank, 0" if num_ranks == 1 else f"ranks 0 to {num_ranks - 1}"
        raise InputError(f"--rank is {rank}; the plan has {allowed}")
    if num_steps is not None and num_steps < LEAST_STEPS:
        raise InputError(
            f"--steps is {num_steps}; {LEAST_STEPS} or more are needed: the first differs from the later ones, and "
            f"what is alive at a peak is looked at when it comes a second time"
        )
    if plan.recipe.task is not None:
        _refuse_task(plan, plan.recipe.task)
    generating = generating_step(plan.recipe, num_steps or LEAST_STEPS)
    if num_steps is None and generating != LEAST_STEPS:
        num_steps = generating
    elif num_steps is not None and generating != num_steps:
        raise InputError(
            f"--steps is {num_steps}, a step on answers of an earlier one, and the last step is compared; give "
            f"{generating}, in which answers are generated"
        )
    _refuse_evaluation(plan.recipe.evaluation, plan.recipe.loss)
    workload, gpu = estimate.workload, estimate.cluster.node.gpu  # a plan of a file knows no more than the files
    request: JsonDict = {
        "plan": plan.as_json(),
        "samples": _samples_json(plan.recipe, workload),
        "rank": rank,
        # attention of a card whose compute capability is not known, as in Estimator.backend
        "compute_capability": list(gpu.compute_capability or AMPERE),
        "total_bytes": gpu.usable_bytes,
        "overhead_bytes": estimate.device.overhead_bytes,
    }
    if plan.recipe.task is not None:
        request["card"] = card_json(gpu)
    return request if num_steps is None else request | {"num_steps": num_steps}


def _samples_json(recipe: Recipe, workload: Workload) -> JsonDict:
    """The samples of a micro batch: their number, lengths, images and sounds."""
    image, audio = sample_image(workload), sample_audio(workload)
    packed = packed_samples(recipe, workload)
    return {
        "micro_batch": recipe.micro_batch,
        "num_tokens": workload.seq_len,
        "target_tokens": workload.target_tokens,
        "sequences": None if packed is None else [length for length, count in packed.runs for _ in range(count)],
        "images_per_sample": workload.images_per_sample,
        "image": None if image is None else asdict(image),
        "width": workload.image_width,
        "height": workload.image_height,
        "audios_per_sample": workload.audios_per_sample,
        "audio": None if audio is None else asdict(audio),
    }


def _refuse_evaluation(evaluation: Evaluation | None, loss: LossKind) -> None:
    """Raise InputError for an evaluation that the bundled trainer does not make."""
    if evaluation is not None and evaluation.kept is not Kept.LOSS:
        raise InputError(
            f"--eval-keeps is {evaluation.kept.value}; the bundled trainer, which is rehearsed, evaluates for the loss "
            f"alone"
        )
    if evaluation is not None and (evaluation.new_tokens or not evaluation.computes_loss):
        raise InputError(
            "--eval-new-tokens and --no-eval-loss are not rehearsed: the bundled trainer generates nothing"
        )
    if evaluation is not None and not evaluation.fuses_loss and loss is LossKind.LIGER:
        raise InputError("--no-eval-fused-loss is not rehearsed: the bundled trainer fuses Liger's loss there too")


def _refuse_task(plan: Plan, task: TrainingTask) -> None:
    """Raise InputError for a task that launch does not run."""
    problem = next(setup_problems(plan.recipe, task, plan.hardware.num_gpus), None)
    if problem is not None:
        raise InputError(f"what is not launched is not rehearsed: {problem}")


def card_json(gpu: Gpu) -> JsonDict | None:
    """The card of a rank for what asks torch of it; None for CPU ranks."""
    if gpu.is_cpu:
        return None
    return {
        "name": gpu.name,
        "compute_capability": list(gpu.compute_capability or AMPERE),
        "total_bytes": gpu.cuda_visible_bytes or gpu.usable_bytes,
        "num_multiprocessors": gpu.sm_count,
    }


def generating_step(recipe: Recipe, least: int) -> int:
    """The first optimizer step, from ``least`` on, in which GRPO generates answers, beside gradients of earlier micro
    batches where some step does; ``least`` of other runs.

    >>> from vlmplan.recipe.task import TrainingTask
    >>> from vlmplan.recipe.task_choices import TaskKind
    >>> recipe = Recipe(grad_accum=2, task=TrainingTask(kind=TaskKind.GRPO, num_iterations=3))
    >>> [generating_step(recipe, least) for least in (1, 2, 3, 4, 5)]
    [1, 4, 4, 4, 7]
    """
    if recipe.task is None or not recipe.task.is_grpo:
        return least
    accum, every = recipe.grad_accum, recipe.micro_batches_per_generation
    is_within_step = every % accum != 0
    starts = (
        place for place in count((least - 1) * accum) if place % every == 0 and (place % accum or not is_within_step)
    )
    return next(starts) // accum + 1


def num_phases(plan: Plan, num_steps: int | None) -> int:
    """Phases that the process will name: load, init, those of every step, evaluation, save; an evaluation before
    the first step too. Behind an evaluation under ZeRO-3 there is a further step, and another evaluation."""
    task, evaluation = plan.recipe.task, plan.recipe.evaluation
    further = int(evaluation is not None and plan.recipe.zero_stage == 3)
    num_evaluated = 0 if evaluation is None else 1 + further + evaluation.on_start
    # GRPO's answers, their log-probabilities and rewards; DPO's reference, which divides backward
    of_task = 0 if task is None else 3 if task.is_grpo else 2 * plan.recipe.grad_accum
    per_step = 2 * plan.recipe.grad_accum + 1 + of_task
    steps = num_steps or generating_step(plan.recipe, LEAST_STEPS)
    return 3 + num_evaluated + per_step * (steps + further)
