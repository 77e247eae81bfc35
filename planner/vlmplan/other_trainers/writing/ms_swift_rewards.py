"""Keys of ms-swift 4.6.0 for rewards (``rlhf_type`` grpo), which ``swift sft`` has not; the inverse of
``ms_swift.rewards``."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.other_trainers.ms_swift.rewards import BUCKET_MIB, BUCKET_VARIABLE
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference
from vlmplan.workload import Workload

REWARDS: Final = "functions that reward answers: a list of ms-swift's own (accuracy) or of yours (external_plugins)"
SERVER: Final = "the host on which swift rollout runs"


def reward_keys(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """What ``max_length`` of a prompt and the task's own keys are."""
    task = recipe.task
    assert task is not None
    answer = task.answer_tokens(workload.seq_len)
    return {
        "max_length": workload.seq_len - answer,
        "max_completion_length": answer,
        "num_generations": task.num_generations,
        **({} if task.steps_per_generation is None else {"steps_per_generation": task.steps_per_generation}),
        **({} if task.num_iterations == 1 else {"num_iterations": task.num_iterations}),
        **({"beta": 0.0} if recipe.reference is Reference.NONE else {}),
        **({"log_entropy": True} if recipe.loss is LossKind.TEMPERED_ENTROPY else {}),
        **_generation_keys(task),
    }


def _generation_keys(task: TrainingTask) -> dict[str, Any]:
    if task.generation is Generation.TRANSFORMERS:
        return {}
    groups = {"move_model_batches": task.sync_groups} if task.sync_groups else {}
    if task.generation is Generation.SERVER:
        whole = {} if task.sync_buffer_mib else {"enable_flattened_weight_sync": False}
        return {"use_vllm": True, "vllm_mode": "server", **whole, **groups}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": task.vllm_memory,
        "vllm_tensor_parallel_size": task.vllm_tensor_parallel,
        "sleep_level": task.vllm_sleep_level,
        "offload_model": task.idle_offload.has_weights,
        "offload_optimizer": task.idle_offload.has_optimizer,
        **groups,
    }


def reward_environment(task: TrainingTask | None) -> dict[str, str]:
    """The variable of the buffer to a server, where it is not ms-swift's own."""
    if task is None or task.sync_buffer_mib in (0, BUCKET_MIB):
        return {}
    return {BUCKET_VARIABLE: str(task.sync_buffer_mib)}


def rewards_to_fill_in(task: TrainingTask | None) -> Mapping[str, str]:
    """What only the user knows."""
    if task is None or not task.is_grpo:
        return {}
    is_served = task.generation is Generation.SERVER
    return {"reward_funcs": REWARDS, **({"vllm_server_host": SERVER} if is_served else {})}
