"""TRL 1.16.0: YAML for ``trl sft --config``, ``trl dpo``, ``trl reward``, ``trl kto`` and ``trl grpo``.

Sources: ``trl/trainer/sft_config.py``, ``dpo_config.py``, ``kto_config.py``, ``grpo_config.py``, ``model_config.py``
and ``base_config.py`` for keys, ``trl/scripts/utils.py`` (``TrlParser``) for ``env``, ``trl/cli/commands/training.py``
for what goes to accelerate's launcher.
"""

from collections.abc import Mapping
from typing import Any, Final

from vlmplan.hardware import Cluster
from vlmplan.other_trainers.trl.sft import TRL
from vlmplan.other_trainers.writing.batching import TRL_BATCHING, packing_keys
from vlmplan.other_trainers.writing.checkpoints import GRADIENTS_OF_ALL_INPUTS, checkpoint_keys
from vlmplan.other_trainers.writing.hugging_face import (
    MASTER_ADDR,
    MASTER_PORT,
    NODE_RANK,
    adapter_names,
    adapter_settings,
    allocator_environment,
    attention_setting,
    loaded_type,
    model_name,
    needs_processes,
    quant_storage,
    torchrun,
    trained_embeddings,
    training_arguments,
)
from vlmplan.other_trainers.writing.hugging_face_limits import (
    BATCHES_OF_A_STEP,
    COMMON_LIMITS,
    NO_EXCLUSIONS,
    NO_LORAPLUS,
    NO_THRESHOLD,
    TIED_CHECKPOINTING,
    all_parts_trained,
    has_patience,
    has_wide_shards,
    is_casting_full,
)
from vlmplan.other_trainers.writing.limits import Limit, LimitContext, always, part_limits
from vlmplan.other_trainers.writing.preferences import task_keys, task_options
from vlmplan.other_trainers.writing.record import KnownTool, Tool, WrittenSetup, placeholder
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    ALL_LINEAR,
    BITS,
    DEFAULT_INIT,
    REGEX,
    AdapterDtype,
    LossKind,
    Method,
    Precision,
    WeightDtype,
)
from vlmplan.recipe.lora_targets import stacked_targets
from vlmplan.rules.routers import WEIGHT, uncounted_experts
from vlmplan.workload import ModelFiles, Workload

FILE: Final = "train.yaml"
SCRIPT_FILE: Final = "train.py"
"""TRL's own script with a callback, which no key of its asks for."""
TO_FILL_IN: Final[Mapping[str, str]] = {"dataset_name": "your data: an id of the Hugging Face Hub, or a folder"}

REWARDS: Final = "functions that reward answers: a list of TRL's own (accuracy_reward) or of yours, MODULE.NAME"


def _weights(context: LimitContext) -> tuple[WeightDtype, ...]:
    recipe = context.recipe
    if recipe.uses_deepspeed and not recipe.method.packs_weights and recipe.precision.is_mixed:
        return (WeightDtype.TABLE, WeightDtype.FLOAT32)
    if has_wide_shards(context):
        return (WeightDtype.TABLE, WeightDtype.FLOAT32)
    if not context.casts:
        return (WeightDtype.TABLE,)
    if not is_casting_full(context):
        return (WeightDtype.TABLE, WeightDtype.FLOAT32)
    return (WeightDtype.FLOAT32, WeightDtype.MODEL)


def _adapters(context: LimitContext) -> tuple[AdapterDtype, ...] | None:
    if context.recipe.method is Method.FULL:
        return None
    is_mixed = context.recipe.precision is Precision.BF16
    if context.recipe.fsdp and context.recipe.method is Method.QLORA and is_mixed:
        return (AdapterDtype.MODEL,)
    if not context.casts:
        return (AdapterDtype.TABLE,)
    return (AdapterDtype.MODEL,) if context.recipe.method.packs_weights else (AdapterDtype.FLOAT32,)


def _precisions(context: LimitContext) -> tuple[Precision, ...] | None:
    is_quantized = context.recipe.method.packs_weights and context.is_plain
    return tuple(kind for kind in Precision if kind is not Precision.FP16) if is_quantized else None


def _losses(context: LimitContext) -> tuple[LossKind, ...]:
    return (LossKind.BRADLEY_TERRY,) if context.recipe.scores_rows else (LossKind.TRL,)


def _offloads_activations(context: LimitContext) -> tuple[bool, ...] | None:
    return None if context.recipe.activation_checkpointing else (False,)


