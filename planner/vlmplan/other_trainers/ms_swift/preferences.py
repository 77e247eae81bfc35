"""ms-swift's ``swift rlhf`` (4.6.0): what its keys mean for preferences, which ``swift sft`` has not.

``rlhf_type`` dpo runs ``DPOTrainer`` of ``rlhf_trainers/dpo_trainer.py``, a subclass of TRL's (0.29 at the most: "trl
<1.0" in ``requirements/framework.txt``) with a forward and a loss of its own: log-probabilities are made of whole
logits, row by row (``get_per_token_logps`` in ``rlhf_mixin.py``), those of the reference under ``no_grad`` while the
graph of the first forward is there. Adapters are switched off for it (``null_ref_context``); else there is a second
model (``RLHFArguments.__post_init__``), loaded as the first (``pipelines/train/rlhf.py``). ``disable_dropout`` of
``DPOConfig`` is true and no key of the command line.

``rlhf_type`` kto runs ``KTOTrainer`` of ``kto_trainer.py``: forwards over answers to other prompts come first, of the
model and of the reference, and log-probabilities are made as those of dpo. Those answers are from other samples of the
same step (``pipelines/train/kto.py``), and have their own images on the GPU (``_kto_data_collator``).

``rlhf_type`` rm runs ``RewardTrainer`` of ``reward_trainer.py``: rows of both answers through a head that scores every
token, of which one is taken.

``rlhf_type`` orpo, cpo and simpo, which is cpo with another ``loss_type``, run TRL's trainers on logits of whole rows,
without a reference (``architecture/losses/selective_odds.py``).

Sources: ``RLHFArguments`` in ``arguments/rlhf_args.py``, and ``rlhf_trainers/args_mixin.py``.
"""

from collections.abc import Mapping
from typing import Final

from vlmplan.errors import InputError
from vlmplan.notes import listed
from vlmplan.other_trainers.evaluated import evaluate_for_loss
from vlmplan.other_trainers.hugging_face import NOT_PLANNED, Arguments
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task_choices import KTO_LOSSES, KTOLoss, Reference, TaskKind, TaskTrainer

KIND: Final = "rlhf_type"
PREFERENCES: Final = "dpo"
"""Its default."""
LABELS: Final = "kto"
SCORES: Final = "rm"
ORPO, CPO, SIMPO = "orpo", "cpo", "simpo"
WITHOUT_REFERENCE: Final = (ORPO, SIMPO, CPO)
READ_KINDS: Final = (PREFERENCES, LABELS, *WITHOUT_REFERENCE, SCORES, "grpo")
OF_CPO: Final = ("sigmoid", "hinge", "ipo", "simpo")
LOSSES: Final = (
    *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired"),
    *("apo_zero", "apo_down", "discopop", "sft"),
)
"""Made of log-probabilities of whole answers (``dpo_loss``)."""
OF_RLHF: Final = frozenset(
    """
    advantage_estimator advantage_reweight async_generate beta center_rewards_coefficient
    chord_enable_phi_function chord_mu_decay_steps chord_mu_peak chord_mu_valley chord_mu_warmup_steps
    chord_sft_dataset chord_sft_per_device_train_batch_size cliprange cliprange_value
    completion_length_limit_scope cosine_max_len cosine_max_len_value_correct cosine_max_len_value_wrong
    cosine_min_len_value_correct cosine_min_len_value_wrong cpo_alpha delta desirable_weight discopop_tau
    dynamic_sample enable_flattened_weight_sync epsilon epsilon_high fipo_clip_high_only fipo_clip_range
    fipo_decay_rate fipo_safety_threshold gamma generation_batch_size gkd_logits_topk gym_env
    importance_sampling_level kl_coef kl_in_reward label_smoothing lam ld_alpha lmbda
    local_rollout_forward_batch_size log_completions log_entropy log_rollout_offpolicy_metrics
    max_completion_length max_resample_times max_turns min_p missing_eos_penalty move_model_batches
    multi_turn_scheduler num_generations num_generations_eval num_iterations num_mini_batches num_ppo_epochs
    num_sample_generations off_policy_sequence_mask_delta offload_model offload_optimizer offload_teacher_model
    overlong_filter real_tau ref_model_mixup_alpha ref_model_revision ref_model_sync_steps ref_model_type
    repetition_max_penalty repetition_n_grams repetition_penalty response_length reward_adapters reward_funcs
    reward_model reward_model_plugin reward_model_revision reward_model_type reward_template reward_weights
    rlsd_lambda rlsd_lambda_decay_steps rlsd_lambda_warmup_steps rlsd_negative_only rlsd_reweight_clip_range
    rollout_importance_sampling_mode rollout_importance_sampling_threshold rpo_alpha scale_rewards
    sdar_gate_beta sdar_loss_coef seq_kd sft_alpha simpo_gamma sleep_level soft_cache_length soft_max_length
    steps_per_generation stop_words structured_outputs_regex sync_ref_model tau_neg tau_pos teacher_adapters
    teacher_deepspeed teacher_kl_coef teacher_model teacher_model_revision teacher_model_server
    teacher_model_type teacher_tag_key top_entropy_quantile top_k top_p undesirable_weight use_gym_env use_vllm
    vf_coef vllm_data_parallel_size vllm_disable_cascade_attn vllm_disable_custom_all_reduce
    vllm_enable_expert_parallel vllm_enable_lora vllm_enable_prefix_caching vllm_enforce_eager
    vllm_engine_kwargs vllm_gpu_memory_utilization vllm_limit_mm_per_prompt vllm_max_lora_rank
    vllm_max_model_len vllm_max_num_seqs vllm_mm_processor_cache_gb vllm_mode vllm_pipeline_parallel_size
    vllm_quantization vllm_reasoning_parser vllm_server_base_url vllm_server_group_port vllm_server_host
    vllm_server_pass_dataset vllm_server_port vllm_server_timeout vllm_speculative_config
    vllm_tensor_parallel_size vllm_use_async_engine wandb_log_unique_prompts whiten_rewards
    """.split()
)
"""Of ``RLHFArguments`` and not of ``SftArguments``: numbers of the loss, and what other kinds alone read."""


