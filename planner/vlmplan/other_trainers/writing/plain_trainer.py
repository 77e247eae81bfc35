"""Hugging Face's Trainer (transformers 5.23): ``TrainingArguments`` as YAML, for the script that is written beside it.

What ``TrainingArguments`` do not say (the model, its types and adapters, the samples) is the script's, and an option of
vlmplan's beside the file.
"""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.hardware import Cluster
from vlmplan.other_trainers.plain_trainer import TRAINER
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.writing.batching import SCRIPT_BATCHING
from vlmplan.other_trainers.writing.checkpoints import GRADIENTS_OF_ALL_INPUTS, checkpoint_keys
from vlmplan.other_trainers.writing.hugging_face import (
    allocator_environment,
    needs_processes,
    torchrun,
    training_arguments,
)
from vlmplan.other_trainers.writing.hugging_face_limits import (
    BATCHES_OF_A_STEP,
    COMMON_LIMITS,
    LIGER_AS_A_WHOLE,
    NO_ACTIVATIONS_ON_HOST,
    NO_LORAPLUS,
    NO_THRESHOLD,
    TIED_CHECKPOINTING,
    all_parts_trained,
    one_type,
    peft_adapters,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, model_loss_limit, part_limits
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import DEFAULT_INIT, LossKind, Method, Precision, WeightDtype
from vlmplan.rules import default_attention, model_facts
from vlmplan.workload import Workload

FILE: Final = "training_args.yaml"
SCRIPT_FILE: Final = "train.py"
TO_FILL_IN: Final[Mapping[str, str]] = {"DATA": 'a file of chats, each line an object with "messages"'}
OF_ADAPTERS = (
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets", "lora_exclude", "use_rslora", "use_dora"),
    *("lora_init", "train_embeddings"),
)
FREEZES_NOTHING = "the script that is written for it freezes no part of a model"


def _initial(context: LimitContext) -> tuple[str, ...] | None:
    return (DEFAULT_INIT, "gaussian") if context.recipe.changes_base else None


def _packed_scales(context: LimitContext) -> tuple[bool, ...] | None:
    return (True,) if context.recipe.method is Method.QLORA else None


PLAIN_TRAINER_LIMITS: tuple[Limit, ...] = (
    *(limit for limit in COMMON_LIMITS if limit is not NO_THRESHOLD),
    BATCHES_OF_A_STEP,
    GRADIENTS_OF_ALL_INPUTS,
    TIED_CHECKPOINTING,
    SCRIPT_BATCHING,
    NO_LORAPLUS,
    Limit(
        field="lora_init",
        allowed=_initial,
        sentence="the script that is written for it saves adapters as they are, and those of PiSSA and OLoRA belong to "
        "changed weights; give another --lora-init",
        source="the script beside training_args.yaml",
    ),
    LIGER_AS_A_WHOLE,
    NO_ACTIVATIONS_ON_HOST,
    model_loss_limit("transformers 5.23 loss/loss_utils.py ForCausalLMLoss"),
    *part_limits(all_parts_trained, sentence=FREEZES_NOTHING, source="the script beside training_args.yaml"),
    Limit(
        field="precision",
        allowed=lambda context: (Precision.BF16,) if context.recipe.fsdp and context.recipe.trains_adapters else None,
        sentence="adapters in float32 beside weights in the checkpoint's 16 bit are not planned under FSDP2, so the "
        "script's adapters need --precision bf16",
        source="accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model: nothing is cast without mixed precision",
    ),
    Limit(
        field="weight_dtype",
        allowed=one_type,
        sentence="its weights all have the type in which the script loads them: with --method full --weight-dtype "
        "model (bf16 alone) or float32, with adapters table or float32",
        source="transformers 5.23 trainer.py: nothing is cast; torch amp/grad_scaler.py: no fp16 gradients",
        is_behaviour=True,
    ),
    Limit(
        field="adapter_dtype",
        allowed=peft_adapters,
        sentence="peft makes its adapters float32",
        source="peft 0.21 mapping_func.py get_peft_model: autocast_adapter_dtype=True",
        is_behaviour=True,
    ),
    Limit(
        field="use_double_quant",
        allowed=_packed_scales,
        sentence="the script that is written for it quantises the scales of 4-bit weights too",
        source="the script beside training_args.yaml",
        is_behaviour=True,
    ),
)


def _settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """The keys of ``TrainingArguments``, in the order of the file."""
    return training_arguments(recipe, workload) | {
        "gradient_checkpointing": recipe.activation_checkpointing,
        **checkpoint_keys(recipe),
        "remove_unused_columns": False,  # the script's collator makes tensors of chats
    }


def _options(recipe: Recipe, workload: Workload) -> dict[str, Value]:
    """What the script decides, as options, where they are not the default."""
    options: dict[str, Value] = {
        "model": workload.model.id,
        "method": recipe.method.value,
        "seq_len": workload.seq_len,
        "expandable_segments": recipe.expandable_segments,
    }
    if recipe.attention is not default_attention(model_facts(workload.model)):
        options["attention"] = recipe.attention.value
    if recipe.precision is Precision.FP32 and not recipe.uses_deepspeed:
        options["precision"] = recipe.precision.value
    if recipe.weight_dtype is WeightDtype.FLOAT32:
        options["weight_dtype"] = recipe.weight_dtype.value
    if recipe.trains_adapters:
        usual = Recipe()
        said = {name: getattr(recipe, name) for name in OF_ADAPTERS}
        options |= {name: value for name, value in said.items() if value != getattr(usual, name)}
    if recipe.method is Method.QLORA and recipe.fsdp:
        options["shards_packed"] = recipe.shards_packed
    if recipe.method.packs_weights and recipe.autocast is not None:
        options["upcasts_frozen"] = False
    return options


def _command(recipe: Recipe, cluster: Cluster) -> tuple[str, ...]:
    start = torchrun(cluster) if needs_processes(recipe, cluster) else ["python"]
    return (*start, SCRIPT_FILE, FILE)


def _written(recipe: Recipe, workload: Workload, cluster: Cluster) -> WrittenSetup:
    return WrittenSetup(
        tool=Tool.TRANSFORMERS,
        file=FILE,
        settings=_settings(recipe, workload),
        command=_command(recipe, cluster),
        environment=allocator_environment(recipe),
        options=_options(recipe, workload),
        to_fill_in=TO_FILL_IN if recipe.evaluation is None else {**TO_FILL_IN, "EVAL_DATA": "such a file to evaluate"},
        script=SCRIPT_FILE,
    )


KNOWN: Final = KnownTool(
    tool=Tool.TRANSFORMERS,
    title=TRAINER,
    limits=PLAIN_TRAINER_LIMITS,
    loss=LossKind.MODEL,
    written=_written,
    stops_by_script=True,
)
