"""Options that say how something works which the setup does not have: they are named in a note, and left out where a
plan is asked for again.

They are not refused, so that every setting of a plan can be given back as an option. What another trainer's file says
beside its engine is that trainer's own habit, and is not named.
"""

from collections.abc import Iterator
from dataclasses import replace

from vlmplan.models import sees_nothing
from vlmplan.recipe import PLAIN, Recipe
from vlmplan.recipe.choices import (
    CheckpointKind,
    FlatParameters,
    InputGradients,
    LossKind,
    Method,
    Offload,
    Precision,
    ShardUnits,
)
from vlmplan.recipe.decided import DecidedRecipe
from vlmplan.recipe.evaluation import Kept
from vlmplan.recipe.libraries import PLANNED_TORCH, PLANNED_TRANSFORMERS
from vlmplan.recipe.switches import option_text
from vlmplan.request.record import Request
from vlmplan.workload import ModelFiles

FSDP_SWITCHES = ("reshard_after_forward", "sync_each_batch", "shards_packed")
"""Those that are on unless somebody says otherwise; that they are off, or the other is on, a rule refuses."""
OF_PARTS = ("train_vision", "train_projector", "full_vision", "full_projector", "vision_activation_checkpointing")
"""Settings of parts that a model of text does not have."""
PROJECTORS = ("train_projector", "full_projector")


def typed_recipe(request: Request) -> DecidedRecipe:
    """What the user himself decided of the recipe, beside another trainer's file."""
    recipe, configured = request.recipe, request.configured
    if configured is None:
        return recipe
    return DecidedRecipe(**{name: getattr(recipe, name) for name in configured.given})


def with_engine_of_options(decided: DecidedRecipe, typed: DecidedRecipe) -> DecidedRecipe:
    """``decided``, with plain PyTorch for an engine where nobody names one and what is ``typed`` is of that alone, and
    with FSDP1's only units where nobody names others."""
    if decided.fsdp and decided.flat_parameters not in (None, FlatParameters.NONE) and decided.shard_units is None:
        return replace(decided, shard_units=ShardUnits.LAYERS)
    places = {decided.offload_optimizer, decided.offload_params}
    of_deepspeed = places - {None, Offload.NONE} or (decided.hpz or 1) > 1
    names_engine = decided.zero_stage is not None or decided.fsdp or of_deepspeed
    if names_engine or not (typed.uses_autocast or typed.gradient_as_bucket_view is not None):
        return decided
    return replace(decided, zero_stage=PLAIN)


def idle_notes(
    typed: DecidedRecipe, recipe: Recipe, model: ModelFiles, *, num_gpus: int | None = None
) -> Iterator[str]:
    """What is ``typed`` and changes nothing of ``recipe``, whose engine and method are decided.

    Sources: DeepSpeed and FSDP2 compute in the type of their weights; torch's Reducer alone has buckets that gradients
    can lie in, ``fully_shard`` alone reshards, bitsandbytes alone has scales, ``runtime/swap_tensor`` alone reads
    ``nvme_path``.
    """
    yield from _of_plain(typed, recipe, num_gpus)
    if typed.deepspeed_adam and not recipe.flattens_update:
        yield "--deepspeed-adam has no effect here: it is of AdamW under ZeRO-0 in 16 bit"
    if typed.nvme_path is not None and Offload.NVME not in (recipe.offload_optimizer, recipe.offload_params):
        yield (
            f"--nvme-path {typed.nvme_path} has no effect: nothing is offloaded to NVMe, which "
            f"--offload-optimizer nvme and --offload-params nvme do"
        )
    yield from _of_fsdp(typed, recipe, num_gpus)
    if typed.use_double_quant and recipe.method is not Method.QLORA:
        yield f"--double-quant has no effect with --method {recipe.method.value}: it is of --method qlora"
    if typed.upcasts_frozen and recipe.precision is Precision.FP32:
        yield "--kbit-upcast has no effect with --precision fp32, where nothing is in 16 bit"
    yield from _of_checkpoints(typed, recipe, model)
    yield from _of_parts(typed, model)


def _of_fsdp(typed: DecidedRecipe, recipe: Recipe, num_gpus: int | None) -> Iterator[str]:
    """What is ``typed`` of FSDP where nothing is sharded so."""
    if not recipe.fsdp:
        for name in FSDP_SWITCHES:
            if getattr(typed, name):
                yield f"{option_text(name, True)} has no effect without --fsdp"
    if typed.uses_orig_params and not recipe.is_flat:  # that it is off, a rule refuses
        yield "--orig-params has no effect without --flat-parameters"
    if typed.dp_shard_size is not None and typed.dp_shard_size == num_gpus:
        yield f"--dp-shard-size {num_gpus} has no effect on {num_gpus} GPUs, which share one copy of the model anyway"
    if typed.shards_packed is not None and recipe.fsdp and recipe.method is not Method.QLORA:
        option = option_text("shards_packed", typed.shards_packed)
        yield f"{option} has no effect with --method {recipe.method.value}: it is of --method qlora"


def _of_plain(typed: DecidedRecipe, recipe: Recipe, num_gpus: int | None) -> Iterator[str]:
    """What is ``typed`` of plain PyTorch where that is not the engine."""
    if typed.uses_autocast and recipe.autocast is None:
        yield f"--autocast has no effect {_with(recipe)}: it is of plain PyTorch in bf16 or fp16"
    if (
        typed.caches_casts and recipe.autocast is None and not recipe.casts_weights
    ):  # of other engines a rule refuses it
        yield f"--cached-casts has no effect {_with(recipe)}: it is of torch.autocast"
    if typed.gradient_as_bucket_view is not None and (recipe.casts_weights or num_gpus == 1):
        where = _with(recipe) if recipe.casts_weights else "on one GPU"
        option = option_text("gradient_as_bucket_view", typed.gradient_as_bucket_view)
        yield f"{option} has no effect {where}: it is of PyTorch's DDP"


