"""EasyR1's GRPO: its YAML, or overrides of ``python3 -m verl.trainer.main config=FILE``.

Sources: EasyR1@b44b311b, ``verl/trainer/config.py`` and ``verl/workers/*/config.py`` for keys and defaults,
``verl/workers/fsdp_workers.py`` and ``verl/workers/actor/dp_actor.py`` for what they do.
"""

from typing import Final

from vlmplan.other_trainers.assembled import Surroundings
from vlmplan.other_trainers.record import TrainerConfig, Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.other_trainers.verl.common import (
    COMMON,
    NOT_PLANNED,
    TYPES_OF_BFLOAT16,
    TYPES_OF_FLOAT32,
    Rows,
    adapter_options,
    check_units,
    found_config,
    lengths,
    note_flat,
    note_images,
    num_gpus_of,
    reference_of,
    refuse_critics,
    rows_per_gpu,
)
from vlmplan.recipe.choices import Method, ShardUnits, WeightDtype
from vlmplan.recipe.task import IdleOffload, ReferenceShards, TaskTrainer
from vlmplan.workload import ModelFiles

EASYR1: Final = "EasyR1 0.3"
A, M, R, REF = "worker.actor.", "worker.actor.model.", "worker.rollout.", "worker.ref."
FSDP = f"{A}fsdp."
WITHOUT_EFFECT = tuple(
    f"{prefix}{name}"
    for prefix, names in {
        A: "clip_ratio_low clip_ratio_high clip_ratio_dual loss_avg_mode loss_type ppo_epochs use_torch_compile "
        "tau_positive tau_negative dynamic_batching fsdp.enable_rank0_init fsdp.mp_buffer_dtype fsdp.use_orig_params",
        M: "tokenizer_path trust_remote_code override_config",
        R: "temperature top_p top_k seed limit_images ignore_eos enforce_eager enable_chunked_prefill max_model_len "
        "max_num_batched_tokens disable_log_stats disable_tqdm val_override_config",
        REF: "strategy fsdp.enable_full_shard fsdp.enable_rank0_init fsdp.use_orig_params fsdp.fsdp_size "
        "fsdp.mp_param_dtype fsdp.mp_reduce_dtype fsdp.mp_buffer_dtype offload.offload_optimizer",
        "worker.": "hybrid_engine",
    }.items()
    for name in names.split()
)
OF_OTHERS = (
    *("data.", "trainer.", "algorithm.", "worker.reward.", "worker.critic.", f"{A}optim.", f"{R}val_override_config."),
    *(f"{M}override_config.",),
)
"""How keys begin of what has no effect on a step's memory and time beside the keys that are read."""


def read_easyr1(settings: Settings, model: ModelFiles | None, around: Surroundings) -> TrainerConfig:
    """What EasyR1 makes of these keys. Raises InputError with everything that is wrong."""
    refuse_critics(settings, "grpo")
    _refuse_what_has_no_plan(settings)
    num_gpus = num_gpus_of(settings, around)
    options: dict[str, Value] = {**COMMON, **lengths(settings, "data.max_prompt_length", "data.max_response_length")}
    name = settings.text(f"{M}model_path", "")
    options |= {"model": name} if name else {}
    answers = settings.count(f"{R}n", 1, least=1)
    options |= {"num_generations": answers, "epochs": settings.number("trainer.total_epochs", 15.0)}
    options |= _batches(settings, answers, num_gpus)
    method = around.method or (Method.LORA if settings.count(f"{M}lora.rank", 0) else Method.FULL)
    options |= _trained(settings, method) | _sharding(settings, model, num_gpus) | _vllm(settings)
    options |= _reference(settings, method)
    options["activation_checkpointing"] = settings.flag(f"{M}enable_gradient_checkpointing", True)
    options["task_trainer"] = TaskTrainer.EASYR1.value
    options["expandable_segments"] = False  # vLLM's allocator is in the same process
    note_images(settings, model, settings.count("data.max_prompt_length", 512))
    clipping = settings.number(f"{A}max_grad_norm", 1.0)
    settings.ignore(WITHOUT_EFFECT)
    settings.ignore_all_of(*OF_OTHERS)
    return found_config(settings, EASYR1, options, gradient_clipping=clipping)


def _refuse_what_has_no_plan(settings: Settings) -> None:
    settings.only(f"{A}strategy", "fsdp is planned", "fsdp")
    settings.only(f"{A}ulysses_size", f"samples that GPUs share: {NOT_PLANNED}", "1")
    settings.only(f"{FSDP}enable_cpu_offload", f"FSDP's own offload of the policy: {NOT_PLANNED}")
    settings.only(f"{FSDP}torch_dtype", "fp32 is planned", *TYPES_OF_FLOAT32)
    settings.only(f"{FSDP}mp_param_dtype {R}dtype", "bf16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{FSDP}mp_reduce_dtype", "fp32 is planned", *TYPES_OF_FLOAT32)
    settings.only(f"{REF}fsdp.torch_dtype", "bf16 is planned", *TYPES_OF_BFLOAT16)
    settings.only(f"{A}optim.strategy", "adamw is planned", "adamw")
    settings.only(f"{R}name", "vllm is planned", "vllm")
    if not settings.flag(f"{A}padding_free", True):
        settings.refuse(f"{A}padding_free", "rows without padding are planned; true is needed")


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


def _trained(settings: Settings, method: Method) -> dict[str, Value]:
    options: dict[str, Value] = {"method": method.value, "fuses_optimizer": True}
    if settings.flag(f"{M}freeze_vision_tower", False):
        options |= {"train_vision": False, "train_projector": False}
        options |= {"weight_dtype": WeightDtype.FLOAT32.value} if method is Method.FULL else {}
    keys = [f"{M}lora.{name}" for name in ("rank", "alpha", "target_modules", "exclude_modules")]
    settings.ignore(keys)
    if method is Method.FULL:
        return options
    rank, alpha = settings.count(keys[0], 16, least=1), settings.count(keys[1], 64, least=1)
    return options | adapter_options(settings, f"{M}lora.", rank=rank, alpha=alpha, exclude=None)


def _sharding(settings: Settings, model: ModelFiles | None, num_gpus: int) -> dict[str, Value]:
    size = settings.number(f"{FSDP}fsdp_size", -1.0, least=-1.0)
    if 0 < size < num_gpus:
        settings.refuse(f"{FSDP}fsdp_size", f"shards that are replicated (HSDP) are {NOT_PLANNED}; -1 is needed")
    check_units(settings, "", model)
    note_flat(settings)
    idle = (settings.flag(f"{A}offload.{name}", False) for name in ("offload_params", "offload_optimizer"))
    weights, optimizer = idle
    return {
        "reshard_after_forward": settings.flag(f"{FSDP}enable_full_shard", True),
        "shard_units": ShardUnits.LAYERS.value,
        "idle_offload": IdleOffload.of(weights=weights, optimizer=optimizer).value,
    }


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


def _vllm(settings: Settings) -> dict[str, Value]:
    """``sleep(level=1)`` (``vllm_rollout_spmd.py``, ``fsdp_vllm.py``)."""
    return {
        "vllm_memory_utilization": settings.number(f"{R}gpu_memory_utilization", 0.6, most=1.0),
        "vllm_tensor_parallel": settings.count(f"{R}tensor_parallel_size", 2, least=1),
        "vllm_sleep_level": 1,
    }
