"""Whether ZeRO-3 knows which module comes next, by which it prefetches weights and keeps them for their next use.

DeepSpeed records the order of modules in one micro batch and goes by it in the next (``ZeRoTraceMode`` in
``zero/partitioned_param_coordinator.py``, 0.19.8). Every forward of the model begins a new order, or completes one; and
what does not go as the order says makes it invalid, so that it is recorded anew in the forward after that.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from vlmplan.architecture.reference import has_kl_forward, is_own, loses_order
from vlmplan.architecture.trace import Trace
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Generation
from vlmplan.recipe.zero import ZeroSettings

UNKNOWN_ORDER = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
"""What DeepSpeed does with weights while it does not know which module comes next."""


class Lost(IntEnum):
    """The place in a micro batch at which the order that it began with turns out to be wrong."""

    NEVER = 0
    AT_START = 1
    AT_ADAPTERS = 2
    AT_BACKWARD = 3


class SmallWeights(IntEnum):
    """What weights up to the persistence threshold do: they are whole from before on, they stay once they have been
    gathered, they come and go as all others do, or do so while the order of modules is not known alone
    (``release_sub_module``), of which the last begins with all of them whole, as a step leaves them."""

    WHOLE = 0
    STAY = 1
    COME_AND_GO = 2
    BY_ORDER = 3
    WHOLE_AT_FIRST = 4


class Begun(NamedTuple):
    """What a micro batch finds when it begins: where the order that it goes by turns out to be wrong, ``AT_START``
    where there is none and it records one, and what small weights do. Whether trained weights lack the secondary
    partitions (hpZ) that a step has dropped, although later micro batches of the step find them."""

    lost: Lost = Lost.NEVER
    small: SmallWeights = SmallWeights.WHOLE
    lacks_secondary: bool = False


LATER = Begun()
RECORDING_FIRST = Begun(Lost.AT_START, SmallWeights.COME_AND_GO)
"""No step has been. While the order of modules is recorded small weights are released as all others are
(``release_sub_module``)."""
FOLLOWING_FIRST = Begun(small=SmallWeights.STAY)
"""The first that goes by an order: small weights stay from here on, and are whole in all later steps."""
BEHIND_EVALUATION = Begun(Lost.AT_BACKWARD)
"""No step has been, and forwards have recorded an order that ends with forward."""


def begun_first(recipe: Recipe) -> Sequence[Sequence[Begun]]:
    """What the first micro batches of the first steps find; all others find what is ``LATER``."""
    if recipe.evaluation is None or not recipe.evaluation.on_start:
        return ((RECORDING_FIRST, FOLLOWING_FIRST),)
    if recipe.grad_accum == 1:
        return (BEHIND_EVALUATION,), (Begun(Lost.AT_START),)
    return ((BEHIND_EVALUATION, RECORDING_FIRST, FOLLOWING_FIRST),)


def number_of_following(recipe: Recipe) -> int:
    """That of the first step's micro batch, from 0 on, which finds what is ``FOLLOWING_FIRST``; the step may not have
    so many."""
    first = begun_first(recipe)[0]
    return first.index(FOLLOWING_FIRST) if FOLLOWING_FIRST in first else len(first)


BEHIND_STEP = Begun(lacks_secondary=True)
"""The first of a step with several that follows another step, with hpZ."""


def keeps_small(small: SmallWeights, *, knows_order: bool) -> bool:
    """Whether small weights stay whole when a module is done."""
    by_order = small in (SmallWeights.BY_ORDER, SmallWeights.WHOLE_AT_FIRST)
    return small is SmallWeights.STAY or (by_order and knows_order)


def training_sizes(recipe: Recipe) -> ZeroSettings:
    """The recipe's sizes as forward and backward of its micro batches have them."""
    return replace(recipe.zero, **UNKNOWN_ORDER) if loses_order_at(recipe) is Lost.AT_START else recipe.zero


def loses_order_at(recipe: Recipe) -> Lost:
    """``NEVER`` where some micro batch goes by a recorded order; the last ones before answers are generated do.

    Of GRPO (TRL 1.16): hooks that come back behind ``generate`` of transformers make it invalid (``add_hooks`` in
    ``trl/models/utils.py``), and the first micro batch records it. Where forwards without gradients come between, old
    log-probabilities or a reference with adapters off, they leave an order of their own, which the first micro batch
    finds to be wrong, so that the second one records. Answers of vLLM take no hooks away: there an order holds until
    adapters are missing. ms-swift (4.6 ``_prepare_batch_inputs``) looks up both of one micro batch before those of the
    next, so that each forward with adapters off ends the order that the one before has left: the first micro batch
    records. Without such a forward two or four micro batches of its full training were rehearsed, with transformers and
    with vLLM: none kept a weight for its next use.
    """
    task = recipe.task
    if task is None or not task.is_grpo:
        return Lost.NEVER
    is_switched = recipe.reference.is_trained_model
    if task.is_of_ms_swift:
        return _of_ms_swift(recipe, is_switched=is_switched)
    if task.generation is not Generation.TRANSFORMERS and not is_switched:
        return Lost.NEVER
    runs_before = is_switched or recipe.looks_up_old_probabilities
    if recipe.micro_batches_per_generation >= 2 + runs_before:
        return Lost.NEVER
    if not runs_before:
        return Lost.AT_START
    return Lost.AT_ADAPTERS if is_switched else Lost.AT_BACKWARD


def evaluates_by_several(recipe: Recipe) -> bool:
    """Whether the model runs more than once over a batch of an evaluation, of which the last knows no order: without
    its adapters, over answers to other prompts, or to generate."""
    task = recipe.task
    return task is not None and (
        task.is_grpo or task.estimates_kl or (task.reads_reference and recipe.reference.is_trained_model)
    )


def small_without_order(trace: Trace, recipe: Recipe) -> Sequence[SmallWeights]:
    """What small weights do in each micro batch of a step, where DeepSpeed loses the order of modules in all of them:
    they go with all others then. Gathering all weights to generate answers leaves none of them whole."""
    lost = loses_order_at(recipe)
    if lost is Lost.AT_START:
        return [SmallWeights.COME_AND_GO] * recipe.grad_accum
    if lost is not Lost.NEVER:
        return [SmallWeights.BY_ORDER] * recipe.grad_accum
    if is_own(trace.schedule[-1]) or has_kl_forward(trace):
        return [SmallWeights.WHOLE_AT_FIRST, *[SmallWeights.BY_ORDER] * (recipe.grad_accum - 1)]
    return []


def small_in_last(trace: Trace, recipe: Recipe) -> SmallWeights:
    """What small weights do in the last micro batch of a later step."""
    found = small_without_order(trace, recipe) if recipe.hpz == 1 else ()
    return found[-1] if found else SmallWeights.WHOLE


def begun_without_order(begun: Begun, small: SmallWeights, trace: Trace) -> Begun:
    """``begun`` of a micro batch in which DeepSpeed loses the order of modules, as it does in every one: ``small`` are
    what small weights do in later ones. The first of a run whose first forward records in all of them is as any other,
    but that no step has made small weights whole."""
    if begun in (LATER, FOLLOWING_FIRST):
        return LATER._replace(small=small)
    if begun == RECORDING_FIRST and loses_order(trace):
        return LATER._replace(small=SmallWeights.BY_ORDER)
    return begun


def _of_ms_swift(recipe: Recipe, *, is_switched: bool) -> Lost:
    knows_later = is_switched and recipe.micro_batches_per_generation > 1
    return Lost.NEVER if knows_later else Lost.AT_START
