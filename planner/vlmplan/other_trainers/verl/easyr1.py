"""EasyR1's GRPO: its YAML, or overrides of ``python3 -m verl.trainer.main config=FILE``.

Sources: EasyR1@b44b311b, ``verl/trainer/config.py`` and ``verl/workers/*/config.py`` for keys and defaults,
``verl/workers/fsdp_workers.py`` and ``verl/workers/actor/dp_actor.py`` for what they do.
"""

from typing import Final

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
from vlmplan.recipe.choices import Method, OptimizerKind, Precision, WeightDtype
from vlmplan.recipe.task_choices import Reference, ReferenceShards, TaskTrainer
from vlmplan.workload import ModelFiles

EASYR1: Final = "EasyR1 0.3"
COMPENSATED: Final = "adamw_bf16"
A, M, R, REF = "worker.actor.", "worker.actor.model.", "worker.rollout.", "worker.ref."
FSDP = f"{A}fsdp."
WITHOUT_EFFECT = prefixed(
    {
        A: "clip_ratio_low clip_ratio_high clip_ratio_dual loss_avg_mode loss_type use_torch_compile "
        "tau_positive tau_negative dynamic_batching fsdp.enable_rank0_init fsdp.mp_buffer_dtype",
        M: "tokenizer_path trust_remote_code override_config",
        R: "temperature top_p top_k do_sample seed limit_images ignore_eos enforce_eager enable_chunked_prefill "
        "max_model_len max_num_batched_tokens disable_log_stats disable_tqdm val_override_config",
        REF: "strategy fsdp.enable_full_shard fsdp.enable_rank0_init fsdp.use_orig_params fsdp.fsdp_size "
        "fsdp.mp_param_dtype fsdp.mp_reduce_dtype fsdp.mp_buffer_dtype offload.offload_optimizer",
        "worker.": "hybrid_engine",
    }
)
OF_OTHERS = (
    *("data.", "trainer.", "algorithm.", "worker.reward.", "worker.critic.", f"{A}optim.", f"{R}val_override_config."),
    *(f"{M}override_config.",),
)
"""How keys begin of what has no effect on a step's memory and time beside the keys that are read."""
OLDER: Final = {f"{A}ulysses_size": f"{A}ulysses_sequence_parallel_size"}
"""What releases before 0.3.1 called keys (EasyR1@64f5445)."""
KEYS: Final = Keys(
    trainer=EASYR1,
    task_trainer=TaskTrainer.EASYR1,
    model=f"{M}model_path",
    answers=f"{R}n",
    iterations=f"{A}ppo_epochs",
    rank=f"{M}lora.rank",
    alpha=f"{M}lora.alpha",
    default_alpha=64,
    adapters=f"{M}lora.",
    freezes_vision=f"{M}freeze_vision_tower",
    checkpoints=f"{M}enable_gradient_checkpointing",
    clipping=f"{A}max_grad_norm",
    estimator="grpo",
    epochs=15.0,
    fsdp=FSDP,
    reshards=f"{FSDP}enable_full_shard",
    units="",
    offloads_weights=f"{A}offload.offload_params",
    offloads_states=f"{A}offload.offload_optimizer",
    memory=f"{R}gpu_memory_utilization",
    default_memory=0.6,
    tensor_parallel=f"{R}tensor_parallel_size",
)


