"""The keys that are written for all trainers alike: ``TrainingArguments``, adapters, and how processes are started.

Keys of transformers 5.23 (``training_args.py``); launchers of torch 2.13, accelerate 1.15.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlmplan.deepspeed_config.file import SGD_MOMENTUM
from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.model_types.language_parts import AUTO_CLASS, SUFFIX
from vlmplan.other_trainers.fsdp import LAYER_CLASSES, TRANSFORMER_WRAP, layer_classes
from vlmplan.other_trainers.fsdp import VERSION as FSDP_VERSION
from vlmplan.other_trainers.hugging_face import ATTENTION, OPTIMIZERS
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.writing.record import ALLOCATOR_VARIABLE, DS_CONFIG_FILE, EXPANDABLE
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    REGEX,
    AttentionImplementation,
    Method,
    Offload,
    OptimizerKind,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Evaluation, Every, Kept, Moment
from vlmplan.recipe.lora_targets import layer_targets, listed_targets
from vlmplan.units import DType
from vlmplan.workload import ModelFiles, Workload

OUTPUT_DIR = "output"
MASTER_PORT = "29500"
NODE_RANK, MASTER_ADDR = "${NODE_RANK:-0}", "${MASTER_ADDR:-127.0.0.1}"
"""What a shell on every node knows; the script that starts the command refuses to without them."""
EMBEDDINGS = ("embed_tokens", "lm_head")


def training_arguments(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """The keys of ``TrainingArguments`` that the recipe decides, but for checkpointing, which not all name so."""
    return {
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "num_train_epochs": workload.epochs,
        **optimizer_keys(recipe),
        "max_grad_norm": recipe.gradient_clipping,
        "bf16": recipe.precision is Precision.BF16,
        "fp16": recipe.precision is Precision.FP16,
        **({"use_liger_kernel": True} if recipe.liger_layers else {}),
        **_evaluation_arguments(recipe.evaluation),
        **({"deepspeed": DS_CONFIG_FILE} if recipe.uses_deepspeed else {}),
        **({"fsdp": True, "fsdp_config": fsdp_config(recipe, workload.model)} if recipe.fsdp else {}),
        "output_dir": OUTPUT_DIR,
    }


def quant_storage(recipe: Recipe) -> dict[str, Any]:
    """The key for 4-bit weights that FSDP2 shards: kept in the type of the computation, not in bytes."""
    is_sharded = recipe.fsdp and recipe.method is Method.QLORA and recipe.shards_packed
    return {"bnb_4bit_quant_storage": recipe.precision.dtype.torch_name} if is_sharded else {}


def fsdp_config(recipe: Recipe, model: ModelFiles) -> dict[str, Any]:
    """The layers are named: the default names others for some models (``other_trainers/fsdp.py``)."""
    classes = layer_classes(model.config)
    return {
        "version": FSDP_VERSION,
        "auto_wrap_policy": TRANSFORMER_WRAP,
        **({} if classes is None else {LAYER_CLASSES: list(classes)}),
        "reshard_after_forward": recipe.reshard_after_forward,
        **({"cpu_offload": True} if recipe.offload_params is not Offload.NONE else {}),
        "state_dict_type": "SHARDED_STATE_DICT",
    }


def _evaluation_arguments(evaluation: Evaluation | None) -> dict[str, Any]:
    if evaluation is None:
        return {}
    often = evaluation.accumulation
    return {
        **_moment(evaluation.every),
        **({"eval_on_start": True} if evaluation.on_start else {}),
        **({"eval_delay": evaluation.delay} if evaluation.delay else {}),
        "per_device_eval_batch_size": evaluation.batch,
        **({} if often is None else {"eval_accumulation_steps": often}),
        **(_best_arguments(evaluation.every) if evaluation.keeps_best else {}),
    }


def _best_arguments(every: Every) -> dict[str, Any]:
    """The best model, of evaluations that are checkpoints too, by its loss where no metric is named; when it stops
    early, each trainer says by a key of its own."""
    found: dict[str, Any] = {"load_best_model_at_end": True}
    if isinstance(every, Moment):
        return found | {"save_strategy": "epoch"}
    return found | {"save_strategy": "steps", "save_steps": every}


def patience_key(key: str, evaluation: Evaluation) -> dict[str, Any]:
    """``key``, which a trainer has for ``EarlyStoppingCallback``."""
    return {} if evaluation.early_stopping_patience is None else {key: evaluation.early_stopping_patience}


def _moment(every: Every) -> dict[str, Any]:
    """When it evaluates; ``do_eval`` alone, where that is at the end."""
    if isinstance(every, Moment):
        return {"eval_strategy": "epoch"} if every is Moment.EPOCH else {"do_eval": True}
    return {"eval_strategy": "steps", "eval_steps": every}


def evaluation_options(
    evaluation: Evaluation | None,
    *,
    has_samples: bool,
    has_predictions: bool,
    is_after_training: bool,
    makes_logits: bool,
    stops_by_script: bool,
) -> dict[str, Value]:
    """What no key of ``TrainingArguments`` says: what is kept of how many samples, but for what a trainer has a key of
    its own for; that it evaluates after training, or makes logits with Liger's loss, unless the trainer does so by
    itself; and what ends a run early, where a program says that."""
    if evaluation is None:
        return {}
    options: dict[str, Value] = {}
    if evaluation.kept is Kept.LOGITS or (evaluation.kept is Kept.PREDICTIONS and not has_predictions):
        options["eval_keeps"] = evaluation.kept.value
    if evaluation.samples is not None and not has_samples:
        options["eval_samples"] = evaluation.samples
    if evaluation.after_training and not is_after_training:
        options["eval_after_training"] = True
    if not evaluation.fuses_loss and not makes_logits:
        options["eval_fused_loss"] = False
    if stops_by_script and evaluation.early_stopping_patience is not None:
        options["early_stopping_patience"] = evaluation.early_stopping_patience
        if evaluation.early_stopping_threshold:
            options["early_stopping_threshold"] = evaluation.early_stopping_threshold
    return options


def optimizer_keys(recipe: Recipe) -> dict[str, str]:
    """``optim``, and ``optim_args`` where it needs them. Only for those within ``hugging_face_limits``. That of
    ``ds_config.json`` goes before it (``deepspeed_optim_sched``): Muon."""
    kind = OptimizerKind.ADAMW if recipe.optimizer is OptimizerKind.MUON else recipe.optimizer
    is_fused = recipe.fuses_optimizer and kind is OptimizerKind.ADAMW
    name = next(name for name, choice in OPTIMIZERS.items() if choice == (kind, is_fused))
    return {"optim": name, **({"optim_args": f"momentum={SGD_MOMENTUM}"} if kind is OptimizerKind.SGD else {})}


def attention_setting(
    key: str, recipe: Recipe, model: ModelFiles, names: Mapping[str, AttentionImplementation] = ATTENTION
) -> dict[str, str]:
    """``key`` with the name of the attention; left out where transformers has to choose it for each part."""
    if recipe.attention is AttentionImplementation.SDPA and model.has_eager_tower:
        return {}
    return {key: next(name for name, known in names.items() if known is recipe.attention)}


def adapter_names(recipe: Recipe) -> list[str]:
    """The modules of ``lora_targets``, without stacked experts; a regular expression is one."""
    if recipe.lora_targets.startswith(REGEX):
        return [recipe.lora_targets.removeprefix(REGEX)]
    return listed_targets(layer_targets(recipe.lora_targets))


def trained_embeddings(model: ModelFiles) -> list[str]:
    """The modules that are trained on copies beside adapters: a head that is tied to the embedding is the same copy."""
    return list(EMBEDDINGS[:1] if model.config.get("tie_word_embeddings") else EMBEDDINGS)


def loaded_type(recipe: Recipe) -> str:
    """The type in which weights are loaded where a key names it; DeepSpeed makes all of them the precision's anyway."""
    dtype = DType.FLOAT32 if recipe.weight_dtype is WeightDtype.FLOAT32 else recipe.precision.dtype
    return dtype.torch_name


