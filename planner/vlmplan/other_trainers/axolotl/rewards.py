"""axolotl's training on rewards (0.19.0, ``rl: grpo`` and ``gdpo``): what the keys of its ``trl`` and ``vllm`` mean.

``AxolotlGRPOTrainer`` is that of TRL 1.9, which axolotl pins, with axolotl's kernels in place of TRL's
``selective_log_softmax`` and ``entropy_from_logits`` (``architecture/losses/axolotl_answers.py``). It gets a model that
has its adapters: with a reference TRL adds a copy of them, and makes those that are trained beside packed weights
bfloat16. Without adapters its reference is a model that TRL loads itself, in float32 and with sdpa, whatever the file
says; another, which axolotl loads beside (``setup_reference_model`` in ``train.py``), goes before training begins.
Prompts are not cut: ``sequence_len`` is not read, and images are not either, as the tokenizer is what processes.
``gdpo`` is ``grpo`` with rewards that are normalised one by one.

Sources: ``core/trainers/grpo/__init__.py`` (``GRPOStrategy``), ``core/builders/rl.py``, ``utils/schemas/trl.py``,
``vllm.py`` and ``validation.py``; TRL 1.9 ``trainer/grpo_trainer.py``, ``grpo_config.py``.
"""

from typing import Final

from vlmplan.data_rules import FOR_LONGEST, DataRules
from vlmplan.other_trainers.assembled import assembled
from vlmplan.other_trainers.axolotl.preferences import has_experts, refuse_what_no_task_has
from vlmplan.other_trainers.evaluated import leave_evaluation_out
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments
from vlmplan.other_trainers.meaning import Meaning, Surroundings, sees
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.trl.grpo import DEFAULT_PROMPT_TOKENS, LOSSES, SLEEP_LEVEL, note_missing_cache
from vlmplan.recipe.choices import LossKind, Method, Precision
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind, TaskTrainer
from vlmplan.workload import ModelFiles

GRPO: Final = "grpo"
NUM_GENERATIONS: Final = 8
COMPLETION_TOKENS: Final = 256
"""``GRPOConfig.max_completion_length``, which it has without a ``trl``; with one None is handed on."""
VLLM_MEMORY: Final = 0.9
"""``VllmConfig.gpu_memory_utilization``."""
NEEDS_ASYNC: Final = frozenset(
    """prefetch_depth vllm_sync_interval streaming_partial_batch streaming_min_groups reward_num_workers
    replay_buffer_size replay_recompute_logps reroll_start_fraction reroll_max_groups skip_zero_advantage_batches
    vllm_lora_sync""".split()
)
"""Which are left out without ``async_prefetch`` and ``use_data_producer``, which are refused."""
WITHOUT_EFFECT: Final = NEEDS_ASYNC | frozenset(
    """vllm_server_host vllm_server_port vllm_server_timeout vllm_guided_decoding_regex reward_weights log_completions
    num_completions_to_print importance_sampling_level ref_model_mixup_alpha ref_model_sync_steps scale_rewards
    temperature top_p top_k min_p repetition_penalty generation_kwargs chat_template_kwargs epsilon epsilon_high
    mask_truncated_completions multi_objective_aggregation vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_importance_sampling_cap vllm_importance_sampling_clip_min
    vllm_importance_sampling_clip_max off_policy_mask_threshold use_bias_correction_kl entropy_target
    entropy_coef_delta entropy_coef_min entropy_coef_max log_multimodal vllm_mode vllm_enable_sleep_mode""".split()
)
"""Of ``trl``: numbers of rewards and of the loss, how answers are sampled and shown, and what vLLM has alone."""
OF_SERVER: Final = frozenset(
    """device data_parallel_size dtype max_model_len enable_prefix_caching host port enable_reasoning reasoning_parser
    enforce_eager serve_module worker_extension_cls""".split()
)
"""Of ``vllm``: what ``axolotl vllm-serve`` alone reads."""


