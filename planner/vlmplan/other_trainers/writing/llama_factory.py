"""LLaMA-Factory 0.9.5: YAML for ``llamafactory-cli train``.

Sources: ``hparams/*.py`` for keys, ``hparams/parser.py`` for what they do not go with, ``launcher.py`` for variables.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.other_trainers.llama_factory.evaluation import EVALUATION
from vlmplan.other_trainers.llama_factory.preferences import TASKS, WITHOUT_REFERENCE
from vlmplan.other_trainers.llama_factory.reading import ATTENTION, LLAMA_FACTORY, PACKED_SHARDS
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.writing.batching import LLAMA_FACTORY_BATCHING, neat_packing_keys
from vlmplan.other_trainers.writing.checkpoints import (
    GRADIENTS_BY_PEFT,
    REENTRANT_BY_DEFAULT,
    TRAINED_LAYERS_CHECKPOINTED,
    is_told_kind,
)
from vlmplan.other_trainers.writing.hugging_face import (
    MASTER_ADDR,
    MASTER_PORT,
    NODE_RANK,
    adapter_names,
    adapter_settings,
    allocator_environment,
    attention_setting,
    fsdp_config,
    model_name,
    needs_processes,
    patience_key,
    trained_embeddings,
    training_arguments,
)
from vlmplan.other_trainers.writing.hugging_face_limits import (
    COMMON_LIMITS,
    LAYERS_AS_UNITS,
    LIGER_AS_A_WHOLE,
    NO_EXCLUSIONS,
    has_wide_shards,
    is_casting_full,
    leaves_adapters_wide,
    no_stacked_experts,
    unless_a_pattern,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, always
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup, placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    BITS,
    DEFAULT_INIT,
    PISSA,
    PISSA_ITERATIONS,
    AdapterDtype,
    BatchesOnGpu,
    CheckpointKind,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.task_choices import Reference
from vlmplan.workload import Workload

FILE: Final = "train.yaml"
TO_FILL_IN: Final[Mapping[str, str]] = {
    "dataset": "the name of your data in data/dataset_info.json, or several with commas",
    "template": "the chat template of your model, by LLaMA-Factory's name, such as qwen2_vl",
}


def _weights(context: LimitContext) -> tuple[WeightDtype, ...]:
    if has_wide_shards(context):
        return (WeightDtype.FLOAT32,)
    has_pure = is_casting_full(context) and context.recipe.precision is Precision.BF16
    return (WeightDtype.TABLE, WeightDtype.MODEL) if has_pure else (WeightDtype.TABLE,)


def _adapters(context: LimitContext) -> tuple[AdapterDtype, ...] | None:
    if context.recipe.method is Method.FULL:
        return None
    if leaves_adapters_wide(context.recipe):
        return (AdapterDtype.FLOAT32,)
    has_pure = context.casts and context.recipe.precision is Precision.BF16
    return (AdapterDtype.TABLE, AdapterDtype.FLOAT32) if has_pure else (AdapterDtype.TABLE,)


def _projector(context: LimitContext) -> tuple[bool, ...] | None:
    recipe = context.recipe
    is_left_out = context.sees and recipe.trains_adapters and recipe.lora_targets == ALL_LINEAR
    return (False,) if is_left_out else None


def _initial(context: LimitContext) -> tuple[str, ...] | None:
    recipe = context.recipe
    allows = recipe.lora_init.startswith(PISSA) and recipe.zero_stage != 3
    return None if allows else (DEFAULT_INIT,)


def _is_of_preferences(context: LimitContext) -> bool:
    return context.recipe.task is not None


def _batches(context: LimitContext) -> tuple[BatchesOnGpu, ...]:
    return (BatchesOnGpu.STEP_FLOAT32 if _is_of_preferences(context) else BatchesOnGpu.STEP,)


def _losses(context: LimitContext) -> tuple[LossKind, ...]:
    return (LossKind.LOG_SOFTMAX,) if _is_of_preferences(context) else (LossKind.MODEL, LossKind.LIGER)


def _ligers_layers(context: LimitContext) -> tuple[Any, ...] | None:
    """Of preferences with Liger's layers or without them."""
    return None if _is_of_preferences(context) else LIGER_AS_A_WHOLE.allowed(context)


def _inputs_on_host(context: LimitContext) -> tuple[bool, ...] | None:
    recipe = context.recipe
    is_told = is_told_kind(recipe, CheckpointKind.REENTRANT)
    has_them = recipe.activation_checkpointing and recipe.task is None and not recipe.fsdp and not is_told
    return None if has_them else (False,)


