"""verl's GRPO with FSDP and vLLM: overrides of ``python3 -m verl.trainer.main_ppo``, or YAML of the merged settings.

Sources: verl@b178a3cd, ``verl/trainer/config/_generated_ppo_trainer.yaml`` for keys and defaults,
``verl/workers/fsdp_workers.py`` for batches, types, FSDP, the reference and what is sent to vLLM,
``verl/workers/actor/dp_actor.py`` for micro batches, ``verl/trainer/ppo/utils.py`` for who is there; of 0.9 and later
the same of verl@1dda039b, ``verl/workers/engine_workers.py`` and ``verl/workers/engine/fsdp/transformer_impl.py``.
"""

from dataclasses import replace
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.verl.common import (
    NOT_PLANNED,
    TYPES_OF_BFLOAT16,
    TYPES_OF_FLOAT32,
    Keys,
    Rows,
    flat_options,
    found_config,
    num_gpus_of,
    prefixed,
    reference_of,
    refuse_copies_of_reference,
    rows_per_gpu,
    sharding_options,
    shared_options,
)
from vlmplan.recipe.choices import LossKind, Method, Offload, ShardUnits, WeightDtype
from vlmplan.recipe.task_choices import IdleOffload, ReferenceShards, TaskTrainer
from vlmplan.workload import ModelFiles

VERL: Final = "verl 0.9"
LEGACY: Final = "verl 0.8.0.dev"
"""Up to it verl trains with ``ActorRolloutRefWorker``, and has a key for it that later releases do not have."""
OF_LEGACY: Final = "trainer.use_legacy_worker_impl"
WHICH_WORKER: Final = (
    f"planned as {VERL} trains, which keeps whole gradients of a step on every GPU until its last micro batch; for "
    f"verl up to 0.8.0.dev, which does not, add its key {OF_LEGACY}=auto"
)
FROZEN_BY_NONE: Final = f"{{key}} is true, but {VERL} reads it nowhere: its vision tower is trained, and planned so"
FSDP1, FSDP2 = "fsdp", "fsdp2"
A, M, R = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
REF = "actor_rollout_ref.ref."
FSDP = f"{A}fsdp_config."
WITHOUT_EFFECT = prefixed(
    {
        A: "entropy_from_logits_chunk_size fsdp_config.entropy_from_logits_chunk_size "
        "fsdp_config.pad_to_length_bucket "
        "_target_ rollout_n clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c tau_pos tau_neg loss_agg_mode "
        "loss_scale_factor kl_loss_coef kl_loss_type shuffle data_loader_seed use_fused_kernels "
        "loss_mode use_rollout_log_probs use_remove_padding entropy_from_logits_with_chunking "
        "entropy_checkpointing use_kl_loss fsdp_config.strategy fsdp_config._target_ "
        "fsdp_config.seed fsdp_config.full_determinism fsdp_config.use_torch_compile fsdp_config.forward_only "
        "fsdp_config.entropy_from_logits_with_chunking fsdp_config.entropy_checkpointing clip_grad "
        "ppo_micro_batch_size ppo_micro_batch_size_per_gpu ppo_max_token_len_per_gpu fsdp_config.grad_offload",
        M: "_target_ hf_config_path tokenizer_path use_shm trust_remote_code custom_chat_template external_lib "
        "fused_kernel_options tiled_mlp.num_shards override_config",
        R: "n_gpus_per_node full_determinism moe_load_balance_metrics_interval "
        "_target_ mode temperature top_k top_p do_sample ignore_eos enforce_eager cudagraph_capture_sizes "
        "max_num_batched_tokens max_model_len max_num_seqs enable_chunked_prefill enable_prefix_caching logprobs_mode "
        "scheduling_policy load_format disable_log_stats over_sample_rate multi_stage_wake_up calculate_log_probs "
        "skip_rollout skip_dump_dir skip_tokenizer_init layered_summon prompt_length response_length limit_images seed "
        "disable_mm_preprocessor_cache enable_rollout_routing_replay mtp log_prob_micro_batch_size "
        "log_prob_micro_batch_size_per_gpu",
        REF: "_target_ rollout_n strategy use_torch_compile entropy_from_logits_with_chunking entropy_checkpointing "
        "entropy_from_logits_chunk_size model log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.": "hybrid_engine nccl_timeout",
    }
)
OF_OTHERS = (
    *("data.", "trainer.", "algorithm.", "reward_manager.", "custom_reward_function.", "global_profiler.", "critic."),
    *("ray_kwargs.", "ray_init.", "transfer_queue.", "hydra.", "reward_model.", "defaults", "env.", "reward."),
    *(f"{A}{name}." for name in ("policy_loss", "profiler", "router_replay", "checkpoint", "optim", "qat")),
    *(f"{REF}{name}." for name in ("profiler", "router_replay", "fsdp_config", "tiled_mlp", "megatron")),
    *(f"{R}{name}." for name in ("val_kwargs", "multi_turn", "agent", "trace", "profiler", "prometheus", "mtp")),
    *("distillation.", "sandbox_fusion.", "skip.", f"{R}disaggregation.", f"{R}skip.", f"{FSDP}qat."),
    *(f"{R}engine_kwargs.", f"{R}checkpoint_engine.", f"{M}mtp.", f"{A}megatron.", f"{M}lora."),
    *(f"{FSDP}turbo_config.",),
)
"""How keys begin of what has no effect on a step's memory and time beside the keys that are read."""
KEYS: Final = Keys(
    trainer=VERL,
    task_trainer=TaskTrainer.VERL_ENGINE,
    model=f"{M}path",
    answers=f"{R}n",
    iterations=f"{A}ppo_epochs",
    rank=f"{M}lora_rank",
    alpha=f"{M}lora_alpha",
    default_alpha=16,
    adapters=M,
    freezes_vision="",
    checkpoints=f"{M}enable_gradient_checkpointing",
    clipping=f"{A}grad_clip",
    estimator="gae",
    epochs=30.0,
    fsdp=FSDP,
    reshards=f"{FSDP}reshard_after_forward",
    units=f"{FSDP}wrap_policy.transformer_layer_cls_to_wrap",
    offloads_weights=f"{FSDP}param_offload",
    offloads_states=f"{FSDP}optimizer_offload",
    memory=f"{R}gpu_memory_utilization",
    default_memory=0.5,
    tensor_parallel=f"{R}tensor_model_parallel_size",
)
LEGACY_KEYS: Final = replace(
    KEYS, trainer=LEGACY, task_trainer=TaskTrainer.VERL, freezes_vision=f"{A}freeze_vision_tower"
)