def kind_of(values: Mapping[str, object]) -> str | None:
    """The kind of training that keys name; None for those of ``swift sft``."""
    kind = values.get(KIND)
    return kind if isinstance(kind, str) and kind else None


def check_kind(settings: Settings) -> str:
    """Whether it trains on preferences, on rewards or, empty, on samples as they are. Raises InputError for other kinds
    of ``swift rlhf``, by key."""
    kind = settings.text(KIND, "") if KIND in settings else ""
    if kind in ("", *READ_KINDS):
        return kind
    raise InputError(
        f'{settings.source}: {KIND} is "{kind}"; supervised fine-tuning (swift sft), {listed(READ_KINDS)} are planned '
        f"of ms-swift"
    )


def preference_options(settings: Settings, arguments: Arguments, method: Method, kind: str) -> dict[str, Value]:
    """What the keys of ``swift rlhf`` mean for ``kind``, all but grpo; of ``arguments`` the loss is evaluated."""
    evaluate_for_loss(arguments.options)
    if kind == SCORES:
        return _of_scores(settings)
    readers = {LABELS: _of_labels, **dict.fromkeys(WITHOUT_REFERENCE, _without_reference)}
    own = readers.get(kind, _of_pairs)(settings)
    settings.ignore(("loss_weights",))
    if settings.is_on("packing"):
        settings.refuse(
            "packing", "answers are planned as they are; padding_free puts those of a micro batch in one row"
        )
    settings.only("ref_adapters", "a reference with adapters of its own is not planned")
    if kind not in WITHOUT_REFERENCE:
        _reference_model(settings, method)
    if settings.maybe_flag("use_liger_kernel"):
        settings.note("use_liger_kernel: Liger's layers are planned; its loss is not used, as logits are wanted")
    return own | {
        "task_trainer": TaskTrainer.MS_SWIFT.value,
        "loss": LossKind.SELECTIVE.value,
        "lora_dropout": 0.0,
    }


def _of_scores(settings: Settings) -> dict[str, Value]:
    """A head of one number in place of that of words (``_patch_sequence_classification`` in ``model/patcher.py``),
    which peft trains beside adapters by their task (``SEQ_CLS``). Checkpoints are as the Trainer has them."""
    settings.only("packing padding_free", f"ms-swift takes neither with {KIND} {SCORES}")
    settings.only("ref_model ref_adapters", f"{KIND} {SCORES} has no reference")
    settings.only("use_liger_kernel", f"Liger's kernels in a model that scores: {NOT_PLANNED}")
    settings.ignore(("loss_type", "loss_weights"))
    return {
        "task": TaskKind.REWARD.value,
        "loss": LossKind.BRADLEY_TERRY.value,
        "reentrant_checkpoints": False,
        "lora_dropout": 0.0,
    }


def _of_pairs(settings: Settings) -> dict[str, Value]:
    for name in settings.names("loss_type", "sigmoid"):
        if name not in LOSSES:
            settings.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(LOSSES)} are planned")
    return {"task": TaskKind.DPO.value}


def _without_reference(settings: Settings) -> dict[str, Value]:
    """Pairs of which the chosen answer is learnt beside."""
    kind = settings.text(KIND, ORPO)
    settings.only("ref_model", f"ms-swift takes none with {KIND} {kind}")
    settings.only("padding_free", f"ms-swift does not take it with {KIND} {kind}")
    if kind == ORPO:
        settings.ignore(("loss_type",))
        return {"task": TaskKind.DPO.value, "reference": Reference.NONE.value}
    for name in settings.names("loss_type", SIMPO):
        if name not in OF_CPO:
            settings.refuse("loss_type", f"{NOT_PLANNED}; {', '.join(OF_CPO)} are planned")
    if settings.number("cpo_alpha", 1.0) == 0:
        settings.refuse("cpo_alpha", f"a loss without the likelihood of chosen answers: {NOT_PLANNED}; above 0 is")
    settings.note(f"{KIND} is {kind}: written anew (--for ms-swift) it is {ORPO}, which takes the same")
    return {"task": TaskKind.DPO.value, "reference": Reference.NONE.value}


def _of_labels(settings: Settings) -> dict[str, Value]:
    names = {name: loss for loss, name in KTO_LOSSES.items()}
    found = settings.text("loss_type", KTO_LOSSES[KTOLoss.KTO])
    if found not in names:
        settings.refuse("loss_type", f"one of {', '.join(names)} is needed")
    return {"task": TaskKind.KTO.value, "kto_loss": names.get(found, KTOLoss.KTO).value}


def _reference_model(settings: Settings, method: Method) -> None:
    """``ref_model``: another one than the trained before its training."""
    name = settings.text("ref_model", "") if "ref_model" in settings else ""
    if not name:
        return
    if method is not Method.FULL:
        settings.refuse("ref_model", "ms-swift takes it without adapters alone, which it switches off")
    elif name != settings.text("model", ""):
        settings.refuse("ref_model", "a reference other than model is not planned")
