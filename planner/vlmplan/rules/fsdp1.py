"""FSDP1 (``torch.distributed.fsdp.FullyShardedDataParallel``, torch 2.13): what is planned of it."""

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, ShardUnits
from vlmplan.recipe.lora_targets import stacked_targets
from vlmplan.recipe.switches import option_text
from vlmplan.rules.base import RuleBook, RuleContext

FSDP1_RULES = RuleBook()
FLAT_OPTIMIZERS = (
    *(OptimizerKind.ADAMW, OptimizerKind.SGD, OptimizerKind.ADAFACTOR),
    *(OptimizerKind.ADAMW_8BIT, OptimizerKind.LION, OptimizerKind.LION_8BIT),
)
OF_FLAT = "FSDP1 (--flat-parameters)"


@FSDP1_RULES.error("torch _flat_param.py: there is no flat parameter without it")
def views_of_flat_parameters_need_them(context: RuleContext) -> str | None:
    recipe, usual = context.recipe, Recipe()
    if not recipe.fsdp or recipe.is_flat:
        return None
    for name in ("uses_orig_params", "prefetches_forward"):
        if getattr(recipe, name) is not getattr(usual, name):
            return f"{option_text(name, getattr(recipe, name))} is for {OF_FLAT}, which is not asked for"
    return None


@FSDP1_RULES.error("accelerate 1.15 prepare_model: the auto wrap policy knows layers alone")
def flat_units_are_layers(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.shard_units in (ShardUnits.LAYERS, ShardUnits.LANGUAGE_LAYERS):
        return None
    return f"--shard-units {recipe.shard_units.value} is of FSDP2; with {OF_FLAT} give --shard-units layers"


@FSDP1_RULES.error(
    "peft 0.21 utils/other.py fsdp_auto_wrap_policy: every module without children that is trained is a unit"
)
def flat_adapters_are_factors_of_linear_layers(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or not recipe.trains_adapters:
        return None
    if recipe.method is not Method.LORA:
        name = recipe.method.value
        return f"--method {name} is not planned with {OF_FLAT}; give --method lora, or --flat-parameters none"
    said = {
        "--use-dora": recipe.use_dora,
        "--train-embeddings": recipe.train_embeddings,
        "--full-vision and --full-projector": recipe.trains_full_parts,
        "--loraplus-lr-ratio": recipe.loraplus_lr_ratio is not None,
        "--lora-targets of embeddings and stacked experts": "embed" in recipe.lora_targets
        or bool(stacked_targets(recipe.lora_targets)),
    }
    for option, is_set in said.items():
        if is_set:
            return (
                f"{option} is not planned with {OF_FLAT}, under which each factor of an adapter on a linear layer is a "
                f"flat parameter; leave it off, or give --flat-parameters none for FSDP2"
            )
    return None


@FSDP1_RULES.error("torch _init_utils.py _init_core_state: a rank that is alone gets NO_SHARD", counts_gpus=True)
def flat_parameters_need_several_ranks(context: RuleContext) -> str | None:
    if not context.recipe.is_flat or context.num_gpus != 1:
        return None
    return f"{OF_FLAT} shards nothing on one GPU, where torch makes it NO_SHARD; give --no-fsdp"


@FSDP1_RULES.error("accelerate 1.15 set_mixed_precision: reduce_dtype is that of the computation")
def flat_gradients_are_reduced_as_they_are(context: RuleContext) -> str | None:
    recipe = context.recipe
    is_of_verl = recipe.task is not None and recipe.task.is_of_verl  # whose ``MixedPrecision`` says so
    if not recipe.is_flat or not recipe.reduces_in_float32 or is_of_verl:
        return None
    return f"--float32-reduce is not planned with {OF_FLAT}, which accelerate lets reduce in bf16; leave it off"


@FSDP1_RULES.error("torch _flat_param.py prepare_gradient_for_backward: accumulating on the host does not work")
def flat_gradients_on_the_host_are_reduced_once(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.offload_params is Offload.NONE:
        return None
    if not recipe.sync_each_batch or recipe.grad_accum == 1:
        return None
    return f"{OF_FLAT} cannot add to gradients that the host has; give --no-sync-each-batch"


@FSDP1_RULES.error("vlmplan: paged and compiled states of parts of weights are not planned")
def flat_parameters_are_updated_on_the_gpu(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.optimizer in FLAT_OPTIMIZERS:
        return None
    names = ", ".join(kind.value for kind in FLAT_OPTIMIZERS)
    return f"--optimizer {recipe.optimizer.value} is not planned with {OF_FLAT}; one of {names} is"
