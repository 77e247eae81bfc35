"""Keys of TRL 1.16.0's ``DPOConfig``, ``RewardConfig``, ``KTOConfig`` and ``GRPOConfig`` that ``SFTConfig`` has not,
and what none of them says."""

from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.trl.grpo import DEFAULT_PROMPT_TOKENS, SLEEP_LEVEL
from vlmplan.other_trainers.trl.reward import OWN_KEY, SEQ_CLS, TASK_TYPE
from vlmplan.other_trainers.writing.checkpoints import check_reentrant
from vlmplan.recipe import Recipe
from vlmplan.recipe.dropout import switches_dropout_off
from vlmplan.recipe.task import GRPO_BETA, TrainingTask
from vlmplan.recipe.task_choices import KTO_LOSSES, Generation, Reference
from vlmplan.rules.routers import WEIGHT
from vlmplan.workload import Workload

EVALUATED: Final = "num_generations_eval"


def task_keys(recipe: Recipe, task: TrainingTask, workload: Workload) -> dict[str, Any]:
    """Raises InputError for what TRL's scripts do otherwise than is planned."""
    if recipe.reference is Reference.ADAPTER_COPY:
        raise InputError(
            "--reference adapter-copy is launch's: TRL's scripts make new adapters, which they switch off for the "
            "reference; leave it off"
        )
    if task.is_reward:
        return _reward_keys(recipe, task, workload)
    if task.is_kto:  # the loss says whose the file is
        return {"loss_type": KTO_LOSSES[task.kto_loss], **_dpo_keys(recipe, task, workload)}
    return _dpo_keys(recipe, task, workload) if task.is_dpo else _grpo_keys(recipe, task, workload)


def task_options(task: TrainingTask, workload: Workload) -> dict[str, Value]:
    """Options of vlmplan for what no key says: how long written answers and prompts of GRPO are, what models reward."""
    if not task.is_grpo:
        return {} if task.completion_tokens is None else {"max_completion_tokens": task.completion_tokens}
    options: dict[str, Value] = {}
    if workload.seq_len != DEFAULT_PROMPT_TOKENS + task.answer_tokens(workload.seq_len):
        options["seq_len"] = workload.seq_len
    return options | ({"reward_model_parameters": task.reward_params} if task.reward_params else {})


def _dpo_keys(recipe: Recipe, task: TrainingTask, workload: Workload) -> dict[str, Any]:
    return {
        "max_length": workload.seq_len,
        "precompute_ref_log_probs": recipe.reference is Reference.PRECOMPUTED,
        **_keys_of_written_answers(recipe, task),
    }


def _keys_of_written_answers(recipe: Recipe, task: TrainingTask) -> dict[str, Any]:
    check_reentrant(recipe, f"trl {task.kind.value}")
    return {**({} if switches_dropout_off(recipe) else {"disable_dropout": False}), **_router_keys(task)}


def _router_keys(task: TrainingTask) -> dict[str, Any]:
    return {} if task.router_loss else {WEIGHT: 0.0}


def _reward_keys(recipe: Recipe, task: TrainingTask, workload: Workload) -> dict[str, Any]:
    """peft trains the head that scores where the task is ``SEQ_CLS``. Without adapters all other keys are SFT's too: a
    key of ``RewardConfig`` alone, at its default, says whose the file is."""
    return {
        "max_length": workload.seq_len,
        **({TASK_TYPE: SEQ_CLS} if recipe.trains_adapters else {OWN_KEY: None}),
        **_keys_of_written_answers(recipe, task),
    }


def _grpo_keys(recipe: Recipe, task: TrainingTask, workload: Workload) -> dict[str, Any]:
    evaluation = recipe.evaluation
    return {
        "max_completion_length": task.answer_tokens(workload.seq_len),
        "num_generations": task.num_generations,
        **({} if task.steps_per_generation is None else {"steps_per_generation": task.steps_per_generation}),
        **({} if task.num_iterations == 1 else {"num_iterations": task.num_iterations}),
        **({} if recipe.reference is Reference.NONE else {"beta": GRPO_BETA}),
        **({"disable_dropout": True} if switches_dropout_off(recipe) else {}),
        **({} if evaluation is None or evaluation.generations is None else {EVALUATED: evaluation.generations}),
        **_router_keys(task),
        **_generation_keys(task, workload),
    }


def _generation_keys(task: TrainingTask, workload: Workload) -> dict[str, Any]:
    """How answers are generated: with a cache, though config.json may switch it off, as it was for training."""
    if task.generation is Generation.TRANSFORMERS:
        return {"generation_kwargs": {"use_cache": True}} if workload.model.switches_cache_off else {}
    if task.generation is Generation.SERVER:
        return {"use_vllm": True, "vllm_mode": "server"}
    if task.vllm_sleep_level not in (0, SLEEP_LEVEL):
        raise InputError(f"TRL's vLLM sleeps at level {SLEEP_LEVEL}, but --vllm-sleep-level is {task.vllm_sleep_level}")
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": task.vllm_memory,
        "vllm_tensor_parallel_size": task.vllm_tensor_parallel,
        **({"vllm_enable_sleep_mode": True} if task.vllm_sleep_level else {}),
    }