LLAMA_FACTORY_LIMITS: tuple[Limit, ...] = (
    *(limit for limit in COMMON_LIMITS if limit.field != "shard_units"),
    LAYERS_AS_UNITS,
    Limit(
        field="method",
        allowed=lambda context: (Method.FULL, Method.LORA) if context.recipe.fsdp else None,
        sentence=PACKED_SHARDS,
        source="accelerate 1.11 utils/fsdp_utils.py fsdp2_prepare_model: model.to(float32)",
    ),
    Limit(
        field="lora_targets",
        allowed=no_stacked_experts,
        sentence="adapters on stacked experts are not written for it; name layers alone",
        source="hparams/finetuning_args.py LoraArguments has lora_target, and no key for parameters",
    ),
    Limit(
        field="batches_on_gpu",
        allowed=_batches,
        sentence="all micro batches of a step are on the GPU at once, with pixels in 16 bit (--batches-on-gpu step), "
        "those of preferences in float32 (step-float32)",
        source="transformers 5.23 trainer.py get_batch_samples; data/collator.py SFTDataCollatorWith4DAttentionMask "
        "casts what is no whole number to compute_dtype, PairwiseDataCollatorWithPadding does not",
        is_behaviour=True,
    ),
    GRADIENTS_BY_PEFT,
    REENTRANT_BY_DEFAULT,
    TRAINED_LAYERS_CHECKPOINTED,
    LLAMA_FACTORY_BATCHING,
    NO_EXCLUSIONS,
    Limit(
        field="lora_targets",
        allowed=unless_a_pattern,
        sentence="its lora_target are names; a regular expression is not to be had",
        source="hparams/finetuning_args.py __post_init__: split at commas",
    ),
    Limit(
        field="lora_init",
        allowed=_initial,
        sentence="its adapters start as peft's do or from PiSSA, which it does not do under ZeRO-3; give another "
        "--lora-init",
        source="model/adapter.py: pissa_init; hparams/parser.py: 'Please use scripts/pissa_init.py'",
    ),
    replace(LIGER_AS_A_WHOLE, allowed=_ligers_layers),
    Limit(
        field="offload_activations",
        allowed=_inputs_on_host,
        sentence="its use_unsloth_gc keeps inputs of reentrant checkpoints in host memory, of samples and without "
        "FSDP2; --offload-activations is not to be had otherwise",
        source="model/model_utils/checkpointing.py UnslothGradientCheckpointing",
    ),
    Limit(
        field="loss",
        allowed=_losses,
        sentence="it has no loss in chunks: logits are made at once (--loss model), or by Liger's loss (liger); of "
        "preferences it has one alone (log-softmax)",
        source="train/sft/trainer.py compute_loss: the model's own; enable_liger_kernel; train/dpo/trainer.py",
    ),
    Limit(
        field="precision",
        allowed=always(Precision.BF16, Precision.FP16, Precision.BF16_PURE),
        sentence="it loads weights in 16 bit; --precision fp32 is not to be had",
        source="hparams/parser.py compute_dtype, model/patcher.py: without bf16 and fp16, float32 meets 16-bit weights",
    ),
    Limit(
        field="train_projector",
        allowed=_projector,
        sentence="its lora_target all leaves the projector out; give --freeze-projector, or name the modules with "
        "--lora-targets",
        source="model/model_utils/misc.py find_all_linear_modules: projector_keys are forbidden",
    ),
    Limit(
        field="weight_dtype",
        allowed=_weights,
        sentence="it makes trained weights float32 beside 16-bit ones (--weight-dtype table), or with pure_bf16 and "
        "--method full leaves them in bf16 (model); its FSDP2 makes shards of frozen ones float32 too (float32)",
        source="model/adapter.py init_adapter: cast_trainable_params_to_fp32",
        is_behaviour=True,
    ),
    Limit(
        field="adapter_dtype",
        allowed=_adapters,
        sentence="it makes all that is trained float32 (--adapter-dtype table), or with pure_bf16 leaves it as peft "
        "does (float32)",
        source="model/adapter.py init_adapter: cast_trainable_params_to_fp32",
        is_behaviour=True,
    ),
)


def _settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """The keys of ``llamafactory-cli train``, in the order of the file."""
    checkpointing = {} if recipe.activation_checkpointing else {"disable_gradient_checkpointing": True}
    is_told = is_told_kind(recipe, CheckpointKind.REENTRANT) or _is_told_by_task(recipe)
    checkpointing |= {"use_reentrant_gc": False} if is_told else {}
    checkpointing |= {"use_unsloth_gc": True} if recipe.offload_activations else {}
    return {
        "model_name_or_path": model_name(workload.model),
        **attention_setting("flash_attn", recipe, workload.model, ATTENTION),
        **_task_keys(recipe),
        "do_train": True,
        **_adapter_settings(recipe, workload),
        **(_frozen(recipe) if sees(workload.model) else {}),
        **{key: placeholder(key) for key in TO_FILL_IN},
        "cutoff_len": workload.seq_len,
        **neat_packing_keys(recipe),
        **({"image_max_pixels": workload.image_width * workload.image_height} if workload.images_per_sample else {}),
        **training_arguments(recipe, workload),
        **(_fsdp(recipe, workload) if recipe.fsdp else {}),
        **({"pure_bf16": True} if _is_pure(recipe) else {}),
        **checkpointing,
    }


