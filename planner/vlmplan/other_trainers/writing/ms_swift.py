"""ms-swift 4.6.0: YAML for ``swift sft``, with the variables of the run in its ``ENV``.

Sources: ``arguments/`` for keys, ``cli/main.py`` for ``ENV`` and how torch's launcher is started.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vlmplan.hardware import Cluster
from vlmplan.other_trainers.meaning import sees
from vlmplan.other_trainers.ms_swift.preferences import KIND, ORPO, SCORES
from vlmplan.other_trainers.ms_swift.reading import MS_SWIFT
from vlmplan.other_trainers.writing.batching import MS_SWIFT_BATCHING, packing_keys
from vlmplan.other_trainers.writing.checkpoints import GRADIENTS_OF_TEXT_INPUTS, checkpoint_keys
from vlmplan.other_trainers.writing.hugging_face import (
    MASTER_PORT,
    adapter_names,
    adapter_settings,
    allocator_environment,
    attention_setting,
    fsdp_config,
    loaded_type,
    model_name,
    needs_processes,
    patience_key,
    quant_storage,
    trained_embeddings,
    training_arguments,
)
from vlmplan.other_trainers.writing.hugging_face_limits import (
    BATCHES_OF_A_STEP,
    COMMON_LIMITS,
    LIGER_AS_A_WHOLE,
    NO_ACTIVATIONS_ON_HOST,
    NO_EXCLUSIONS,
    no_stacked_experts,
    one_type,
    peft_adapters,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, model_loss_limit, part_limits
from vlmplan.other_trainers.writing.ms_swift_rewards import reward_environment, reward_keys, rewards_to_fill_in
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup, placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, BITS, DEFAULT_INIT, REGEX, TEMPERED, LossKind, Method
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.task_choices import KTO_LOSSES, KTOLoss, Reference
from vlmplan.workload import Workload

FILE: Final = "train.yaml"
TO_FILL_IN: Final[Mapping[str, str]] = {"dataset": "your data: a JSONL file, or an id of the Hugging Face Hub"}


def _named_parts(context: LimitContext) -> tuple[bool, ...] | None:
    """Modules that are named are adapted wherever they are, whatever is frozen."""
    recipe = context.recipe
    is_named = context.sees and recipe.trains_adapters and recipe.lora_targets != ALL_LINEAR
    return (True,) if is_named else None


def _losses(context: LimitContext) -> tuple[LossKind, ...]:
    task = context.recipe.task
    if task is None:
        return (LossKind.MODEL, LossKind.LIGER)
    if task.is_reward:
        return (LossKind.BRADLEY_TERRY,)
    return TEMPERED if task.is_grpo else (LossKind.SELECTIVE,)


def _ligers_layers(context: LimitContext) -> tuple[Any, ...] | None:
    """Of preferences with Liger's layers or without them, of reward models without."""
    if context.recipe.scores_rows:
        return (False,)
    return LIGER_AS_A_WHOLE.allowed(context) if context.recipe.task is None else None


MS_SWIFT_LIMITS: tuple[Limit, ...] = (
    *COMMON_LIMITS,
    MS_SWIFT_BATCHING,
    BATCHES_OF_A_STEP,
    GRADIENTS_OF_TEXT_INPUTS,
    NO_EXCLUSIONS,
    Limit(
        field="lora_targets",
        allowed=no_stacked_experts,
        sentence="adapters on stacked experts are not written for it; name layers alone",
        source="that its target_parameters does the same has not been tried",
    ),
    replace(LIGER_AS_A_WHOLE, allowed=_ligers_layers),
    NO_ACTIVATIONS_ON_HOST,
    replace(
        model_loss_limit("trainers/seq2seq_trainer.py compute_loss; use_liger_kernel; rlhf_trainers/dpo_trainer.py"),
        allowed=_losses,
        sentence="its models make all logits at once (--loss model), or none with Liger's loss (liger); of preferences "
        "it has one alone (selective), of rewards its own (tempered, tempered-entropy), of reward models bradley-terry",
    ),
    *part_limits(
        _named_parts,
        sentence="modules that target_modules names are adapted in every part of the model; give --lora-targets "
        "all-linear to leave parts out",
        source="pipelines/train/tuner.py get_target_modules: freeze_vit and its like are asked of all-linear alone",
    ),
    Limit(
        field="weight_dtype",
        allowed=one_type,
        sentence="its weights all have torch_dtype: with --method full --weight-dtype model (bf16 alone) or float32, "
        "with adapters table or float32",
        source="model/register.py: torch_dtype goes to from_pretrained; torch amp/grad_scaler.py: no fp16 gradients",
        is_behaviour=True,
    ),
    Limit(
        field="adapter_dtype",
        allowed=peft_adapters,
        sentence="peft makes its adapters float32, unless lora_dtype is set, which is not planned",
        source="tuners/peft.py, pipelines/train/tuner.py: autocast_adapter_dtype",
        is_behaviour=True,
    ),
)