def reward_options(
    settings: Settings, arguments: Arguments, method: Method, model: ModelFiles | None, around: Surroundings
) -> dict[str, Value]:
    """What the keys of ``rl: grpo`` mean; of ``arguments`` evaluation is left out."""
    leave_evaluation_out(settings, arguments.options)
    refuse_what_no_task_has(settings)
    trl = settings.section("trl")
    _refuse_what_has_no_plan(trl)
    _note_what_differs(settings, trl, model)
    own: dict[str, Value] = {
        "task": TaskKind.GRPO.value,
        "task_trainer": TaskTrainer.AXOLOTL.value,
        "loss": LossKind.AXOLOTL_ANSWERS.value,
        **_lengths(settings, trl),
        "num_generations": trl.count("num_generations", NUM_GENERATIONS, least=2),
        "num_iterations": trl.count("num_iterations", 1, least=1),
        **_generated_at_once(settings, trl, around),
        **_generation(settings, trl),
        "reference": _reference(settings, trl, method).value,
        **({"images_per_sample": 0} if sees(model) else {}),
    }
    note_missing_cache(settings, trl, own, model)
    trl.ignore(WITHOUT_EFFECT)
    trl.refuse_unknown()
    settings.ignore(("sequence_len", "excess_length_strategy", "pad_to_sequence_len", "max_prompt_len"))
    settings.ignore(("pad_to_multiple_of", "rl_beta"))
    return own


def _lengths(settings: Settings, trl: Settings) -> dict[str, Value]:
    """Prompts are not cut (``max_length`` is in ``get_blocklist_args_kwargs``): only the user knows how long they
    are."""
    if settings.is_on("trl") and "max_completion_length" not in trl:
        settings.refuse_whole(
            "trl.max_completion_length is missing: axolotl hands on that there is none, and how long answers are is "
            "what the checkpoint says, which is not known"
        )
    answer = trl.count("max_completion_length", COMPLETION_TOKENS, least=1)
    settings.note(
        f"how long prompts are is not in the file, as sequence_len is not read: {DEFAULT_PROMPT_TOKENS} tokens before "
        f"the answer; {FOR_LONGEST}"
    )
    return {"seq_len": DEFAULT_PROMPT_TOKENS + answer, "max_completion_tokens": answer}