def _task_keys(recipe: Recipe) -> dict[str, Any]:
    """A loss without a reference is one of two, which take the same. Raises InputError for other tasks."""
    task = recipe.task
    if task is None:
        return {"stage": "sft"}
    stage = next((stage for stage, kind in TASKS.items() if kind is task.kind), None)
    if stage is None or not task.is_of_llama_factory:
        raise InputError(
            f"{LLAMA_FACTORY} trains preferences its own way, --task dpo or kto with --task-trainer llamafactory"
        )
    is_alone = recipe.reference is Reference.NONE
    return {"stage": stage, **({"pref_loss": WITHOUT_REFERENCE[0]} if is_alone else {})}


def _is_told_by_task(recipe: Recipe) -> bool:
    """Whether checkpoints that are not reentrant are told apart by what is trained for: of adapters under ZeRO-3."""
    is_sharded = recipe.shards_checkpointed_adapters
    return recipe.task is not None and is_sharded and not recipe.has_reentrant_checkpoints


def _fsdp(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """``fsdp`` in words, as transformers up to 5.6 has it."""
    config = fsdp_config(recipe, workload.model)
    offloads = bool(config.pop("cpu_offload", False))
    del config["auto_wrap_policy"]
    return {"fsdp": "full_shard auto_wrap" + " offload" * offloads, "fsdp_config": config}


def _is_pure(recipe: Recipe) -> bool:
    if recipe.uses_deepspeed:
        return False
    leaves = recipe.weight_dtype is WeightDtype.MODEL or (
        recipe.trains_adapters and recipe.adapter_dtype is AdapterDtype.FLOAT32
    )
    return recipe.precision is Precision.BF16_PURE or leaves


def _adapter_settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    if recipe.method is Method.FULL:
        return {"finetuning_type": "full"}
    targets = "all" if recipe.lora_targets == ALL_LINEAR else ",".join(adapter_names(recipe))
    return {
        "finetuning_type": "lora",
        **adapter_settings(
            recipe,
            rank="lora_rank",
            targets={"lora_target": targets},
            embeddings={"additional_target": ",".join(trained_embeddings(workload.model))},
        ),
        **_pissa(recipe),
        **({} if recipe.loraplus_lr_ratio is None else {"loraplus_lr_ratio": recipe.loraplus_lr_ratio}),
        **({"quantization_bit": BITS[recipe.method], "quantization_method": "bnb"} if recipe.method in BITS else {}),
        **({"double_quantization": False} if recipe.method is Method.QLORA and not recipe.use_double_quant else {}),
    }


def _pissa(recipe: Recipe) -> dict[str, Any]:
    if not recipe.lora_init.startswith(PISSA):
        return {}
    number = recipe.lora_init.removeprefix(PISSA_ITERATIONS)
    return {"pissa_init": True, "pissa_iter": -1 if recipe.lora_init == PISSA else int(number), "pissa_convert": True}


def _frozen(recipe: Recipe) -> dict[str, Any]:
    return {
        "freeze_vision_tower": not recipe.train_vision,
        "freeze_multi_modal_projector": not recipe.train_projector,
        "freeze_language_model": not recipe.train_language,
    }


def _environment(recipe: Recipe, cluster: Cluster) -> dict[str, str]:
    """torchrun is started by variables, and then sets the allocator's unless OPTIM_TORCH is 0."""
    if not needs_processes(recipe, cluster):
        return allocator_environment(recipe)
    variables = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(cluster.node.num_gpus)}
    if cluster.num_nodes > 1:
        variables |= {"NNODES": str(cluster.num_nodes), "NODE_RANK": NODE_RANK}
        variables |= {"MASTER_ADDR": MASTER_ADDR, "MASTER_PORT": MASTER_PORT}
    return variables | (allocator_environment(recipe) or {"OPTIM_TORCH": "0"})


def _written(recipe: Recipe, workload: Workload, cluster: Cluster) -> WrittenSetup:
    return WrittenSetup(
        tool=Tool.LLAMA_FACTORY,
        file=FILE,
        settings=_settings(recipe, workload),
        command=("llamafactory-cli", "train", FILE),
        environment=_environment(recipe, cluster),
        to_fill_in=TO_FILL_IN,
    )


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """A ``val_size`` of 1 would be all samples."""
    settings: dict[str, Any] = {"val_size": evaluation.kept_samples} if evaluation.kept_samples > 1 else {}
    settings |= patience_key("early_stopping_steps", evaluation)
    return settings | ({"compute_accuracy": True} if evaluation.kept is Kept.PREDICTIONS else {})


KNOWN: Final = KnownTool(
    tool=Tool.LLAMA_FACTORY,
    title=LLAMA_FACTORY,
    limits=LLAMA_FACTORY_LIMITS,
    loss=LossKind.MODEL,
    written=_written,
    freezes_vision=True,
    limits_pixels=True,
    packed_rows=1,
    evaluation=_evaluation,
    evaluates_after_training=EVALUATION.after_training,
)