def _settings(recipe: Recipe, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    """The keys of ``swift sft``, in the order of the file."""
    has_parts = sees(workload.model)
    settings = {
        **({} if recipe.task is None else {KIND: _kind(recipe)}),
        "model": model_name(workload.model),
        "use_hf": True,
        "torch_dtype": loaded_type(recipe),
        **attention_setting("attn_impl", recipe, workload.model),
        **_adapter_settings(recipe, workload),
        **(_frozen(recipe) if has_parts else {}),
        **{key: placeholder(key) for key in _to_fill_in(recipe)},
        **_task_keys(recipe, workload),
        **packing_keys(recipe),
        **({"max_pixels": workload.image_width * workload.image_height} if workload.images_per_sample else {}),
        **training_arguments(recipe, workload),
        **_sharding(recipe, workload),
        "gradient_checkpointing": recipe.activation_checkpointing,
        **checkpoint_keys(recipe),
        **({"vit_gradient_checkpointing": recipe.vision_activation_checkpointing} if has_parts else {}),
        **({"ENV": environment} if (environment := _environment(recipe, cluster)) else {}),
    }
    return {key: value for key, value in settings.items() if value is not None}


def _kind(recipe: Recipe) -> str:
    """Of three kinds without a reference that take the same the one that says least."""
    assert recipe.task is not None
    if recipe.task.is_reward:
        return SCORES
    return ORPO if recipe.task.is_dpo and recipe.reference is Reference.NONE else recipe.task.kind.value


def _to_fill_in(recipe: Recipe) -> Mapping[str, str]:
    return {**TO_FILL_IN, **rewards_to_fill_in(recipe.task)}


def _task_keys(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    if recipe.task is not None and recipe.task.is_grpo:
        return reward_keys(recipe, workload)
    is_other = recipe.task is not None and recipe.task.is_kto and not recipe.task.estimates_kl
    loss = {"loss_type": KTO_LOSSES[KTOLoss.APO_ZERO]} if is_other else {}
    return {"max_length": workload.seq_len, **loss}


def _sharding(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """``fsdp`` as JSON with both keys of ``TrainingArguments`` (``_init_fsdp`` in ``arguments/sft_args.py``)."""
    if not recipe.fsdp:
        return {}
    config = {"fsdp": "full_shard auto_wrap", "fsdp_config": fsdp_config(recipe, workload.model)}
    return {"fsdp": json.dumps(config), "fsdp_config": None}  # in place of both


def _adapter_settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    if recipe.method is Method.FULL:
        return {"tuner_type": "full"}
    return {
        "tuner_type": "lora",
        **adapter_settings(
            recipe,
            rank="lora_rank",
            targets=_targets(recipe),
            embeddings={"modules_to_save": trained_embeddings(workload.model)},
        ),
        **({} if recipe.lora_init == DEFAULT_INIT else {"init_weights": recipe.lora_init}),
        **_loraplus(recipe),
        **({"quant_bits": BITS[recipe.method], "quant_method": "bnb"} if recipe.method in BITS else {}),
        **quant_storage(recipe),
        **(
            {"bnb_4bit_use_double_quant": False}
            if recipe.method is Method.QLORA and not recipe.use_double_quant
            else {}
        ),
    }


def _targets(recipe: Recipe) -> dict[str, Any]:
    if recipe.lora_targets.startswith(REGEX):
        return {"target_regex": recipe.lora_targets.removeprefix(REGEX)}
    return {"target_modules": adapter_names(recipe)}


def _loraplus(recipe: Recipe) -> dict[str, Any]:
    ratio = recipe.loraplus_lr_ratio
    return {} if ratio is None else {"optimizer": "lorap", "lorap_lr_ratio": ratio}


def _frozen(recipe: Recipe) -> dict[str, Any]:
    return {
        "freeze_vit": not recipe.train_vision,
        "freeze_aligner": not recipe.train_projector,
        "freeze_llm": not recipe.train_language,
    }


def _environment(recipe: Recipe, cluster: Cluster) -> dict[str, str]:
    """``ENV`` sets what is not set already; the rank and the address of a node are of each node's own."""
    variables = allocator_environment(recipe) | reward_environment(recipe.task)
    if needs_processes(recipe, cluster):
        variables["NPROC_PER_NODE"] = str(cluster.node.num_gpus)
    if cluster.num_nodes > 1:
        variables |= {"NNODES": str(cluster.num_nodes), "MASTER_PORT": MASTER_PORT}
    return variables


def _written(recipe: Recipe, workload: Workload, cluster: Cluster) -> WrittenSetup:
    return WrittenSetup(
        tool=Tool.MS_SWIFT,
        file=FILE,
        settings=_settings(recipe, workload, cluster),
        command=("swift", "sft" if recipe.task is None else "rlhf", FILE),
        to_fill_in=_to_fill_in(recipe),
    )


SPLIT_RATIO = 0.01
"""Of the samples that are trained on, where evaluation is asked for and nobody says on what. A choice."""


def _evaluation(evaluation: Evaluation) -> dict[str, Any]:
    metric = {"eval_metric": "acc"} if evaluation.kept is Kept.PREDICTIONS else {}
    return {"split_dataset_ratio": SPLIT_RATIO} | metric | patience_key("early_stop_interval", evaluation)


KNOWN: Final = KnownTool(
    tool=Tool.MS_SWIFT,
    title=MS_SWIFT,
    limits=MS_SWIFT_LIMITS,
    loss=LossKind.MODEL,
    written=_written,
    freezes_vision=True,
    limits_pixels=True,
    evaluation=_evaluation,
)