def adapter_settings(
    recipe: Recipe, *, rank: str, targets: Mapping[str, Any], embeddings: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of adapters, of which all but these three are named alike everywhere."""
    return {
        rank: recipe.lora_rank,
        "lora_alpha": recipe.adapter_alpha,
        "lora_dropout": recipe.lora_dropout,
        **targets,
        **({"use_rslora": True} if recipe.use_rslora else {}),
        **({"use_dora": True} if recipe.use_dora else {}),
        **(embeddings if recipe.train_embeddings else {}),
    }


def model_name(model: ModelFiles) -> str:
    """The name by which the trainer loads the model: the Hub, or a folder, whatever folder the run starts in. Raises
    InputError for the language model alone of a checkpoint, in whose place trainers load the whole."""
    if model.is_language_part:
        raise InputError(
            f"{model.id} is the language model alone of a checkpoint, which no file names: trainers that read one load "
            f"the whole model; plan {model.id.removesuffix(SUFFIX)}, or keep to a program with {AUTO_CLASS}"
        )
    if model.hub_id is not None:
        return model.hub_id
    path = Path(model.id)
    if path.is_file():  # its config.json
        path = path.parent
    return str(path.resolve()) if path.is_dir() else model.id


def allocator_environment(recipe: Recipe) -> dict[str, str]:
    return {ALLOCATOR_VARIABLE: EXPANDABLE} if recipe.expandable_segments else {}


def needs_processes(recipe: Recipe, cluster: Cluster) -> bool:
    """Whether a launcher has to set RANK and its like: several GPUs, or an engine that asks for them on one too."""
    return recipe.casts_weights or cluster.num_gpus > 1


def torchrun(cluster: Cluster) -> list[str]:
    """torch's launcher, one process a GPU."""
    words = ["torchrun", "--nproc_per_node", str(cluster.node.num_gpus)]
    if cluster.num_nodes == 1:
        return words
    return [
        *words,
        *("--nnodes", str(cluster.num_nodes), "--node_rank", NODE_RANK),
        *("--master_addr", MASTER_ADDR, "--master_port", MASTER_PORT),
    ]
