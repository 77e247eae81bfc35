"""FSDP1 (``torch.distributed.fsdp.FullyShardedDataParallel``, torch 2.13): what is planned of it."""

from functools import lru_cache

from vlmplan.architecture.parameter_adapters import LoraParameter
from vlmplan.architecture.prepare import prepared_model
from vlmplan.models.tree import model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, ShardUnits
from vlmplan.recipe.lora_targets import stacked_targets
from vlmplan.recipe.switches import option_text
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.workload import ModelFiles

FSDP1_RULES = RuleBook()
FLAT_OPTIMIZERS = (
    *(OptimizerKind.ADAMW, OptimizerKind.SGD, OptimizerKind.ADAFACTOR),
    *(OptimizerKind.ADAMW_8BIT, OptimizerKind.LION, OptimizerKind.LION_8BIT),
    OptimizerKind.ANY_PRECISION_ADAMW,
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
    if recipe.method not in (Method.LORA, Method.QLORA):
        return (
            f"--method {recipe.method.value} does not go with {OF_FLAT}, which flattens floating-point weights alone; "
            f"give --method lora or qlora"
        )
    if recipe.use_dora:
        return (
            f"--use-dora does not go with {OF_FLAT}: peft reads shape and type of each factor while it is a shard, "
            f"which stops the first forward with original parameters, and a checkpoint's second forward without them; "
            f"leave it off, or give --flat-parameters none for FSDP2"
        )
    said = {
        "--train-embeddings": recipe.train_embeddings,
        "--full-vision and --full-projector": recipe.trains_full_parts,
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


@FSDP1_RULES.error(
    "peft 0.21 tuners/lora/layer.py ParamWrapper reads lora_A and lora_B and calls neither: torch gathers no flat "
    "parameter that is not called, and refuses to change its view in place (seen)"
)
def flat_adapters_are_called(context: RuleContext) -> str | None:
    recipe, model = context.recipe, context.model
    if not recipe.is_flat or not recipe.trains_adapters or model is None or model.files is None:
        return None
    bare = Recipe(
        method=recipe.method,
        lora_targets=recipe.lora_targets,
        lora_exclude=recipe.lora_exclude,
        train_vision=recipe.train_vision,
        train_projector=recipe.train_projector,
        train_language=recipe.train_language,
    )
    adapted = _adapted_parameter(model.files, bare)
    if adapted is None:
        return None
    return (
        f"--lora-targets {recipe.lora_targets} means {adapted} of {model.id} too, a parameter whose adapter peft reads "
        f"as the shards that {OF_FLAT} keeps it in, which stops the first forward; give --lora-targets that leave it "
        f"out (attention), or --flat-parameters none for FSDP2"
    )


@lru_cache(maxsize=32)
def _adapted_parameter(files: ModelFiles, recipe: Recipe) -> str | None:
    """The name of the first parameter of no linear layer that gets an adapter."""
    for name, module in prepared_model(model_tree(files), recipe).named_modules():
        if isinstance(module, LoraParameter):
            return f"{name}.{module.target[1]}"
    return None


@FSDP1_RULES.error("torch _flat_param.py _validate_tensors_to_flatten: floating-point, and all of one type")
def flat_packed_weights_have_the_type_of_the_others(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.method is not Method.QLORA:
        return None
    if not recipe.shards_packed:
        return (
            f"{OF_FLAT} flattens no bytes, which --no-shard-packed keeps 4-bit weights in; give --shard-packed "
            f"(bnb_4bit_quant_storage: {recipe.precision.dtype.torch_name})"
        )
    if recipe.frozen_held_dtype is not recipe.precision.dtype:
        name = recipe.precision.dtype.torch_name
        option = "--kbit-upcast" if recipe.upcasts_frozen else "--weight-dtype float32"
        return (
            f"{option} makes what is not packed {recipe.frozen_held_dtype.torch_name}, but {OF_FLAT} flattens a "
            f"layer's weights into one parameter of one type, and 4-bit weights are kept in {name}; leave it off "
            f"(dtype: {name})"
        )
    return None


@FSDP1_RULES.error(
    "bitsandbytes 0.50 nn/modules.py fix_4bit_weight_quant_state_from_module sets another weight; torch _flat_param.py "
    "_writeback_orig_params: 'FSDP does not support changing the parameters between forward and backward'"
)
def flat_packed_weights_are_resharded_or_alone(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.method is not Method.QLORA:
        return None
    if recipe.reshard_after_forward or not recipe.uses_orig_params:
        return None
    return (
        f"--method qlora with {OF_FLAT} and --no-reshard-after-forward (SHARD_GRAD_OP) needs --no-orig-params: in "
        f"forward bitsandbytes puts a weight of its own in place of the gathered one, and torch refuses to go on in "
        f"backward"
    )


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
    if context.recipe.can_accumulate or context.recipe.grad_accum == 1:
        return None
    return f"{OF_FLAT} cannot add to gradients that the host has; give --no-sync-each-batch"


@FSDP1_RULES.error(
    "torch _flat_param.py init_flat_param_attributes: pin_memory needs an accelerator (seen on CPU ranks)"
)
def flat_shards_on_the_host_are_pinned(context: RuleContext) -> str | None:
    if not context.recipe.is_flat or context.recipe.offload_params is Offload.NONE or not context.is_on_cpu:
        return None
    return (
        f"--offload-params cpu with {OF_FLAT} pins its shards for copies to a GPU, which torch refuses on a CPU; leave "
        f"it and --offload-optimizer off"
    )


@FSDP1_RULES.error("vlmplan: paged and compiled states of parts of weights are not planned")
def flat_parameters_are_updated_on_the_gpu(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.is_flat or recipe.optimizer in FLAT_OPTIMIZERS:
        return None
    names = ", ".join(kind.value for kind in FLAT_OPTIMIZERS)
    return f"--optimizer {recipe.optimizer.value} is not planned with {OF_FLAT}; one of {names} is"
