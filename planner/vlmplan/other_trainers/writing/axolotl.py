"""axolotl 0.19.0: YAML for ``axolotl train``.

Sources: those of ``other_trainers/axolotl.py``; ``cli/main.py`` and ``cli/utils/train.py`` for how processes are
started.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vlmplan.hardware import Cluster
from vlmplan.other_trainers.assembled import sees
from vlmplan.other_trainers.axolotl.adapters import KERNELS
from vlmplan.other_trainers.axolotl.keys import LIGER, LIGER_LAYERS, own_name
from vlmplan.other_trainers.axolotl.reading import AXOLOTL, DEFAULTS
from vlmplan.other_trainers.axolotl.samples import PADS_TO
from vlmplan.other_trainers.fsdp import LAYER_CLASSES
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.writing.axolotl_preferences import (
    batching_of,
    checkpoints_of,
    has_usual_adapters,
    losses_of,
    preference_keys,
    says_adapter_type,
    to_fill_in,
)
from vlmplan.other_trainers.writing.batching import AXOLOTL_BATCHING
from vlmplan.other_trainers.writing.checkpoints import GRADIENTS_OF_ALL_INPUTS, REENTRANT_BY_DEFAULT
from vlmplan.other_trainers.writing.hugging_face import (
    adapter_names,
    adapter_settings,
    attention_setting,
    model_name,
    needs_processes,
    torchrun,
    trained_embeddings,
    training_arguments,
)
from vlmplan.other_trainers.writing.hugging_face_limits import (
    BATCHES_OF_A_STEP,
    COMMON_LIMITS,
    NO_EXCLUSIONS,
    TIED_CHECKPOINTING,
    is_casting_full,
    no_stacked_experts,
    peft_adapters,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, always, model_loss_limit
from vlmplan.other_trainers.writing.preferences import task_options
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup, placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    DEFAULT_INIT,
    REGEX,
    AdapterDtype,
    AttentionImplementation,
    Batching,
    LossKind,
    Method,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Moment
from vlmplan.workload import Workload

FILE: Final = "train.yaml"
LEARNING_RATE: Final = 5e-5
"""Which its schema asks for: that of ``TrainingArguments``."""
PART_FOR_EVALUATION: Final = 0.01
"""Of the samples that are trained on, where nobody says how many are evaluated. A choice."""
TO_FILL_IN: Final = {
    "datasets": "your data: path is a file or an id of the Hugging Face Hub, type says how a sample becomes text, such "
    "as chat_template",
}


def _attention(context: LimitContext) -> tuple[AttentionImplementation, ...] | None:
    return (AttentionImplementation.FLASH_ATTENTION_2,) if is_casting_full(context) else None


def _weights(context: LimitContext) -> tuple[WeightDtype, ...]:
    return (WeightDtype.MODEL,) if is_casting_full(context) else (WeightDtype.TABLE,)


def _adapters(context: LimitContext) -> tuple[AdapterDtype, ...] | None:
    usual = peft_adapters(context)
    if not has_usual_adapters(context.recipe):  # TRL makes those beside packed weights bfloat16
        is_packed = context.casts and context.recipe.method.packs_weights
        return (AdapterDtype.MODEL,) if is_packed else usual
    is_mixed = context.casts or (context.recipe.fsdp and context.recipe.precision is Precision.BF16)
    return (*usual, AdapterDtype.MODEL) if usual is not None and is_mixed else usual


def _precisions(context: LimitContext) -> tuple[Precision, ...]:
    everywhere = (Precision.BF16, Precision.FP32)
    is_full = context.is_plain and context.recipe.method is Method.FULL
    pure = (Precision.BF16_PURE,) if context.recipe.fsdp else ()
    return (*everywhere, *pure) if is_full or context.recipe.fsdp else (*everywhere, Precision.FP16)


def _precisions_of_shards(context: LimitContext) -> tuple[Precision, ...] | None:
    if not context.recipe.fsdp:
        return None
    computed = Precision.BF16 if context.recipe.trains_adapters else Precision.BF16_PURE
    return (computed, Precision.FP32)


def _tower(context: LimitContext) -> tuple[bool, ...] | None:
    """Adapters are on every part; of a model that is trained as a whole what sees may be frozen."""
    recipe = context.recipe
    if not context.sees:
        return None
    return (True,) if recipe.trains_adapters else (True, False)


def _projector(context: LimitContext) -> tuple[bool, ...] | None:
    return (context.recipe.train_vision,) if context.sees else None


def _language(context: LimitContext) -> tuple[bool, ...] | None:
    return (True,) if context.sees else None


def _offloads(context: LimitContext) -> tuple[bool, ...] | None:
    recipe = context.recipe
    is_planned = recipe.activation_checkpointing and recipe.method is Method.FULL and recipe.task is None
    return None if is_planned else (False,)


def _evaluation_alone_at_the_end(context: LimitContext) -> tuple[None, ...] | None:
    evaluation = context.recipe.evaluation
    return (None,) if evaluation is not None and evaluation.every is Moment.END else None


def _units(context: LimitContext) -> tuple[ShardUnits, ...]:
    if not context.recipe.fsdp:
        return (ShardUnits.ENDS_TOO,)
    return (ShardUnits.ADAPTERS_TOO if context.recipe.trains_adapters else ShardUnits.LAYERS,)


UNITS: Final = Limit(
    field="shard_units",
    allowed=_units,
    sentence="its FSDP2 gathers layers by themselves, of adapters each matrix (--shard-units layers-and-adapters), and "
    "all else with the root (layers)",
    source="monkeypatch/accelerate/fsdp2.py fsdp2_prepare_model",
    is_behaviour=True,
)
PARTS: Final = (
    "its freeze_mm_modules freezes vision and projector together, and leaves adapters on every part; give "
    "--freeze-vision and --freeze-projector with --method full, or neither"
)
AXOLOTL_LIMITS: tuple[Limit, ...] = (
    *(limit for limit in COMMON_LIMITS if limit.field not in ("upcasts_frozen", "shard_units", "dp_shard_size")),
    UNITS,
    Limit(
        field="shards_packed",
        allowed=always(True),
        sentence="it keeps 4-bit weights in bfloat16, which FSDP2 shards; --no-shard-packed is not to be had",
        source="loaders/model.py _set_quantization_config: bnb_4bit_quant_storage",
    ),
    Limit(
        field="use_dora",
        allowed=lambda context: (False,) if context.recipe.fsdp else None,
        sentence="its FSDP2 makes a unit of each matrix of an adapter, which is not planned with DoRA",
        source="monkeypatch/accelerate/fsdp2.py _process_lora_module_for_fsdp",
    ),
    Limit(
        field="train_embeddings",
        allowed=lambda context: (False,) if context.recipe.fsdp else None,
        sentence="its FSDP2 makes a unit of each matrix of an adapter, which is not planned with copies of embeddings",
        source="monkeypatch/accelerate/fsdp2.py _process_lora_module_for_fsdp",
    ),
    Limit(
        field="evaluation",
        allowed=_evaluation_alone_at_the_end,
        sentence="it evaluates after epochs or steps, never at the end alone; give --eval-every epoch, or a number",
        source="core/builders/base.py _configure_save_and_eval_strategy: it has no do_eval",
    ),
    BATCHES_OF_A_STEP,
    GRADIENTS_OF_ALL_INPUTS,
    REENTRANT_BY_DEFAULT,
    TIED_CHECKPOINTING,
    replace(AXOLOTL_BATCHING, allowed=batching_of),
    NO_EXCLUSIONS,
    Limit(
        field="upcasts_frozen",
        allowed=always(False),
        sentence="norms and embeddings of its packed models are 16-bit when it trains; --kbit-upcast is not to be had",
        source="loaders/model.py _configure_embedding_dtypes: cast back after prepare_model_for_kbit_training",
        is_behaviour=True,
    ),
    Limit(
        field="expandable_segments",
        allowed=always(True),
        sentence="it lets the allocator's segments grow unless a variable says otherwise; --no-expandable-segments is "
        "not written for it",
        source="utils/__init__.py set_pytorch_cuda_alloc_conf",
        is_behaviour=True,
    ),
    Limit(
        field="attention",
        allowed=_attention,
        sentence="without flash attention embeddings and norms of a wholly trained model stay float32 beside 16-bit "
        "weights, which is not planned; give --attention flash_attention_2",
        source="loaders/model.py _configure_embedding_dtypes: attn_needs_dtype_cast",
    ),
    Limit(
        field="lora_targets",
        allowed=no_stacked_experts,
        sentence="adapters on stacked experts are not written for it; name layers alone",
        source="that its lora_target_parameters does the same has not been tried",
    ),
    Limit(
        field="offload_activations",
        allowed=_offloads,
        sentence="with adapters, or without checkpointing, it moves everything that is saved; --offload-activations is "
        "planned for --method full with --activation-checkpointing, of samples as they are",
        source="loaders/model.py _apply_activation_checkpointing",
    ),
    replace(
        model_loss_limit(
            "core/trainers/base.py compute_loss; integrations/liger/plugin.py, as which its cut cross entropy is "
            "planned; monkeypatch/trainer/utils.py"
        ),
        allowed=losses_of,
        sentence="its models make all logits at once (--loss model), or none with Liger's loss (liger); of preferences "
        "it has one alone (axolotl), and of rewards another (axolotl-answers)",
    ),
    Limit(
        field="precision",
        allowed=_precisions,
        sentence="it loads weights in the type that it computes in: wholly trained ones in bf16 or fp32, as gradients "
        "of fp16 are scaled; --precision bf16-pure is not to be had without --fsdp",
        source="utils/config/__init__.py resolve_dtype; torch amp/grad_scaler.py: no fp16 gradients",
    ),
    Limit(
        field="precision",
        allowed=_precisions_of_shards,
        sentence="under FSDP2 it leaves shards of trained weights in 16 bit, and so gradients and moments; give "
        "--precision bf16-pure, with adapters, which peft makes float32, bf16",
        source="monkeypatch/accelerate/fsdp2.py fsdp2_prepare_model: nothing is cast",
    ),
    Limit(field="train_vision", allowed=_tower, sentence=PARTS, source="utils/freeze.py freeze_mm_modules"),
    Limit(field="train_projector", allowed=_projector, sentence=PARTS, source="utils/freeze.py freeze_mm_modules"),
    Limit(field="train_language", allowed=_language, sentence=PARTS, source="utils/freeze.py freeze_mm_modules"),
    Limit(
        field="weight_dtype",
        allowed=_weights,
        sentence="its weights have the type that it computes in: with --method full --weight-dtype model, with "
        "adapters table",
        source="loaders/model.py: torch_dtype goes to from_pretrained",
        is_behaviour=True,
    ),
    Limit(
        field="adapter_dtype",
        allowed=_adapters,
        sentence="peft makes its adapters float32 (--adapter-dtype float32), or with peft_autocast_adapter_dtype: "
        "false in plain PyTorch the model's type (model)",
        source="loaders/adapter.py load_lora: autocast_adapter_dtype",
        is_behaviour=True,
    ),
)


def _settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """The keys of ``axolotl train``, in the order of the file."""
    arguments = {own_name(key): value for key, value in training_arguments(recipe, workload).items()}
    if recipe.fsdp:
        arguments |= _fsdp(arguments) | {"bf16": recipe.precision is not Precision.FP32}
        arguments["dp_shard_size"] = recipe.dp_shard_size
    return {
        "base_model": model_name(workload.model),
        **preference_keys(recipe, workload),
        **attention_setting("attn_implementation", recipe, workload.model),
        **_liger(recipe),
        **_adapter_settings(recipe, workload),
        **({"freeze_mm_modules": True} if sees(workload.model) and not recipe.train_vision else {}),
        "datasets": [{"path": placeholder("path"), "type": placeholder("type")}],
        **_samples(recipe, workload),
        **{key: value for key, value in arguments.items() if key and value is not None},
        "learning_rate": LEARNING_RATE,
        "gradient_checkpointing": recipe.activation_checkpointing,
        **checkpoints_of(recipe),
        **({"activation_offloading": True} if recipe.offload_activations else {}),
        "dataloader_num_workers": workload.loader_workers,
        **_packed_evaluation(recipe),
    }


def _fsdp(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``FSDPConfig`` (``utils/schemas/fsdp.py``); classes are one text there."""
    section = dict(arguments["fsdp_config"])
    version, offloads = section.pop("version"), section.pop("cpu_offload", False)
    section |= {LAYER_CLASSES: ",".join(section[LAYER_CLASSES])} if LAYER_CLASSES in section else {}
    section |= {"offload_params": True} if offloads else {}
    return {"fsdp": None, "fsdp_version": version, "fsdp_config": section}