FREEZES_NOTHING = (
    "it freezes no part of a model; --freeze-vision, --freeze-projector and --freeze-language are not to be had"
)
TRL_LIMITS: tuple[Limit, ...] = (
    *(limit for limit in COMMON_LIMITS if limit is not NO_THRESHOLD),
    BATCHES_OF_A_STEP,
    GRADIENTS_OF_ALL_INPUTS,
    TIED_CHECKPOINTING,
    TRL_BATCHING,
    NO_EXCLUSIONS,
    NO_LORAPLUS,
    Limit(
        field="lora_init",
        allowed=always(DEFAULT_INIT),
        sentence="its adapters start as peft's do; --lora-init is not to be had",
        source="trl/trainer/utils.py get_peft_config: LoraConfig without init_lora_weights",
    ),
    Limit(
        field="offload_activations",
        allowed=_offloads_activations,
        sentence="without checkpointing it moves everything that is saved; give --activation-checkpointing with "
        "--offload-activations",
        source="trl/models/activation_offloading.py OffloadActivations",
    ),
    Limit(
        field="loss",
        allowed=_losses,
        sentence="its head and loss are one fused operation (loss_type nll), --loss trl, and of reward models there is "
        "one, bradley-terry; no other is to be had",
        source="trl/trainer/sft_config.py loss_type; chunked_nll is the same; reward_trainer.py compute_loss",
    ),
    *part_limits(
        all_parts_trained,
        sentence=FREEZES_NOTHING,
        source="trl/scripts/sft.py: the model goes into SFTTrainer as it is loaded",
    ),
    Limit(
        field="weight_dtype",
        allowed=_weights,
        sentence="its weights all have the type that dtype names: with --method full --weight-dtype float32 or model, "
        "with adapters or DeepSpeed table or float32",
        source="trl/trainer/utils.py create_model_from_path: dtype goes to from_pretrained",
        is_behaviour=True,
    ),
    Limit(
        field="adapter_dtype",
        allowed=_adapters,
        sentence="its adapters are float32 (--adapter-dtype float32), those of packed models bfloat16 (model)",
        source="trl/trainer/sft_trainer.py: peft's autocast_adapter_dtype, and 'adapter weights are converted to bf16'",
        is_behaviour=True,
    ),
    Limit(
        field="precision",
        allowed=_precisions,
        sentence="it makes adapters of packed models bfloat16, which --precision fp16 does not go with",
        source="trl/trainer/sft_trainer.py: 'When using QLoRA, the PEFT adapter weights are converted to bf16'",
    ),
)


def _without_router_loss(recipe: Recipe, model: ModelFiles) -> dict[str, str]:
    """The key that leaves the loss of routers out where TRL would stop, and why; of tasks an option says so."""
    reason = uncounted_experts(model) if recipe.task is None else None
    return {} if reason is None else {WEIGHT: f"else {reason}"}


def _to_fill_in(recipe: Recipe) -> Mapping[str, str]:
    is_rewarded = recipe.task is not None and recipe.task.is_grpo
    return {**TO_FILL_IN, **({"reward_funcs": REWARDS} if is_rewarded else {})}


def _settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """The keys in the order of the file."""
    environment = allocator_environment(recipe)
    task = recipe.task
    return {
        "model_name_or_path": model_name(workload.model),
        "dtype": loaded_type(recipe),
        **attention_setting("attn_implementation", recipe, workload.model),
        **{key: placeholder(key) for key in _to_fill_in(recipe)},
        **({"max_length": workload.seq_len} if task is None else task_keys(recipe, task, workload)),
        **packing_keys(recipe),
        **dict.fromkeys(_without_router_loss(recipe, workload.model), 0.0),
        **_adapter_settings(recipe, workload),
        **training_arguments(recipe, workload),
        "gradient_checkpointing": recipe.activation_checkpointing,
        **checkpoint_keys(recipe),
        **({"activation_offloading": True} if recipe.offload_activations else {}),
        **({"env": environment} if environment else {}),
    }


def _adapter_settings(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    if recipe.method is Method.FULL:
        return {}
    return {
        "use_peft": True,
        **adapter_settings(
            recipe,
            rank="lora_r",
            targets={
                "lora_target_modules": _targets(recipe),
                **({"lora_target_parameters": stacked} if (stacked := stacked_targets(recipe.lora_targets)) else {}),
            },
            embeddings={"lora_modules_to_save": trained_embeddings(workload.model)},
        ),
        **({f"load_in_{BITS[recipe.method]}bit": True} if recipe.method in BITS else {}),
        **quant_storage(recipe),
        **({"use_bnb_nested_quant": True} if recipe.method is Method.QLORA and recipe.use_double_quant else {}),
    }


def _targets(recipe: Recipe) -> list[str]:
    """A name that stands alone is a regular expression to TRL (``ModelConfig.__post_init__``), so it is there twice."""
    names = adapter_names(recipe)
    is_name = len(names) == 1 and recipe.lora_targets != ALL_LINEAR and not recipe.lora_targets.startswith(REGEX)
    return names * 2 if is_name else names


def _command(recipe: Recipe, cluster: Cluster) -> tuple[str, ...]:
    """``trl`` starts accelerate's launcher, which needs two processes at the least for one each."""
    if has_patience(recipe):
        start = torchrun(cluster) if needs_processes(recipe, cluster) else ["python"]
        return (*start, SCRIPT_FILE, "--config", FILE)
    script = "sft" if recipe.task is None else recipe.task.kind.value
    if not needs_processes(recipe, cluster):
        return ("trl", script, "--config", FILE, "--num_processes", "1")
    if cluster.num_gpus == 1:
        return (*torchrun(cluster), "-m", f"trl.scripts.{script}", "--config", FILE)
    words = ["trl", script, "--config", FILE, "--multi_gpu", "--num_processes", str(cluster.num_gpus)]
    words += ["--num_machines", str(cluster.num_nodes)]
    if cluster.num_nodes > 1:
        words += ["--machine_rank", NODE_RANK, "--main_process_ip", MASTER_ADDR, "--main_process_port", MASTER_PORT]
    return tuple(words)


def _written(recipe: Recipe, workload: Workload, cluster: Cluster) -> WrittenSetup:
    return WrittenSetup(
        tool=Tool.TRL,
        file=FILE,
        settings=_settings(recipe, workload),
        command=_command(recipe, cluster),
        to_fill_in=_to_fill_in(recipe),
        reasons=_without_router_loss(recipe, workload.model),
        script=SCRIPT_FILE if has_patience(recipe) else None,
        options={} if recipe.task is None else task_options(recipe.task, workload),
    )


KNOWN: Final = KnownTool(
    tool=Tool.TRL, title=TRL, limits=TRL_LIMITS, loss=LossKind.TRL, written=_written, stops_by_script=True
)
