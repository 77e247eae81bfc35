"""What Liger's kernels run on, and for which models there are any."""

from vlmplan.model_types.liger import CUT_LOSS_TYPES, LAYER_TYPES, TYPES_BEHIND_TRANSFORMERS
from vlmplan.recipe.choices import LossKind
from vlmplan.rules.base import RuleBook, RuleContext

LIGER_RULES = RuleBook()

LIGER_CAPABILITY = (8, 0)
"""Cited: the least that Triton supports by its README. Older cards run some of its kernels, not all of Liger's."""


def _option(context: RuleContext) -> str | None:
    """What asks for Liger's kernels."""
    if context.recipe.loss is LossKind.LIGER:
        return "--loss liger"
    return "--liger-layers" if context.recipe.liger_layers else None


@LIGER_RULES.error(
    "github.com/triton-lang/triton README: compute capability 8.0+; the accumulation of liger-kernel 0.8.5"
)
def liger_needs_ampere(context: RuleContext) -> str | None:
    gpu, option = context.gpu, _option(context)
    if option is None or gpu is None or not context.is_before(LIGER_CAPABILITY):
        return None
    return (
        f"{option} is made of Triton kernels, which need compute capability 8.0 or newer, but there is "
        f"{gpu.name}{context.capability_text}; leave it off"
    )


@LIGER_RULES.warning("vlmplan_trainer losses/liger.py: Triton kernels run on GPUs alone")
def liger_on_cpu_is_torch(context: RuleContext) -> str | None:
    if context.recipe.loss is not LossKind.LIGER or not context.is_on_cpu:
        return None
    return "--loss liger: Liger's kernels do not run on a CPU; torch takes the same steps there, slower"


@LIGER_RULES.error(
    "liger-kernel 0.8.5 transformers/monkey_patch.py MODEL_TYPE_TO_APPLY_LIGER_FN; vlmplan_trainer losses/liger.py, "
    "which calls its function itself; axolotl's cut-cross-entropy transformers/patch.py PATCH_FNS"
)
def liger_has_a_loss_for_the_model(context: RuleContext) -> str | None:
    model = context.model
    if context.recipe.loss is not LossKind.LIGER or model is None or model.model_type in CUT_LOSS_TYPES:
        return None
    return (
        f"--loss liger: liger-kernel 0.8.5 has no fused loss for {model.id} (model_type {model.model_type}); "
        f"give --loss chunked"
    )


@LIGER_RULES.error("liger-kernel 0.8.5 transformers/monkey_patch.py: what each function patches")
def liger_layers_are_known(context: RuleContext) -> str | None:
    model = context.model
    if not context.recipe.liger_layers or model is None:
        return None
    if model.model_type in LAYER_TYPES:
        return None
    return (
        f"--liger-layers is not planned for {model.id} (model_type {model.model_type}); "
        f"it is for {', '.join(sorted(LAYER_TYPES))}"
    )


@LIGER_RULES.warning("liger-kernel 0.8.5 transformers/model/output_classes.py with transformers 5.23 (seen)")
def liger_is_behind_transformers(context: RuleContext) -> str | None:
    model = context.model
    if not context.recipe.liger_layers or model is None or model.model_type not in TYPES_BEHIND_TRANSFORMERS:
        return None
    return (
        f"--liger-layers: with transformers 5.23 liger-kernel 0.8.5 stops with an ImportError for {model.model_type}; "
        f"it takes an older transformers"
    )
