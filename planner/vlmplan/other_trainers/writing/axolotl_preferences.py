"""What axolotl 0.19.0 has of preferences and rewards alone, or otherwise than of samples as they are
(``core/builders/rl.py``, ``core/trainers/grpo/__init__.py``)."""

from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.axolotl.preferences import DPO, KTO, ORPO
from vlmplan.other_trainers.axolotl.reading import AXOLOTL
from vlmplan.other_trainers.axolotl.rewards import GRPO, VLLM_MEMORY
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.trl.grpo import SLEEP_LEVEL
from vlmplan.other_trainers.writing.batching import AXOLOTL_BATCHING
from vlmplan.other_trainers.writing.checkpoints import check_reentrant, checkpoint_keys
from vlmplan.other_trainers.writing.limits import LimitContext
from vlmplan.other_trainers.writing.record import placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Batching, CheckpointKind, LossKind
from vlmplan.recipe.task import GRPO_BETA, TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference
from vlmplan.workload import Workload

REWARDS: Final = "functions that reward answers, MODULE.NAME of a file beside, or an id of a reward model"


def to_fill_in(recipe: Recipe) -> dict[str, str]:
    """What each key that a user has to give is, beside the data."""
    return {"reward_funcs": REWARDS} if recipe.task is not None and recipe.task.is_grpo else {}


def preference_keys(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """Raises InputError for tasks that it does otherwise."""
    if recipe.task is None:
        return {}
    if not recipe.task.is_of_axolotl:
        raise InputError(
            f"{AXOLOTL} trains preferences and rewards its own way, --task {recipe.task.kind.value} --task-trainer "
            f"axolotl"
        )
    if sees(workload.model) and workload.images_per_sample:
        raise InputError(f"{AXOLOTL} reads no images of preferences and rewards; give --images-per-sample 0")
    if recipe.task.is_grpo:
        return {"rl": GRPO, **_reward_keys(recipe, recipe.task, workload)}
    if recipe.reference is Reference.NONE:  # of SimPO, which takes the same, more is to be said
        return {"rl": ORPO}
    check_reentrant(recipe, AXOLOTL)
    if recipe.task.is_kto:
        return {"rl": KTO, "remove_unused_columns": False}
    precomputes = recipe.reference is Reference.PRECOMPUTED
    return {"rl": DPO, **({"precompute_ref_log_probs": True} if precomputes else {})}


def _reward_keys(recipe: Recipe, task: TrainingTask, workload: Workload) -> dict[str, Any]:
    """``trl``, and ``vllm`` where it is in the trainer's process."""
    is_here = task.generation is Generation.VLLM
    generation = {"use_vllm": True, "vllm_mode": "colocate" if is_here else "server"}
    if task.vllm_sleep_level not in (0, SLEEP_LEVEL):
        raise InputError(
            f"{AXOLOTL}'s vLLM sleeps at level {SLEEP_LEVEL}, but --vllm-sleep-level is {task.vllm_sleep_level}"
        )
    if task.steps_per_generation not in (None, recipe.grad_accum):
        raise InputError(
            f"{AXOLOTL} has generation_batch_size, answers over all GPUs, for --steps-per-generation "
            f"{task.steps_per_generation}, which is not written; leave it off"
        )
    trl = {
        "reward_funcs": [placeholder("reward_funcs")],
        "beta": 0.0 if recipe.reference is Reference.NONE else GRPO_BETA,
        "num_generations": task.num_generations,
        "max_completion_length": task.answer_tokens(workload.seq_len),
        **({} if task.num_iterations == 1 else {"num_iterations": task.num_iterations}),
        **({} if task.generation is Generation.TRANSFORMERS else generation),
        **({"vllm_enable_sleep_mode": True} if is_here and task.vllm_sleep_level else {}),
    }
    memory = VLLM_MEMORY if task.vllm_memory is None else task.vllm_memory
    vllm = {"gpu_memory_utilization": memory, "tensor_parallel_size": task.vllm_tensor_parallel}
    return {"trl": trl, **({"vllm": vllm} if is_here else {})}


def checkpoints_of(recipe: Recipe) -> dict[str, Any]:
    """Of samples they are reentrant unless a key says otherwise, of tasks as TRL has them."""
    return checkpoint_keys(recipe, *([CheckpointKind.REENTRANT] if recipe.task is None else []))


def losses_of(context: LimitContext) -> tuple[LossKind, ...]:
    task = context.recipe.task
    if task is None:
        return (LossKind.MODEL, LossKind.LIGER)
    return (LossKind.AXOLOTL_ANSWERS if task.is_grpo else LossKind.AXOLOTL,)


def batching_of(context: LimitContext) -> tuple[Batching, ...] | None:
    return AXOLOTL_BATCHING.allowed(context) if context.recipe.task is None else (Batching.PADDED,)


def has_usual_adapters(recipe: Recipe) -> bool:
    """Whether adapters are as for samples as they are: TRL changes those beside packed weights, but in ORPO and
    SimPO."""
    return recipe.task is None or (recipe.task.is_dpo and recipe.reference is Reference.NONE)


def says_adapter_type(recipe: Recipe) -> bool:
    return has_usual_adapters(recipe) and recipe.adapter_dtype is AdapterDtype.MODEL
