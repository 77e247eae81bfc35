"""torchao's AdamW (``torchao/optim``, 0.18)."""

from vlmplan.recipe.choices import TORCHAO_BITS, TORCHAO_BLOCK, OptimizerKind
from vlmplan.rules.base import RuleBook, RuleContext

TORCHAO_RULES = RuleBook()
INDUCTOR_CAPABILITY = (7, 0)
"""Cited: the least for which torch compiles with Triton (``has_triton`` in ``torch/utils/_triton.py``)."""


@TORCHAO_RULES.error("torch storage.py _rebuild_wrapper_subclass: no callable map_location, which DeepSpeed has (seen)")
def torchao_goes_on_from_checkpoints(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.optimizer.is_torchao or recipe.zero_stage != 0:
        return None
    return (
        f"--optimizer {recipe.optimizer.value} does not go with --zero-stage 0, whose checkpoints cannot be read "
        f"again; give stage 1, 2 or 3, or none"
    )


@TORCHAO_RULES.error("torch _inductor: its kernels are Triton's, for compute capability 7.0+")
def torchao_needs_volta(context: RuleContext) -> str | None:
    kind, gpu = context.recipe.optimizer, context.gpu
    if not kind.is_torchao or gpu is None or not context.is_before(INDUCTOR_CAPABILITY):
        return None
    return (
        f"--optimizer {kind.value} needs compute capability 7.0 or newer, but there is {gpu.name}"
        f"{context.capability_text}"
    )


@TORCHAO_RULES.warning("torchao/optim adam.py _new_buffer: blocks of 256 fill a rank's slice, or nothing is quantised")
def slices_are_rarely_whole_blocks(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.optimizer not in TORCHAO_BITS or not recipe.partitions_states:
        return None
    taken = ""
    if recipe.optimizer is OptimizerKind.TORCHAO_ADAMW_4BIT:
        taken = ", and then an update takes 24 bytes a weight of a slice for a moment"
    return (
        f"--optimizer {recipe.optimizer.value} at --zero-stage {recipe.zero_stage} sees flat slices of weights, whose "
        f"moments are quantised only where a rank's is a multiple of {TORCHAO_BLOCK} weights{taken}; adamw-8bit "
        f"quantises every one"
    )


@TORCHAO_RULES.warning("torchao/optim subclass_8bit.py, _4bit.py aten.slice: blocks stay whole, or ValueError")
def parts_of_slices_are_whole_blocks(context: RuleContext) -> str | None:
    """DeepSpeed takes each weight's part of a rank's moments behind the first step
    (``lazy_init_hp_params_optimizer_state`` in ``utils/mixed_precision_linkage.py``)."""
    recipe = context.recipe
    if recipe.optimizer not in TORCHAO_BITS or recipe.zero_stage not in (1, 2):
        return None
    return (
        f"--optimizer {recipe.optimizer.value} at --zero-stage {recipe.zero_stage} ends in its first step where a "
        f"quantised slice holds a weight that is no multiple of {TORCHAO_BLOCK}, such as some biases and norms; "
        f"vlmplan rehearse shows whether this one does"
    )
