"""TRL's training on rewards: ``GRPOConfig``, ``ModelConfig`` and ``GRPOScriptArguments`` of TRL 1.16.0, as YAML for
``trl grpo --config`` or as options of ``trl/scripts/grpo.py``."""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.data_rules import FOR_LONGEST, DataRules
from vlmplan.notes import Caveat, listed
from vlmplan.other_trainers.argument_rules import number_of
from vlmplan.other_trainers.evaluated import OF_SCRIPTS, by_strategy
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.dpo import dropout_options, note_older_liger
from vlmplan.other_trainers.trl.sft import OF_OPEN_R1, method_of, of_any_task
from vlmplan.recipe.choices import Method
from vlmplan.recipe.task import DEFAULT_COMPLETION_TOKENS
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind
from vlmplan.workload import ModelFiles

OWN_KEYS: Final = frozenset(
    "num_generations max_completion_length generation_batch_size steps_per_generation reward_funcs use_vllm".split()
)
"""Of ``GRPOConfig`` and its script alone."""
DEFAULT_PROMPT_TOKENS: Final = 512
"""Of a prompt where nobody says how long it is. A choice, which was ``max_prompt_length`` of earlier TRLs."""
VLLM_MEMORY: Final = 0.3
"""``vllm_gpu_memory_utilization`` where nothing is said."""
SLEEP_LEVEL: Final = 2
"""Of vLLM's sleep mode (``generation/vllm_generation.py``)."""
OLDER_PROMPT_KEY: Final = "max_prompt_length"
"""Which TRL 1.16 has no more: it cuts no prompt."""
OLDER_VLLM_KEYS: Final = ("vllm_device", "vllm_dtype", "vllm_max_model_len", "vllm_enable_prefix_caching")
"""Which TRL 1.16 has no more: of the one GPU that vLLM had to itself up to 0.15."""
MODE_OF_OPEN_R1: Final = Caveat(
    "vllm_mode is not said: open-r1 is made for TRL 0.18, in which vLLM is a server on GPUs of its own then, and whose "
    "log-probabilities are made of whole logits; planned as TRL 1.16 has it, in the trainer's process and in tiles"
)
CLIP_LEAST: Final = "vllm_importance_sampling_clip_min"
CLIP_MOST: Final = "vllm_importance_sampling_clip_max"
"""3.0 where nothing is said."""
OLDER_CLIP_MOST: Final = "vllm_importance_sampling_cap"
CLIPPING: Final = "vllm_importance_sampling_mode"
LOSSES: Final = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
"""Made of one log-probability for each token (``_compute_loss`` in ``trainer/grpo_trainer.py``)."""
WITHOUT_EFFECT: Final = frozenset(
    """reward_funcs reward_weights shuffle_dataset temperature top_p top_k min_p
    generation_kwargs chat_template_kwargs repetition_penalty vllm_model_impl vllm_structured_outputs_regex
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port vllm_max_model_length
    vllm_gpu_memory_utilization vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_mode epsilon delta epsilon_high
    sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg
    importance_sampling_level multi_objective_aggregation scale_rewards mask_truncated_completions
    ref_model_mixup_alpha ref_model_sync_steps top_entropy_quantile entropy_coef_min entropy_coef_max
    entropy_coef_delta entropy_target max_tool_calling_iterations vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    vllm_importance_sampling_cap off_policy_mask_threshold use_bias_correction_kl log_completions log_multimodal
    num_completions_to_print log_unique_prompts log_completions_hub_repo transformers_continuous_batching_config
    pad_to_multiple_of""".split()
)
"""Numbers of rewards and of the loss, and how answers are sampled and shown; of vLLM's where it is not used."""


def is_grpo(values: Mapping[str, Any]) -> bool:
    """Whether keys of TRL are those of ``trl grpo``."""
    return not OWN_KEYS.isdisjoint(values)