def idle_notes_of_search(typed: DecidedRecipe, fixed: DecidedRecipe, model: ModelFiles) -> Iterator[str]:
    """What is ``typed`` and changes nothing in any setup that a search for ``fixed`` tries."""
    unknown = [] if fixed.method is not None else ["use_double_quant"]
    of_all_methods = fixed.activation_checkpointing is False
    is_known = fixed.activation_checkpointing is not None and fixed.method is not None
    unknown += [] if of_all_methods or is_known else ["checkpoint_kind", "input_gradients"]
    known = replace(typed, **dict.fromkeys(unknown))
    if fixed.vision_activation_checkpointing is None:
        fixed = replace(fixed, vision_activation_checkpointing=fixed.activation_checkpointing)
    return idle_notes(known, fixed.recipe(), model)


def idle_notes_of_evaluation(request: Request) -> Iterator[str]:
    """What the user himself says of outputs that his evaluation does not keep (``Trainer.evaluation_loop`` of
    transformers 5.23 moves those that it keeps)."""
    asked = request.evaluation
    keeps_loss = asked.kept in (None, Kept.LOSS) and not asked.new_tokens and request.task.task() is None
    if request.configured is None and asked.accumulation is not None and keeps_loss:
        yield (
            f"--eval-accumulation {asked.accumulation} has no effect: an evaluation keeps nothing but the loss, unless "
            f"--eval-keeps says otherwise"
        )
    if request.configured is None and asked.fuses_loss is not None and request.recipe.loss is not LossKind.LIGER:
        yield f"{option_text('eval_fused_loss', asked.fuses_loss)} has no effect without --loss liger"


def _with(recipe: Recipe) -> str:
    if recipe.fsdp:
        return "with --fsdp"
    if recipe.uses_deepspeed:
        return f"with --zero-stage {recipe.zero_stage}"
    return "with --no-autocast" if recipe.can_autocast else f"with --precision {recipe.precision.value}"


def _of_checkpoints(typed: DecidedRecipe, recipe: Recipe, model: ModelFiles) -> Iterator[str]:
    """What is ``typed`` of activation checkpoints where there are none, and of gradients that are there anyway."""
    if typed.checkpoint_kind is not None and not _is_checkpointed(recipe):
        option = option_text("checkpoint_kind", typed.checkpoint_kind.value)
        yield f"{option} has no effect with --no-activation-checkpointing: it says how activations are checkpointed"
    if typed.input_gradients in (None, InputGradients.NONE):
        return
    option = option_text("input_gradients", typed.input_gradients.value)
    if not any(recipe.needs_input_gradients):
        why = "the method is none of peft's" if recipe.activation_checkpointing else "nothing is checkpointed"
        yield f"{option} has no effect here: {why}, and it is of checkpoints that need inputs with gradients"
    elif recipe.method is Method.FULL and recipe.train_language and (recipe.train_vision or sees_nothing(model)):
        yield f"{option} has no effect where embeddings are trained, whose outputs require gradients anyway"


def _is_checkpointed(recipe: Recipe) -> bool:
    return recipe.activation_checkpointing or recipe.vision_activation_checkpointing


def _of_parts(typed: DecidedRecipe, model: ModelFiles) -> Iterator[str]:
    """What is ``typed`` of parts that a model which only reads does not have."""
    if not sees_nothing(model):
        return
    for name in OF_PARTS:
        value = getattr(typed, name)
        if value is None or (model.hears_prompt and name not in PROJECTORS):  # its encoder is trained or not
            continue
        yield f"{option_text(name, value)} has no effect: {model.id} has no such part"


def without_idle(decided: DecidedRecipe, recipe: Recipe, model: ModelFiles, *, num_gpus: int) -> DecidedRecipe:
    """``decided``, by which ``recipe`` of ``model`` on ``num_gpus`` is asked for, without what means nothing in it."""
    idle = [name for name in ("uses_autocast",) if recipe.uses_autocast and not recipe.can_autocast]
    idle += ["gradient_as_bucket_view"] if recipe.casts_weights or num_gpus == 1 else []
    idle += ["caches_casts"] if recipe.autocast is None else []
    idle += ["torch_version"] if recipe.torch_version is PLANNED_TORCH else []
    idle += ["transformers_version"] if recipe.transformers_version is PLANNED_TRANSFORMERS else []
    idle += [] if recipe.fsdp else [*FSDP_SWITCHES, "reduces_in_float32", "shard_units", "flat_parameters"]
    idle += [] if recipe.is_flat else ["uses_orig_params", "prefetches_forward"]
    kind_is_left = recipe.checkpoint_kind is CheckpointKind.NON_REENTRANT and not _is_checkpointed(recipe)
    idle += ["checkpoint_kind"] if kind_is_left else []
    idle += [] if recipe.method is Method.QLORA else ["use_double_quant", "shards_packed"]
    if sees_nothing(model):  # of one that hears a prompt the encoder is trained or not
        parts = PROJECTORS if model.hears_prompt else OF_PARTS
        idle += [name for name in parts if not name.startswith("train_") or getattr(recipe, name)]
    return replace(decided, **dict.fromkeys(idle))