def _samples(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """Rows of text are padded to multiples of 64 tokens; a length that is none is left as it is."""
    packing = {Batching.PACKED: {"sample_packing": True}, Batching.PADDING_FREE: {"batch_flattening": True}}
    settings: dict[str, Any] = {"sequence_len": workload.seq_len, **packing.get(recipe.batching, {})}
    if sees(workload.model) and workload.images_per_sample:
        return settings | {
            "processor_type": "AutoProcessor",
            "image_size": [workload.image_width, workload.image_height],
            "skip_prepare_dataset": True,
            "remove_unused_columns": False,
        }
    has_odd_rows = recipe.task is None and workload.seq_len % PADS_TO
    return settings | ({"pad_to_sequence_len": False} if has_odd_rows else {})


def _liger(recipe: Recipe) -> dict[str, Any]:
    fuses = recipe.loss is LossKind.LIGER
    if not fuses and not recipe.liger_layers:
        return {}
    # Without a word of it rotations of some models are Liger's (the reader's ``own_rope``).
    names = (*LIGER_LAYERS, "liger_layer_norm") if recipe.liger_layers else ("liger_rope",)
    return {"plugins": [LIGER], **dict.fromkeys(names, recipe.liger_layers), "liger_fused_linear_cross_entropy": fuses}


def _adapter_settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    if recipe.method is Method.FULL:
        return {}
    packs = recipe.method is Method.QLORA
    settings = adapter_settings(
        recipe,
        rank="lora_r",
        targets={"lora_target_modules": _targets(recipe)},
        embeddings={"lora_modules_to_save": trained_embeddings(workload.model)},
    )
    return {
        "adapter": "qlora" if packs else "lora",
        **({"load_in_4bit": True} if packs else {}),
        **({"load_in_8bit": True} if recipe.method is Method.LORA_8BIT else {}),
        **({} if recipe.use_double_quant or not packs else {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}),
        **{own_name(key): value for key, value in settings.items()},
        **({} if recipe.lora_init == DEFAULT_INIT else {"peft_init_lora_weights": recipe.lora_init}),
        **({} if recipe.loraplus_lr_ratio is None else {"loraplus_lr_ratio": recipe.loraplus_lr_ratio}),
        **({"peft_autocast_adapter_dtype": False} if says_adapter_type(recipe) else {}),
        **dict.fromkeys(KERNELS, False),
    }


def _targets(recipe: Recipe) -> str | list[str]:
    """peft's word, or a regular expression, is text; names are a list."""
    if recipe.lora_targets == ALL_LINEAR:
        return ALL_LINEAR
    return adapter_names(recipe)[0] if recipe.lora_targets.startswith(REGEX) else adapter_names(recipe)


def _packed_evaluation(recipe: Recipe) -> dict[str, Any]:
    """Packed rows of evaluation are as many as those of training."""
    evaluation = recipe.evaluation
    is_another = evaluation is not None and evaluation.batch != recipe.micro_batch
    return {"eval_sample_packing": False} if is_another and recipe.batching is Batching.PACKED else {}


def _command(recipe: Recipe, cluster: Cluster) -> tuple[str, ...]:
    if not needs_processes(recipe, cluster):
        return ("axolotl", "train", FILE, "--launcher", "python")
    return ("axolotl", "train", FILE, "--launcher", "torchrun", "--", *torchrun(cluster)[1:])


def _written(recipe: Recipe, workload: Workload, cluster: Cluster) -> WrittenSetup:
    often = None if recipe.evaluation is None else recipe.evaluation.accumulation
    options: dict[str, Value] = {} if often is None else {"eval_accumulation": often}
    options |= {} if recipe.task is None else task_options(recipe.task, workload)
    return WrittenSetup(
        tool=Tool.AXOLOTL,
        file=FILE,
        settings=_settings(recipe, workload),
        command=_command(recipe, cluster),
        options=options,
        to_fill_in={**TO_FILL_IN, **to_fill_in(recipe)},
    )


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """A number of samples above 1, or a part of those that are trained on."""
    samples = evaluation.kept_samples
    return {"val_set_size": samples if samples > 1 else PART_FOR_EVALUATION}


KNOWN: Final = KnownTool(
    tool=Tool.AXOLOTL,
    title=AXOLOTL,
    limits=AXOLOTL_LIMITS,
    loss=LossKind.MODEL,
    written=_written,
    attention=AttentionImplementation.FLASH_ATTENTION_2,
    sizes_images=True,
    evaluation=_evaluation,
    evaluates_on_start=DEFAULTS.evaluation.on_start,
)