def _generated_at_once(settings: Settings, trl: Settings, around: Surroundings) -> dict[str, Value]:
    """``generation_batch_size`` are answers over all GPUs; without it those of a step are generated at once. The sizes
    are checked as ``check_grpo_batch_size_divisibility`` does, on one GPU whatever there are."""
    micro_batch = settings.count("micro_batch_size", 1, least=1)
    in_step = micro_batch * settings.count("gradient_accumulation_steps", 1, least=1)
    batch = trl.maybe_count("generation_batch_size", least=1)
    if settings.text("rl", GRPO) == GRPO and "num_generations" in trl:
        _refuse_groups(trl, batch or in_step, around)
    if batch is None:
        return {}
    if around.num_gpus is None:
        trl.refuse("generation_batch_size", "of how many GPUs is not known; give --gpu NAME:COUNT")
        return {}
    of_all = micro_batch * around.num_gpus
    if batch % of_all:
        trl.refuse("generation_batch_size", f"a multiple of the {of_all} answers of a micro batch is needed")
        return {}
    return {"steps_per_generation": batch // of_all}


def _refuse_groups(trl: Settings, answers: int, around: Surroundings) -> None:
    group, num_gpus = trl.count("num_generations", NUM_GENERATIONS, least=2), around.num_gpus or 1
    what = "generation_batch_size, or micro_batch_size times gradient_accumulation_steps"
    if answers % group:
        trl.refuse("num_generations", f"axolotl asks that it divides {what}, which is {answers}")
    elif num_gpus > 1 and answers < group * num_gpus:
        trl.refuse(
            "num_generations", f"with {num_gpus} GPUs axolotl asks for {group * num_gpus} or more of {what}: {answers}"
        )


def _generation(settings: Settings, trl: Settings) -> dict[str, Value]:
    """What generates; vLLM is a server unless ``vllm_mode`` says otherwise (``check_vllm_mode_set``)."""
    vllm = settings.section("vllm")
    vllm.ignore(OF_SERVER)
    mode = trl.text("vllm_mode", "server") if trl.flag("use_vllm", False) else ""
    if mode != "colocate":
        vllm.ignore(("gpu_memory_utilization", "tensor_parallel_size"))
        vllm.refuse_unknown()
        if mode not in ("", "server"):
            trl.refuse("vllm_mode", "colocate or server is needed")
        return {"generation": (Generation.SERVER if mode else Generation.TRANSFORMERS).value}
    if "tensor_parallel_size" not in vllm:
        settings.refuse_whole(
            "trl.vllm_mode is colocate, but vllm.tensor_parallel_size is missing: axolotl hands on that there is none, "
            "with which TRL stops"
        )
    found: dict[str, Value] = {
        "generation": Generation.VLLM.value,
        "vllm_memory_utilization": vllm.number("gpu_memory_utilization", VLLM_MEMORY, most=1.0),
        "vllm_tensor_parallel": vllm.count("tensor_parallel_size", 1, least=1),
        "vllm_sleep_level": SLEEP_LEVEL if trl.flag("vllm_enable_sleep_mode", False) else 0,
    }
    vllm.refuse_unknown()
    return found


def _reference(settings: Settings, trl: Settings, method: Method) -> Reference:
    """Of ``beta``, which is 0 where nothing says it (``_build_training_arguments``)."""
    own = settings.number("rl_beta", 0.0)
    said = trl.value("beta")
    if said is not None and "rl_beta" in settings and float(str(said)) != own:
        settings.refuse("rl_beta", "and beta of trl is another; axolotl takes one of the two")
    if not trl.number("beta", own):
        return Reference.NONE
    if settings.is_on("lora_target_parameters"):
        settings.refuse("lora_target_parameters", f"with a reference (beta): {NOT_PLANNED}; set trl.beta: 0")
    return Reference.COPY if method is Method.FULL else Reference.ADAPTER_OFF


def _refuse_what_has_no_plan(trl: Settings) -> None:
    trl.only("async_prefetch use_data_producer", f"answers that are made while it trains: {NOT_PLANNED}")
    trl.only("rollout_func", "how answers are made is code of one's own, which is not known")
    trl.only("use_liger_loss", f"Liger's loss of rewards: {NOT_PLANNED}")
    trl.only("entropy_coef use_adaptive_entropy", f"a loss with entropies, which need a gradient: {NOT_PLANNED}")
    trl.only("sync_ref_model", f"a reference that follows the model: {NOT_PLANNED}")
    name = trl.text("loss_type", "dapo")
    if name not in LOSSES:
        trl.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
    if not trl.names("reward_funcs"):
        trl.refuse_whole("trl.reward_funcs is missing: TRL asks for something that rewards answers")


def _note_what_differs(settings: Settings, trl: Settings, model: ModelFiles | None) -> None:
    kind = settings.text("rl", GRPO)
    if kind != GRPO:
        settings.note(f"rl is {kind}: written anew (--for axolotl) it is {GRPO}, which takes the same")
    models = [name for name in trl.names("reward_funcs") if "/" in name]
    if models:
        settings.note(
            f"{', '.join(models)} rewards: its weights are not counted; --reward-model-parameters says how many it has"
        )
    if settings.maybe_flag("liger_fused_linear_cross_entropy"):
        settings.note("liger_fused_linear_cross_entropy: of rewards logits of answers are wanted, as it is planned")
    if has_experts(model):
        settings.note("the loss that balances experts, which TRL 1.9 adds of models that have them, is not counted")


def read_answers(settings: Settings, arguments: Arguments, meaning: Meaning, around: Surroundings) -> TrainerConfig:
    """What is made of keys whose ``meaning`` is there but for adapters beside packed weights."""
    if meaning.method.packs_weights:
        if arguments.precision is Precision.FP16 and arguments.deepspeed is None:
            settings.refuse_whole(
                "fp16 is set, but TRL makes adapters of packed models bfloat16; set bf16: true instead"
            )
        meaning.adapters = "model"
    meaning.data_rules = DataRules()
    return assembled(settings, arguments, meaning, around)
