"""Why nothing fits on a cluster, as a sentence, and what would help."""

from operator import itemgetter
from typing import NamedTuple

from vlmplan.estimation.cautions import stacked_caveat
from vlmplan.hardware import Cluster
from vlmplan.memory.overhead import RESERVE_FRACTION
from vlmplan.recipe import Recipe, engine_name
from vlmplan.recipe.choices import Method, Offload
from vlmplan.search.setups import SetupSpace
from vlmplan.units import gib_text


class Reason(NamedTuple):
    """Why nothing fits, and the smallest change that would help, if one is known. ``is_rule``: a rule or a trainer
    refuses every setup, however much memory there is. ``needed_bytes``: of a GPU at the least, where it lacks them."""

    sentence: str
    change: str | None = None
    is_rule: bool = False
    needed_bytes: int | None = None


def refusal(space: SetupSpace, cluster: Cluster) -> Reason:
    """Why nothing of ``space`` fits on ``cluster``."""
    attempts = [setup for method in space.choices.methods for setup in space.lightest(cluster, method)]
    if not attempts:
        methods = sorted(space.choices.methods, key=lambda method: method is Method.FULL)
        # full fine-tuning objects to what the user said of adapters
        return Reason(space.choices.main_objection(cluster, methods), is_rule=True)
    needed, setup = min(((space.needed_bytes(setup, cluster), setup) for setup in attempts), key=itemgetter(0))
    recipe = setup.recipe
    budget = space.models.budget_bytes(cluster, recipe)
    engine = engine_name(recipe, cluster.num_gpus)
    offload = " with CPU offload" if recipe.offload_optimizer is not Offload.NONE else ""
    reason = (
        f"needs {gib_text(needed)} a GPU at the least ({recipe.method.value}, {engine}{offload}, "
        f"micro batch {recipe.micro_batch}{_unpacked(space, recipe)}), {gib_text(budget)} are free for it"
    )
    can_be_shorter = space.room_bytes(recipe, cluster) is not None
    change = space.fitting_method(cluster) or _larger_hardware(recipe, needed - budget, can_be_shorter=can_be_shorter)
    return Reason(reason, change, needed_bytes=needed)


def _unpacked(space: SetupSpace, recipe: Recipe) -> str:
    """What a method that packs weights leaves as it is, where that is much of the model."""
    if not recipe.method.packs_weights:
        return ""
    estimator, _ = space.models.estimator(recipe)
    stacked = estimator.table.stacked_bytes
    if stacked_caveat(recipe, stacked_bytes=stacked, num_params=estimator.table.num_params) is None:
        return ""
    bits = 8 * recipe.frozen_dtype.num_bytes
    return f", {gib_text(stacked)} of experts in {bits} bits: they are no Linears, which alone are packed"


def _larger_hardware(recipe: Recipe, missing_bytes: int, *, can_be_shorter: bool) -> str:
    """What else helps a recipe that lacks ``missing_bytes``; part of a larger GPU's memory is kept in reserve.
    ``can_be_shorter``: whether there is room beside the model's states, which no shorter sample makes smaller."""
    is_sharded = recipe.zero_stage is not None and recipe.zero_stage >= 3
    larger = "more GPUs" if is_sharded else f"a GPU with {gib_text(missing_bytes / (1 - RESERVE_FRACTION))} more"
    return f"{larger}, or a shorter --seq-len" if can_be_shorter else larger