def read_easyr1(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What EasyR1 makes of these keys. Raises InputError with everything that is wrong."""
    options, method = shared_options(settings, model, around, KEYS)
    _refuse_what_has_no_plan(settings)
    num_gpus = num_gpus_of(settings, around)
    options |= _batches(settings, settings.count(KEYS.answers, 1, least=1), num_gpus)
    options |= sharding_options(settings, model, num_gpus, KEYS)
    options |= flat_options(settings, options, num_gpus, KEYS, prefetches_forward=False)
    options |= {"uses_autocast": False} if "flat_parameters" in options else {}
    options |= _types(settings, is_flat="flat_parameters" in options)
    options |= _reference(settings, method)
    if options["reference"] == Reference.COPY.value:
        refuse_copies_of_reference(settings, f"{REF}fsdp.fsdp_size", num_gpus)
    options |= {"fuses_optimizer": True, "vllm_sleep_level": 1}  # ``sleep(level=1)`` (``fsdp_vllm.py``)
    options["expandable_segments"] = False  # vLLM's allocator is in the same process
    if "train_vision" in options and method is Method.FULL and options["precision"] == Precision.BF16.value:
        options["weight_dtype"] = WeightDtype.FLOAT32.value
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore_all_of(*OF_OTHERS)
    return found_config(settings, KEYS, options)


def _refuse_what_has_no_plan(settings: Settings) -> None:
    settings.only(f"{A}strategy", "fsdp is planned", "fsdp")
    settings.only(f"{A}ulysses_size", f"samples that GPUs share: {NOT_PLANNED}", "1")
    settings.only(f"{FSDP}enable_cpu_offload", f"FSDP's own offload of the policy: {NOT_PLANNED}")
    settings.only(f"{FSDP}mp_param_dtype {R}dtype", "bf16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{FSDP}mp_reduce_dtype", "fp32 is planned", *TYPES_OF_FLOAT32)
    settings.only(f"{REF}fsdp.torch_dtype", "bf16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{R}name", "vllm is planned", "vllm")
    settings.only_true(f"{A}padding_free", "rows without padding are planned")


def _types(settings: Settings, *, is_flat: bool) -> dict[str, Value]:
    """Weights in float32, or in bfloat16 with ``AnyPrecisionAdamW`` or torch's AdamW (``fsdp_workers.py``)."""
    dtype, strategy = f"{FSDP}torch_dtype", f"{A}optim.strategy"
    kind = settings.text(strategy, "adamw")
    if kind not in ("adamw", COMPENSATED):
        settings.refuse(strategy, f"adamw and {COMPENSATED} are planned")
    if settings.raw(dtype) not in TYPES_OF_BFLOAT16:
        settings.only(dtype, "fp32 and bf16 are planned", *TYPES_OF_FLOAT32)
        if kind == COMPENSATED:
            settings.refuse(strategy, f"it is planned with {dtype} bf16 alone")
        return {}
    settings.text(dtype, "fp32")
    if not is_flat:
        settings.refuse(dtype, f"of adapters, and on one GPU: {NOT_PLANNED}")
    optimizer = OptimizerKind.ANY_PRECISION_ADAMW if kind == COMPENSATED else OptimizerKind.ADAMW
    return {"precision": Precision.BF16_PURE.value, "optimizer": optimizer.value}


def _batches(settings: Settings, answers: int, num_gpus: int) -> dict[str, Value]:
    """``global_batch_size`` counts prompts over all GPUs; with ``dynamic_batching`` too, a micro batch has the tokens
    of so many answers of the full length at the most."""
    key, of_all = f"{A}global_batch_size", "data.rollout_batch_size"
    of_step = rows_per_gpu(settings, key, settings.count(key, 256, least=1), answers, num_gpus)
    of_rollout = rows_per_gpu(settings, of_all, settings.count(of_all, 512, least=1), answers, num_gpus)
    update, experience = (f"{A}micro_batch_size_per_device_for_{use}" for use in ("update", "experience"))
    micro_batch = settings.count(update, 4, least=1)
    if of_step % micro_batch:
        settings.refuse_whole(
            f"{update} is {micro_batch}; a divisor of the {of_step} answers of a GPU in a step ({key}) is needed"
        )
    rows = Rows(micro_batch=micro_batch, of_step=of_step, of_rollout=of_rollout)
    return {**rows.options(num_gpus), "scoring_batch": min(settings.count(experience, 16, least=1), of_rollout)}


def _reference(settings: Settings, method: Method) -> dict[str, Value]:
    """``disable_kl`` alone says that there is none."""
    is_needed = not settings.flag("algorithm.disable_kl", False)
    options: dict[str, Value] = {"reference": reference_of(method, is_needed=is_needed)}
    offloads = settings.flag(f"{REF}fsdp.enable_cpu_offload", False) | settings.flag(
        f"{REF}offload.offload_params", False
    )
    if is_needed and method is Method.FULL:
        options["reference_shards"] = (ReferenceShards.HOST if offloads else ReferenceShards.GPU).value
    return options