def read_trl_grpo(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What ``trl grpo`` makes of these keys. Raises InputError with everything that is wrong."""
    return of_any_task(settings, model, around, grpo_options(settings, around, model), DataRules())


def grpo_options(settings: Settings, around: Surroundings, model: ModelFiles | None) -> dict[str, Value]:
    """What the keys of ``GRPOConfig`` mean that ``SFTConfig`` has not."""
    own: dict[str, Value] = {"task": TaskKind.GRPO.value, **answer_lengths(settings)}
    num_generations = settings.count("num_generations", 8, least=2)
    own["num_generations"] = num_generations
    own["num_iterations"] = settings.count("num_iterations", 1, least=1)
    own |= _evaluated(settings, around, num_generations)
    own |= generated_at_once(settings, around) | _generation(settings)
    note_missing_cache(settings, settings, own, model)
    if settings.number("beta", 0.0):
        own["reference"] = (Reference.COPY if method_of(settings) is Method.FULL else Reference.ADAPTER_OFF).value
    else:
        own["reference"] = Reference.NONE.value
    own |= dropout_options(settings, is_usual=False)
    note_older_liger(settings)
    _refuse_together(settings)
    refuse_what_has_no_plan(settings)
    name = settings.text("reward_model_name_or_path", "")
    if name:
        settings.note(f"{name} rewards: its weights are not counted; --reward-model-parameters says how many it has")
    settings.ignore((*WITHOUT_EFFECT, *OLDER_VLLM_KEYS))
    return own


def _evaluated(settings: Settings, around: Surroundings, num_generations: int) -> dict[str, Value]:
    """Answers to each prompt of what is evaluated, if anything is, and whether a batch of it is whole groups
    (``grpo_config.py``: "The global eval batch size")."""
    if not by_strategy(settings):
        settings.ignore(("num_generations_eval",))
        return {}
    asked = settings.maybe_count("num_generations_eval", least=1)
    batch, answers = settings.count("per_device_eval_batch_size", OF_SCRIPTS.batch, least=1), asked or num_generations
    if around.num_gpus is not None and batch * around.num_gpus % answers:
        settings.refuse(
            "per_device_eval_batch_size",
            f"on {around.num_gpus} GPUs a multiple of the {answers} answers to a prompt is needed over all "
            f"(num_generations_eval, or num_generations)",
        )
    return {} if asked is None else {"eval_generations": asked}


def answer_lengths(settings: Settings) -> dict[str, Value]:
    """Prompts are not cut, so that only the user knows how long they are."""
    answer = settings.count("max_completion_length", DEFAULT_COMPLETION_TOKENS, least=1)
    prompt = settings.maybe_count(OLDER_PROMPT_KEY, least=1)
    if prompt is None:
        prompt = DEFAULT_PROMPT_TOKENS
        settings.note(f"how long prompts are is not in the file: {prompt} tokens before the answer; {FOR_LONGEST}")
    else:
        settings.note(f"{OLDER_PROMPT_KEY} is of earlier TRLs; TRL 1.16 cuts no prompt: {FOR_LONGEST}")
    return {"seq_len": prompt + answer, "max_completion_tokens": answer}


def generated_at_once(settings: Settings, around: Surroundings, *, micro_batch: int = 8) -> dict[str, Value]:
    """``steps_per_generation``, or the answers over all GPUs that ``GRPOConfig`` makes it of."""
    steps = settings.maybe_count("steps_per_generation", least=1)
    batch = settings.maybe_count("generation_batch_size", least=1)
    if batch is None:
        return {} if steps is None else {"steps_per_generation": steps}
    if steps is not None:
        settings.refuse("generation_batch_size", "and steps_per_generation is set too; one of the two is needed")
        return {}
    if around.num_gpus is None:
        settings.refuse("generation_batch_size", "of how many GPUs is not known; give --gpu NAME:COUNT")
        return {}
    of_all = settings.count("per_device_train_batch_size", micro_batch, least=1) * around.num_gpus
    if batch % of_all:
        settings.refuse("generation_batch_size", f"a multiple of the {of_all} answers of a micro batch is needed")
        return {}
    return {"steps_per_generation": batch // of_all}


def note_missing_cache(
    settings: Settings, keys: Settings, options: Mapping[str, Value], model: ModelFiles | None
) -> None:
    """Say that answers may be generated without a cache. ``keys`` are those that ``generation_kwargs`` is among."""
    by_model = options.get("generation") == Generation.TRANSFORMERS.value
    if not by_model or model is None or not model.switches_cache_off:
        return
    if keys.table("generation_kwargs").get("use_cache") is not True:
        settings.note(
            "the model's config.json has use_cache false: unless generation_config.json says otherwise, each token "
            "of an answer runs all before it again; generation_kwargs: {use_cache: true} is what is planned"
        )


def _refuse_together(settings: Settings) -> None:
    """Values that ``GRPOConfig`` refuses beside others (``__post_init__``)."""
    if "log_completions_hub_repo" in settings and not settings.idle_flag("log_completions", False):
        settings.refuse("log_completions_hub_repo", "log_completions: true is needed with it")
    least, most = (number_of(settings.value(key)) for key in (CLIP_LEAST, CLIP_MOST))
    cap = number_of(settings.value(OLDER_CLIP_MOST))
    most = cap if cap is not None else 3.0 if most is None and not settings.is_null(CLIP_MOST) else most
    if least is not None and most is not None and least >= most:
        settings.refuse(CLIP_LEAST, f"less than {CLIP_MOST}, {most:g}, is needed")
    truncates = str(settings.value(CLIPPING)).endswith("_truncate")
    corrects = settings.idle_flag("vllm_importance_sampling_correction", True)
    if corrects and truncates and least is None and most is None:
        settings.refuse(CLIPPING, f"{CLIP_LEAST} or {CLIP_MOST} is needed with it")


def _generation(settings: Settings) -> dict[str, Value]:
    """What generates."""
    if not settings.flag("use_vllm", False):
        gathers = settings.maybe_flag("ds3_gather_for_generation")
        if gathers is False:
            settings.refuse("ds3_gather_for_generation", f"answers of a sharded model: {NOT_PLANNED}")
        return {"generation": Generation.TRANSFORMERS.value}
    settings.ignore(("ds3_gather_for_generation",))
    older = [key for key in OLDER_VLLM_KEYS if key in settings]
    if older:
        settings.note(f"{listed(older)} {'are' if len(older) > 1 else 'is'} of earlier TRLs; TRL 1.16 has vllm_mode")
    if "vllm_mode" not in settings and any(key in settings for key in OF_OPEN_R1):
        settings.note(MODE_OF_OPEN_R1)
    mode = settings.text("vllm_mode", "colocate")
    if mode == "server":
        return {"generation": Generation.SERVER.value}
    if mode != "colocate":
        settings.refuse("vllm_mode", "colocate or server is needed")
    return {
        "generation": Generation.VLLM.value,
        "vllm_memory_utilization": settings.number("vllm_gpu_memory_utilization", VLLM_MEMORY, most=1.0),
        "vllm_tensor_parallel": settings.count("vllm_tensor_parallel_size", 1, least=1),
        "vllm_sleep_level": SLEEP_LEVEL if settings.flag("vllm_enable_sleep_mode", False) else 0,
    }


def refuse_what_has_no_plan(settings: Settings, *, loss: str = "dapo") -> None:
    settings.only("sync_ref_model", f"a reference that follows the model: {NOT_PLANNED}")
    settings.only("entropy_coef", f"a loss with entropies, which need a gradient: {NOT_PLANNED}")
    settings.only("use_adaptive_entropy", f"a loss with entropies, which need a gradient: {NOT_PLANNED}")
    settings.only("cast_lm_head_to_fp32", f"a head in float32: {NOT_PLANNED}")
    settings.only("cache_implementation", f"another cache of keys and values: {NOT_PLANNED}", "dynamic")
    settings.only("use_transformers_continuous_batching", f"paged answers: {NOT_PLANNED}")
    settings.only("use_transformers_paged", f"paged answers: {NOT_PLANNED}")
    for name in settings.names("loss_type", loss):
        if name not in LOSSES:
            settings.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
