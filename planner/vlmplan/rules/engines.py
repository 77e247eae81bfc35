"""ZeRO stages, offload and optimizers. Paths are of deepspeed 0.19.8, "seen" is a run of it on CPU."""

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.evaluation import Kept
from vlmplan.rules.base import RuleBook, RuleContext, stage_text

ENGINE_RULES = RuleBook()


@ENGINE_RULES.error("runtime/engine.py _do_optimizer_sanity_check: without ZeRO nothing reads offload_optimizer (seen)")
def offloaded_optimizer_needs_a_stage(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.offload_optimizer is Offload.NONE or recipe.partitions_states or recipe.fsdp:
        return None
    return (
        f"--offload-optimizer {recipe.offload_optimizer.value} has no effect with --zero-stage {stage_text(recipe)}, "
        f"where the optimizer is not sharded; give stage 1, 2 or 3"
    )


@ENGINE_RULES.error("runtime/engine.py _configure_zero_optimizer: only stage 3 is handed offload_param (seen)")
def offloaded_parameters_need_stage_3(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.offload_params is Offload.NONE or recipe.zero_stage == 3 or recipe.fsdp:
        return None
    return (
        f"--offload-params {recipe.offload_params.value} has no effect with --zero-stage {stage_text(recipe)}, "
        f"which keeps whole weights on every GPU; give stage 3"
    )


@ENGINE_RULES.error("runtime/zero/stage_1_and_2.py __init__: cpu_offload is true for any device but none (seen)")
def nvme_needs_stage_3(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.offload_optimizer is not Offload.NVME or recipe.zero_stage not in (1, 2):
        return None
    return (
        f"--offload-optimizer nvme at --zero-stage {recipe.zero_stage} would stay in host memory; "
        f"give stage 3, or --offload-optimizer cpu"
    )


@ENGINE_RULES.error("runtime/engine.py _configure_optimizer: anything but DeepSpeedCPUAdam raises (seen)")
def offloaded_optimizer_is_adamw(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.offload_optimizer is Offload.NONE or recipe.fsdp:
        return None
    if recipe.optimizer in (OptimizerKind.ADAMW, OptimizerKind.MUON):
        return None
    return (
        f"--optimizer {recipe.optimizer.value} cannot be offloaded: DeepSpeed updates on the host with its own AdamW; "
        f"give --optimizer adamw, or --offload-optimizer none"
    )


@ENGINE_RULES.error("runtime/config.py _do_error_check: bf16_master_weights_and_grads needs stage 1, 2 or 3 (seen)")
def pure_bf16_is_plain_or_sharded(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.precision is not Precision.BF16_PURE or recipe.zero_stage != 0:
        return None
    return (
        "--precision bf16-pure does not go with --zero-stage 0, whose optimizer always keeps float32 master weights; "
        "give stage 1, 2 or 3, or none"
    )


@ENGINE_RULES.error(
    "transformers modeling_utils.py get_init_context: zero.Init is skipped for quantized models; DeepSpeed "
    "shards them in its initialize, in bytes too (tried on two CPU ranks), which is not planned"
)
def packed_weights_are_not_sharded(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.method.packs_weights or recipe.zero_stage != 3:
        return None
    asks, instead = _asks_for_stage_3(recipe)
    return (
        f"--method {recipe.method.value} does not go with {asks} yet: transformers reads all packed weights onto every "
        f"GPU before DeepSpeed can shard them, so that a run starts on no smaller GPU than under stage 2; give "
        f"{instead}, or --method lora"
    )


def _asks_for_stage_3(recipe: Recipe) -> tuple[str, str]:
    """The option that no other stage has, or the stage itself; and what does without."""
    if recipe.offload_params is not Offload.NONE:
        return f"--offload-params {recipe.offload_params.value}, which is of ZeRO-3,", "--offload-params none"
    if recipe.hpz > 1:
        return f"--hpz {recipe.hpz}, which is of ZeRO-3,", "--hpz 1"
    return "--zero-stage 3", "stage 2"


@ENGINE_RULES.error("runtime/engine.py _cast_module_mixed_precision: every floating-point weight becomes 16 bit")
def upcast_weights_stay_so(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.upcasts_frozen:
        return None
    if not recipe.method.packs_weights:
        return f"--kbit-upcast is for --method qlora and lora-8bit, but --method is {recipe.method.value}"
    if recipe.uses_deepspeed and recipe.precision is not Precision.FP32:
        return "--kbit-upcast has no effect under DeepSpeed, which casts every weight back to 16 bit; leave it off"
    return None


@ENGINE_RULES.error("bitsandbytes nn/modules.py Params4bit: only 4-bit weights have scales")
def scales_are_those_of_four_bit_weights(context: RuleContext) -> str | None:
    if context.recipe.method is Method.QLORA or context.recipe.use_double_quant:
        return None
    return f"--no-double-quant is for --method qlora, but --method is {context.recipe.method.value}"


@ENGINE_RULES.error("runtime/engine.py _cast_module_mixed_precision, torch MixedPrecisionPolicy: nothing autocasts")
def casts_are_kept_by_autocast(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.caches_casts or "caches_casts" not in context.given or not recipe.casts_weights:
        return None
    return f"--cached-casts has no effect {_engine_text(recipe)}, which computes without autocast; leave it off"


def _engine_text(recipe: Recipe) -> str:
    return "under --fsdp" if recipe.fsdp else f"with --zero-stage {stage_text(recipe)}"


@ENGINE_RULES.error("trl 1.16 sft_trainer.py compute_loss: logits are made in a second forward, behind the fused loss")
def two_forwards_have_no_order_of_modules(context: RuleContext) -> str | None:
    recipe = context.recipe
    kept = Kept.LOSS if recipe.evaluation is None else recipe.evaluation.kept
    if kept is Kept.LOSS or recipe.loss is not LossKind.TRL or recipe.zero_stage != 3:
        return None
    return (
        f"--eval-keeps {kept.value} is not planned with --loss trl and --zero-stage 3, where a second forward makes "
        f"the logits and gathers modules in another order; give stage 2 or --loss model, or leave it off"
    )


@ENGINE_RULES.error("runtime/zero/stage_1_and_2.py __init__: asserts a multiple of nccl_start_alignment_factor")
def allgather_bucket_is_even(context: RuleContext) -> str | None:
    size = context.recipe.zero.allgather_bucket_size
    if context.recipe.zero_stage not in (1, 2) or size % 2 == 0:
        return None
    return f"zero_optimization.allgather_bucket_size is {size}; stages 1 and 2 need an even number"


@ENGINE_RULES.error("runtime/engine.py _configure_zero_optimizer: only stage 3 is handed zero_hpz_partition_size")
def hpz_needs_stage_3(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.hpz == 1 or recipe.zero_stage == 3:
        return None
    why = "; it is of DeepSpeed's stage 3" if recipe.fsdp else ", where weights are not sharded; give stage 3"
    return f"--hpz {recipe.hpz} has no effect {_engine_text(recipe)}{why}"


@ENGINE_RULES.error(
    "utils/groups.py _create_zero_param_parallel_group: groups of equal size, or an assertion", counts_gpus=True
)
def hpz_divides_the_gpus(context: RuleContext) -> str | None:
    hpz, num_gpus = context.recipe.hpz, context.num_gpus
    if hpz == 1 or num_gpus is None or num_gpus % hpz == 0:
        return None
    return (
        f"--hpz {hpz} does not divide {num_gpus} GPU(s) into equal groups; give a divisor, such as the GPUs of a node"
    )


@ENGINE_RULES.error("zero/partition_parameters.py _partition_param_sec: the copy would be made in host memory too")
def hpz_weights_stay_on_the_gpu(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.hpz == 1 or recipe.offload_params is Offload.NONE:
        return None
    return (
        f"--hpz {recipe.hpz} keeps a second copy of the weights, which --offload-params {recipe.offload_params.value} "
        f"would put on the host as well; vlmplan has a memory model of one of the two"
    )


@ENGINE_RULES.warning("transformers optimization.py Adafactor: one-dimensional states are not factored (seen)")
def adafactor_saves_nothing_when_sharded(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.optimizer is not OptimizerKind.ADAFACTOR or not recipe.partitions_states:
        return None
    return (
        f"--optimizer adafactor at --zero-stage {recipe.zero_stage} sees flat slices of weights, not matrices, "
        f"and keeps 4 bytes per weight instead of sums per row and column"
    )


@ENGINE_RULES.warning("arithmetic: a share of one rank is the whole")
def sharding_needs_several_gpus(context: RuleContext) -> str | None:
    recipe = context.recipe
    if context.num_gpus != 1 or not recipe.partitions_states:
        return None
    if recipe.offload_optimizer is not Offload.NONE or recipe.offload_params is not Offload.NONE:
        return None
    return (
        f"--zero-stage {recipe.zero_stage} shards nothing on one GPU: trained weights are 16 bit, with float32 copies "
        f"in the optimizer and no autocast; it pays where that takes less than --zero-stage none"
    )
