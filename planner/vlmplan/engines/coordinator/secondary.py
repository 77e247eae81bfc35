"""Secondary partitions (hpZ) while weights are gathered: weights that have one and weights that have none come in
all-gathers apart."""

from vlmplan.recipe import Recipe


def secondary_among(recipe: Recipe) -> int:
    """The ranks that share each secondary partition, if trained weights have none yet when the micro batch begins whose
    memory is planned; else 1. An evaluation is planned before a micro batch of its own (``behind_evaluation``).

    The optimizer's step drops them (``invalidate_secondary_tensor`` in deepspeed 0.19.8 ``zero/stage3.py``), and each
    comes back when its weight is first released (``_partition_param_sec`` in ``zero/partition_parameters.py``), so that
    the first forward after a step gathers trained and frozen weights apart (``__all_gather_params_`` in
    ``zero/partitioned_param_coordinator.py``). That takes no more than together: a flat buffer is left out where one
    weight is all that a collective brings. So it is planned where no later forward of a step and none that looks up
    answers finds them all.
    """
    if recipe.hpz == 1 or recipe.grad_accum > 1:
        return 1
    return recipe.hpz if recipe.task is None or not recipe.task.is_grpo else 1