def read_verl(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What verl makes of these keys. Raises InputError with everything that is wrong."""
    _refuse_other_engines(settings)
    is_legacy = settings.text(OF_LEGACY, "") != ""
    keys = LEGACY_KEYS if is_legacy else KEYS
    options, method = shared_options(settings, model, around, keys)
    _refuse_what_has_no_plan(settings)
    if not is_legacy:
        settings.note(WHICH_WORKER)
        if settings.flag(f"{A}freeze_vision_tower", False):
            settings.note(FROZEN_BY_NONE.format(key=f"{A}freeze_vision_tower"))
        options |= {"sync_each_batch": False, "loss": LossKind.VERL_QUOTIENT.value}
    num_gpus = num_gpus_of(settings, around)
    options |= _batches(settings, options, settings.count(KEYS.answers, 1, least=1), num_gpus)
    options |= _weight_types(settings, options, method) | _sharding(settings, model, options, num_gpus)
    options |= _vllm(settings)
    if settings.flag(f"{A}use_kl_loss", False) | settings.flag("algorithm.use_kl_in_reward", False):
        options["reference"] = reference_of(method, is_needed=True)
        wide = ReferenceShards.HOST_FLOAT32.value
        options |= {"reference_shards": wide} if method is Method.FULL else {}
        if method is Method.FULL and not is_legacy:
            refuse_copies_of_reference(settings, f"{REF}fsdp_config.fsdp_size", num_gpus)
    if settings.flag(f"{M}use_fused_kernels", False):
        options["loss"] = LossKind.VERL_FUSED.value
    options["fuses_optimizer"] = False
    options["expandable_segments"] = True  # ``rollout_mode`` sets it, with vLLM in a process of its own
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore_all_of(*OF_OTHERS)
    return found_config(settings, keys, options)


def _refuse_other_engines(settings: Settings) -> None:
    """Raise InputError where Megatron or another engine trains, whose other keys are of no use then."""
    for key, planned in (("model_engine", ("dp",)), (f"{A}strategy", (FSDP1, FSDP2))):
        engine = settings.text(key, "")
        if engine not in ("", *planned):
            raise InputError(f"{settings.source}: {key} is {engine}, which is not planned; {' and '.join(planned)} are")


def _refuse_what_has_no_plan(settings: Settings) -> None:
    settings.only(f"distillation.enabled {FSDP}qat.enable {R}disaggregation.enabled", NOT_PLANNED)
    settings.only("critic.enable", f"a critic: {NOT_PLANNED}")
    settings.only("reward_model.enable reward_model.enable_resource_pool", f"a reward model: {NOT_PLANNED}")
    settings.only("trainer.device", "GPUs of CUDA are planned", "cuda")
    settings.only(OF_LEGACY, f"the engines of verl 0.7 and 0.8: {NOT_PLANNED}", "auto", "enable")
    settings.only(f"{A}pad_to_length {REF}pad_to_length {FSDP}pad_to_length {R}qat {M}lora.merge", NOT_PLANNED)
    settings.only(f"{R}nnodes", f"answers from GPUs of their own: {NOT_PLANNED}")
    shared = [f"{prefix}{name}ulysses_sequence_parallel_size" for prefix in (A, REF) for name in ("", "fsdp_config.")]
    settings.only(" ".join(shared), f"samples that GPUs share: {NOT_PLANNED}", "1")
    settings.only(
        f"{A}entropy_coeff {A}calculate_entropy",
        f"a gradient or metric of the entropy in the update: {NOT_PLANNED}",
        "0.0",
    )
    settings.only_true(f"{A}use_torch_compile", f"entropies that are not compiled: {NOT_PLANNED}")
    settings.only(f"{A}calculate_sum_pi_squared {A}use_prefix_grouper {A}sum_pi_squared_checkpointing", NOT_PLANNED)
    settings.only(f"{M}fused_kernel_options.impl_backend", "torch is planned", "torch")
    settings.only(f"{M}enable_activation_offload", f"activations in host memory by verl: {NOT_PLANNED}")
    settings.only(f"{M}use_liger {M}tiled_mlp.enabled {M}lora_adapter_path {M}mtp.enable", NOT_PLANNED)
    settings.only(f"{M}override_config.attn_implementation", "flash_attention_2 is planned", "flash_attention_2")
    settings.only(f"{A}fsdp_config.dtype", "bfloat16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{FSDP}mixed_precision.param_dtype", "bf16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{FSDP}mixed_precision.reduce_dtype", "fp32 is planned", *TYPES_OF_FLOAT32)
    settings.ignore((f"{FSDP}mixed_precision", f"{FSDP}mixed_precision.buffer_dtype"))
    settings.only(f"{A}optim.optimizer", "AdamW is planned", "adamw")
    settings.only(f"{A}optim.optimizer_impl", "torch.optim is planned", "torch.optim")
    settings.only(f"{A}optim.override_optimizer_config", NOT_PLANNED)
    settings.only_true(f"{M}use_remove_padding", "rows without padding are planned")


def _batches(settings: Settings, options: dict[str, Value], answers: int, num_gpus: int) -> dict[str, Value]:
    """``ppo_mini_batch_size`` counts prompts over all GPUs, ``ppo_micro_batch_size_per_gpu`` answers."""
    seq_len = options["seq_len"]
    assert isinstance(seq_len, int)
    prompts = settings.count("data.train_batch_size", 1024, least=1)
    of_rollout = rows_per_gpu(settings, "data.train_batch_size", prompts, answers, num_gpus)
    key = f"{A}ppo_mini_batch_size"
    of_step = rows_per_gpu(settings, key, settings.count(key, 256, least=1), answers, num_gpus)
    is_dynamic = settings.flag(f"{A}use_dynamic_bsz", False)
    tokens = settings.count(f"{A}ppo_max_token_len_per_gpu", 16384, least=1)
    micro_batch = _rows(
        settings, f"{A}ppo_micro_batch_size", is_dynamic, (f"{A}ppo_max_token_len_per_gpu", tokens), seq_len, num_gpus
    )
    if not is_dynamic and of_step % micro_batch:
        settings.refuse(
            f"{A}ppo_micro_batch_size_per_gpu", f"a divisor of the {of_step} answers of a GPU in a step is needed"
        )
    scoring = [
        _rows(
            settings,
            f"{prefix}log_prob_micro_batch_size",
            settings.flag(f"{prefix}log_prob_use_dynamic_bsz", is_dynamic),
            (
                f"{prefix}log_prob_max_token_len_per_gpu",
                settings.count(f"{prefix}log_prob_max_token_len_per_gpu", tokens, least=1),
            ),
            seq_len,
            num_gpus,
            default=micro_batch,
        )
        for prefix in (R, REF)
    ]
    if scoring[0] != scoring[1]:
        settings.note(f"log_prob batches of policy and reference differ: both are planned with {max(scoring)} answers")
    rows = Rows(micro_batch=micro_batch, of_step=of_step, of_rollout=of_rollout)
    return {**rows.options(num_gpus), "scoring_batch": min(max(scoring), of_rollout)}


def _rows(
    settings: Settings,
    key: str,
    is_dynamic: bool,
    limit: tuple[str, int],
    seq_len: int,
    num_gpus: int,
    *,
    default: int | None = None,
) -> int:
    """Answers of the full length in one micro batch on one GPU."""
    own = f"{key}_per_gpu"
    if is_dynamic:
        settings.ignore((key, own))
        name, tokens = limit
        if tokens < seq_len:
            settings.refuse_whole(
                f"{name} is {tokens}; the {seq_len} tokens of a prompt with its answer are needed, or more"
            )
        return max(1, tokens // seq_len)
    settings.ignore((limit[0],))
    if own in settings:
        settings.ignore((key,))
        return settings.count(own, 1, least=1)
    if key in settings:
        return max(1, settings.count(key, 1, least=1) // num_gpus)
    if default is None:
        settings.refuse_whole(f"{own} is not said; verl needs it, or use_dynamic_bsz: true")
    return default or 1


def _weight_types(settings: Settings, options: dict[str, Value], method: Method) -> dict[str, Value]:
    dtype = settings.text(f"{FSDP}model_dtype", "fp32").casefold()
    is_wide = dtype in TYPES_OF_FLOAT32
    if not is_wide and (method is Method.FULL or dtype not in TYPES_OF_BFLOAT16):
        settings.refuse(f"{FSDP}model_dtype", "fp32 is planned" + ("" if method is Method.FULL else ", or bf16"))
    has_frozen = method is not Method.FULL or "train_vision" in options
    return {"weight_dtype": WeightDtype.FLOAT32.value} if is_wide and has_frozen else {}


def _sharding(
    settings: Settings, model: ModelFiles | None, options: dict[str, Value], num_gpus: int
) -> dict[str, Value]:
    strategy = settings.text(f"{A}strategy", FSDP1)
    settings.only(f"{FSDP}wrap_policy.min_num_params", "units of layers are planned")
    found = sharding_options(settings, model, num_gpus, KEYS)
    prefetches = settings.flag(f"{FSDP}forward_prefetch", False)
    if strategy == FSDP1:
        settings.ignore((f"{FSDP}offload_policy",))
        return found | flat_options(settings, options, num_gpus, KEYS, prefetches_forward=prefetches)
    settings.ignore((f"{FSDP}use_orig_params",))
    found["shard_units"] = ShardUnits.EMBEDDING_TOO.value
    if settings.flag(f"{FSDP}offload_policy", False):
        idle: dict[str, Value] = {"idle_offload": IdleOffload.NONE.value}
        return found | idle | {"offload_params": Offload.CPU.value, "offload_optimizer": Offload.CPU.value}
    return found


def _vllm(settings: Settings) -> dict[str, Value]:
    name = settings.text(f"{R}name", "")
    if name != "vllm":
        settings.refuse_whole(f"{R}name is {name or 'not said'}; vllm is planned")
    for key in ("data_parallel_size", "pipeline_model_parallel_size", "expert_parallel_size"):
        settings.only(f"{R}{key}", f"{NOT_PLANNED}; 1 is", "1")
    settings.only(f"{R}quantization {R}quantization_config_file", NOT_PLANNED)
    settings.only(f"{R}dtype", "bfloat16 is planned", *TYPES_OF_BFLOAT16)
    old, new = (f"{R}{name}update_weights_bucket_megabytes" for name in ("", "checkpoint_engine."))
    bucket = old if old in settings else new
    settings.ignore((old, new))
    return {
        "vllm_sleep_level": 2 if settings.flag(f"{R}free_cache_engine", True) else 0,
        "sync_buffer_mib": settings.count(bucket, 2048, least=1),
    }
