"""FSDP2 (``torch.distributed.fsdp.fully_shard``, torch 2.13), as the trainer applies it."""

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method, Offload, OptimizerKind, Precision, ShardUnits, WeightDtype
from vlmplan.recipe.lora_targets import stacked_targets
from vlmplan.recipe.settings import option_name
from vlmplan.recipe.switches import option_text
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.units import Choice, DType

FSDP_RULES = RuleBook()
SHARDED_OPTIMIZERS = (OptimizerKind.ADAMW, OptimizerKind.SGD)
TYPES_WITH_SHARED_BIAS = frozenset(
    """bert bert-generation camembert data2vec-text ernie megatron-bert roberta roberta-prelayernorm roc_bert
    roformer xlm-roberta xlm-roberta-xl""".split()
)
"""Whose class ties the bias of the head to one of the head's parent (``_tied_weights_keys``)."""
ITS_SWITCHES = (
    *("reshard_after_forward", "sync_each_batch", "reduces_in_float32", "shards_packed", "shard_units"),
    *("flat_parameters", "uses_orig_params", "prefetches_forward", "dp_shard_size"),
)


@FSDP_RULES.error("vlmplan_trainer engines/make.py: one engine runs a plan")
def sharding_is_torchs_or_deepspeeds(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp or recipe.zero_stage is None:
        return None
    return f"--fsdp is PyTorch's own sharding, and --zero-stage {recipe.zero_stage} DeepSpeed's; give one of the two"


@FSDP_RULES.error("torch _fsdp_param_group.py: nothing else gathers and reshards")
def switches_of_fsdp_need_it(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.fsdp:
        return None
    usual = Recipe()
    changed = [name for name in ITS_SWITCHES if getattr(recipe, name) is not getattr(usual, name)]
    if not changed:
        return None
    value = getattr(recipe, changed[0])
    said = option_text(changed[0], value.value if isinstance(value, Choice) else value)
    return f"{said} is for --fsdp, which is not given"


@FSDP_RULES.error("torch _fsdp_api.py CPUOffloadPolicy: parameters, gradients and optimizer states together")
def fsdp_offloads_all_or_nothing(context: RuleContext) -> str | None:
    recipe = context.recipe
    places = (recipe.offload_optimizer, recipe.offload_params)
    if not recipe.fsdp or places in ((Offload.NONE, Offload.NONE), (Offload.CPU, Offload.CPU)):
        return None
    return (
        f"--fsdp offloads weights, gradients and optimizer states together, to host memory alone, but "
        f"--offload-optimizer is {places[0].value} and --offload-params {places[1].value}; give cpu for both, or none"
    )


@FSDP_RULES.error("torch DTensor: bitsandbytes' and transformers' optimizers have no operators on it")
def fsdp_updates_with_torchs_optimizers(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp or recipe.is_flat or recipe.optimizer in SHARDED_OPTIMIZERS:
        return None
    return (
        f"--optimizer {recipe.optimizer.value} does not go with --fsdp, whose sharded weights torch's optimizers alone "
        f"update; give --optimizer adamw or sgd"
    )


@FSDP_RULES.error("vlmplan_trainer engines/fsdp2.py has no gradient scaler for shards")
def fsdp_has_no_fp16(context: RuleContext) -> str | None:
    if not context.recipe.fsdp or context.recipe.precision is not Precision.FP16:
        return None
    return "--precision fp16 does not go with --fsdp here, which scales no loss; give --precision bf16 or fp32"


@FSDP_RULES.error("torch fsdp/_fully_shard/_fsdp_param.py: a weight is of one group (seen: the first forward ends)")
def fsdp_shards_no_bias_twice(context: RuleContext) -> str | None:
    model = context.model
    if not context.recipe.fsdp or model is None or not model.model_types & TYPES_WITH_SHARED_BIAS:
        return None
    return (
        f"--fsdp does not go with {model.id}, whose output head shares its bias with the module around it: a weight is "
        f"of one group there; give --zero-stage 3"
    )


@FSDP_RULES.error("axolotl 0.19 monkeypatch/accelerate/fsdp2.py _process_lora_module_for_fsdp")
def fsdp_gathers_matrices_of_adapters_one_by_one(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.shard_units is not ShardUnits.ADAPTERS_TOO:
        return None
    has_others = bool(stacked_targets(recipe.lora_targets)) or "embed" in recipe.lora_targets
    if recipe.trains_adapters and not recipe.use_dora and not has_others and not recipe.train_embeddings:
        return None
    return (
        "--shard-units layers-and-adapters is planned of LoRA's matrices on linear layers, without DoRA, stacked "
        "experts, embeddings and their copies; give layers"
    )


@FSDP_RULES.error(
    "bitsandbytes 0.50 nn/modules.py Linear8bitLt.forward on two CPU ranks (seen): 'Parameter' object has no attribute "
    "'CB'; accelerate 1.15 fsdp2_prepare_model leaves out Params4bit alone"
)
def fsdp_shards_no_eight_bit_weights(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp or recipe.is_flat or recipe.method is not Method.LORA_8BIT:
        return None
    return (
        "--method lora-8bit does not go with --fsdp: the weight that FSDP gathers is none of bitsandbytes', whose "
        "Linear8bitLt fails with it in the first forward; give --method lora, or --no-fsdp"
    )


@FSDP_RULES.error("torch MixedPrecisionPolicy: shards have the type of the update, whole weights another")
def fsdp_decides_types(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp:
        return None
    usual = Recipe()
    freezes = recipe.trains_adapters or not (recipe.train_vision and recipe.train_projector and recipe.train_language)
    has_wide = freezes and recipe.precision is Precision.BF16 and recipe.weight_dtype is WeightDtype.FLOAT32
    has_narrow = recipe.trains_adapters and recipe.precision is Precision.BF16
    planned = {"weight_dtype": has_wide, "adapter_dtype": has_narrow and recipe.adapter_dtype is AdapterDtype.MODEL}
    for name, is_planned in planned.items():
        kind: AdapterDtype | WeightDtype = getattr(recipe, name)
        if kind is not getattr(usual, name) and not is_planned:
            return (
                f"{option_name(name)} {kind.value} has no effect under --fsdp, which shards trained weights in float32 "
                f"(with bf16-pure, and adapters with --adapter-dtype model, in 16 bit) and frozen ones in the type of "
                f"the computation (in bf16 with --weight-dtype float32 in float32); leave it off"
            )
    return None


@FSDP_RULES.error("torch device_mesh.py init_device_mesh: as many ranks as the two sizes make", counts_gpus=True)
def copies_of_the_model_are_whole(context: RuleContext) -> str | None:
    size, num_gpus = context.recipe.dp_shard_size, context.num_gpus
    if size is None or num_gpus is None or num_gpus % size == 0:
        return None
    return f"--dp-shard-size {size} does not divide {num_gpus} GPU(s) into copies; give a divisor, as a node's GPUs are"


@FSDP_RULES.error("torch _fsdp_param.py init_dtype_attrs: the reduction has a type of its own")
def fsdp_reduces_wider_than_16_bit(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp or not recipe.reduces_in_float32 or recipe.precision.dtype is DType.BFLOAT16:
        return None
    return (
        f"--float32-reduce is for --precision bf16 and bf16-pure, but --precision is {recipe.precision.value}; leave "
        f"it off"
    )


@FSDP_RULES.warning("arithmetic: a share of one rank is the whole")
def fsdp_needs_several_gpus(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.fsdp or context.num_gpus != 1 or recipe.offload_params is not Offload.NONE or recipe.is_flat:
        return None
    return "--fsdp shards nothing on one GPU, and copies each layer's weights once more; --no-fsdp takes less"
