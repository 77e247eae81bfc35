"""What axolotl 0.19.0 has no key for, or does by itself, of what a recipe may say.

Sources stand beside each limit.
"""

from dataclasses import replace
from typing import Final

from vlmplan.other_trainers.writing.axolotl_preferences import (
    batching_of,
    has_usual_adapters,
    losses_of,
)
from vlmplan.other_trainers.writing.batching import AXOLOTL_BATCHING
from vlmplan.other_trainers.writing.checkpoints import GRADIENTS_OF_ALL_INPUTS, REENTRANT_BY_DEFAULT
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
from vlmplan.recipe.choices import (
    AdapterDtype,
    AttentionImplementation,
    Method,
    Precision,
    ShardUnits,
    WeightDtype,
)
from vlmplan.recipe.evaluation import Moment


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


def _best_of_epochs(context: LimitContext) -> tuple[None, ...] | None:
    """Of preferences too: what trains them has neither (``core/builders/rl.py``)."""
    evaluation, task = context.recipe.evaluation, context.recipe.task
    if evaluation is None or not evaluation.keeps_best:
        return None
    return (None,) if task is not None or evaluation.every is Moment.EPOCH else None


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
    Limit(
        field="evaluation",
        allowed=_best_of_epochs,
        sentence="it keeps the best model, and stops early, with --task sft and evaluations after steps alone; give "
        "--eval-every N, or leave both off",
        source="core/builders/causal.py load_best_model_at_end; utils/schemas/validation.py check_early_stopping",
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
