"""axolotl 0.19.0: YAML for ``axolotl train``.

Sources: those of ``other_trainers/axolotl.py``; ``cli/main.py`` and ``cli/utils/train.py`` for how processes are
started.
"""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.hardware import Cluster
from vlmplan.model_types.liger import FUSED_LOSS_TYPES
from vlmplan.other_trainers.axolotl.adapters import KERNELS
from vlmplan.other_trainers.axolotl.keys import CUT_CROSS_ENTROPY, LIGER, LIGER_LAYERS, own_name
from vlmplan.other_trainers.axolotl.reading import AXOLOTL, DEFAULTS
from vlmplan.other_trainers.axolotl.samples import PADS_TO
from vlmplan.other_trainers.fsdp import LAYER_CLASSES
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.writing.axolotl_limits import AXOLOTL_LIMITS
from vlmplan.other_trainers.writing.axolotl_preferences import (
    checkpoints_of,
    preference_keys,
    says_adapter_type,
    to_fill_in,
)
from vlmplan.other_trainers.writing.hugging_face import (
    adapter_names,
    adapter_settings,
    attention_setting,
    model_name,
    needs_processes,
    patience_key,
    torchrun,
    trained_embeddings,
    training_arguments,
)
from vlmplan.other_trainers.writing.preferences import task_options
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup, placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    DEFAULT_INIT,
    REGEX,
    AttentionImplementation,
    Batching,
    LossKind,
    Method,
    Precision,
)
from vlmplan.recipe.evaluation import Evaluation
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
        **_fused_kernels(recipe, workload),
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


def _fused_kernels(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """Those of Liger; of a model that this has no loss for, axolotl's cut cross entropy, which is read as one."""
    fuses = recipe.loss is LossKind.LIGER
    if fuses and workload.model.model_type not in FUSED_LOSS_TYPES:
        return {"plugins": [CUT_CROSS_ENTROPY], "cut_cross_entropy": True}
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
    size = {"val_set_size": samples if samples > 1 else PART_FOR_EVALUATION}
    return size | patience_key("early_stopping_patience", evaluation)


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
    applies_liger_itself=True,
)
