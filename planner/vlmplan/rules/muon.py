"""DeepSpeed's Muon. Paths are of deepspeed 0.19.8."""

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, OptimizerKind
from vlmplan.rules.base import RuleBook, RuleContext, stage_text

MUON_RULES = RuleBook()


def _uses_muon(recipe: Recipe) -> bool:
    return recipe.optimizer is OptimizerKind.MUON


@MUON_RULES.error("runtime/zero/stage_1_and_2.py get_flat_partition and stage3.py: where gradients are made orthogonal")
def muon_needs_a_stage(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not _uses_muon(recipe) or recipe.partitions_states:
        return None
    engine = "--fsdp" if recipe.fsdp else f"--zero-stage {stage_text(recipe)}"
    return (
        f"--optimizer muon is DeepSpeed's, for ZeRO stages 1 to 3, and does not go with {engine}; give stage 1, 2 or 3"
    )


@MUON_RULES.error("runtime/zero/stage_1_and_2.py and stage3.py _apply_muon_updates_cpu_offload: not modelled")
def muon_stays_on_the_gpu(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not _uses_muon(recipe) or recipe.offload_optimizer is Offload.NONE:
        return None
    return (
        f"--optimizer muon with --offload-optimizer {recipe.offload_optimizer.value}: every rank gathers all gradients "
        f"and momentum on its GPU again to make them orthogonal, which is not planned; give --offload-optimizer none"
    )


@MUON_RULES.warning("runtime/zero/stage_1_and_2.py step, stage3.py _apply_muon_to_accumulated_grads: norms of updates")
def muon_updates_are_not_clipped(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not _uses_muon(recipe) or not recipe.gradient_clipping:
        return None
    return (
        f"gradient_clipping {recipe.gradient_clipping:g} with --optimizer muon: DeepSpeed clips Muon's updates, not "
        f"the gradients, so that each is divided by the norm of all, which grows with the model; set gradient_clipping "
        f"to 0"
    )


@MUON_RULES.error("runtime/engine.py seq_parallel_communication_data_type: gradients in float32, not tried with Muon")
def muon_shares_no_samples(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not _uses_muon(recipe) or recipe.sequence_parallel == 1:
        return None
    return f"--optimizer muon does not go with --sequence-parallel {recipe.sequence_parallel} yet; give 1"


@MUON_RULES.error("runtime/engine.py _muon_param_groups: one learning rate for Muon, one for AdamW")
def muon_has_its_own_rates(context: RuleContext) -> str | None:
    if not _uses_muon(context.recipe) or context.recipe.loraplus_lr_ratio is None:
        return None
    return "--loraplus-lr-ratio does not go with --optimizer muon, which has a learning rate of its own for matrices"


@MUON_RULES.error("accelerate accelerator.py _prepare_deepspeed: an optimizer in the file and in the code")
def muon_trains_samples_alone(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not _uses_muon(recipe) or recipe.task is None:
        return None
    task = recipe.task.kind.value
    return f"--optimizer muon does not go with --task {task} yet, whose optimizer TRL's trainers are handed"
