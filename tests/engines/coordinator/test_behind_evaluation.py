"""Forwards that no backward follows leave weights whole, which the next micro batch has beside what it gathers."""

from dataclasses import replace

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import evaluation_pass
from vlmplan.architecture.model import Batch, Model
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator.behind_evaluation import walk_behind_evaluation
from vlmplan.engines.coordinator.first_pass import Decided
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
from vlmplan.engines.coordinator.module_order import Lost, SmallWeights
from vlmplan.engines.coordinator.module_uses import GatherSteps
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.walk_bytes import PhaseGathers
from vlmplan.engines.coordinator.wrapper_modules import WITHOUT_ADAPTERS
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.zero import ZeroSettings

WIDTH, VOCABULARY, NUM_LAYERS = 64, 500, 6
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
}
HEAD = VOCABULARY * WIDTH
KEEPS_HEAD = ZeroSettings(
    stage3_prefetch_bucket_size=0,
    stage3_max_live_parameters=10**9,
    stage3_max_reuse_distance=HEAD // 2,
    stage3_param_persistence_threshold=0,
)


def model() -> Model:
    return prepared_model(LLAMA, Recipe(zero_stage=3))


def trace_of(trained: Model, num_tokens: int = 8) -> Trace:
    """A micro batch that is trained on."""
    return trained.run(Tape(), Batch(micro_batch=1, num_tokens=num_tokens), AttentionBackend(), loss=LossKind.FULL)


def evaluated_by(trained: Model, num_tokens: int = 8) -> Trace:
    batch = Batch(micro_batch=1, num_tokens=num_tokens)
    return evaluation_pass(trained, Tape(is_evaluating=True), batch, AttentionBackend(), loss=LossKind.FULL).trace


def most(phase: PhaseGathers) -> int:
    return max(run.most for run in phase.live)


@pytest.mark.parametrize("num_tokens", [8, 16])
def test_what_backward_would_have_used_next_is_whole_from_the_start(num_tokens: int):
    trained = model()
    training, evaluated = trace_of(trained), evaluated_by(trained, num_tokens)
    usual = gather_walk(training, KEEPS_HEAD, wrappers=WITHOUT_ADAPTERS)
    behind = walk_behind_evaluation(training, [evaluated], KEEPS_HEAD, wrappers=WITHOUT_ADAPTERS)
    left = usual.forward.left
    assert left == 2 * HEAD
    assert usual.forward.live[0].start == 0
    assert behind.forward.live[0].start == left
    assert most(behind.forward) > most(usual.forward)
    assert behind.never_freed == usual.never_freed == 0


def test_forwards_that_go_by_an_order_of_their_own_leave_what_that_says():
    """DoRA's with dropout: of an order that ends with forward, nothing is used again soon but what it prefetches."""
    trained = model()
    training, evaluated = trace_of(trained), evaluated_by(trained)
    of_training, of_own = (
        walk_behind_evaluation(
            training, [evaluated], KEEPS_HEAD, wrappers=WITHOUT_ADAPTERS, by_another_order=by_another_order
        )
        for by_another_order in (False, True)
    )
    assert of_own.forward.live[0].start < of_training.forward.live[0].start
    assert of_own.never_freed == 0


def test_forwards_leave_nothing_where_an_evaluation_before_the_first_step_has_decided():
    trained = model()
    training, evaluated = trace_of(trained), evaluated_by(trained)
    decided = Decided(by_evaluation=True)
    behind = walk_behind_evaluation(training, [evaluated], KEEPS_HEAD, wrappers=WITHOUT_ADAPTERS, decided=decided)
    assert behind.forward.live[0].start == 0


def test_weights_that_an_evaluation_has_left_are_whole_beside_what_is_gathered():
    trained = model()
    training = trace_of(trained)
    gathered = GatheredWeights(trace=training, zero=KEEPS_HEAD, num_ranks=2)
    key = next(iter(gathered.weights))
    gathered.make_whole([key])
    assert gathered.whole_weights == [key]
    whole = gathered.live_bytes
    gathered.begin_forward()
    assert gathered.live_bytes == whole > 0


def test_where_no_weight_stays_for_its_next_use_a_step_is_as_ever():
    trained = model()
    training, evaluated = trace_of(trained), evaluated_by(trained)
    nothing_stays = replace(KEEPS_HEAD, stage3_max_reuse_distance=0)
    usual = gather_walk(training, nothing_stays, wrappers=WITHOUT_ADAPTERS)
    behind = walk_behind_evaluation(training, [evaluated], nothing_stays, wrappers=WITHOUT_ADAPTERS)
    assert behind == usual


def test_what_an_evaluation_has_fetched_ahead_arrives_when_the_micro_batch_behind_it_begins():
    """It is copied out of the buffers that it came in, and goes: backward, which it was for, never came."""
    trained = model()
    ahead = replace(KEEPS_HEAD, stage3_prefetch_bucket_size=WIDTH * WIDTH)
    training, evaluated = trace_of(trained), [evaluated_by(trained)]
    begun, most_bytes, _ = walk_behind_evaluation(training, evaluated, ahead, wrappers=WITHOUT_ADAPTERS).forward.start
    assert most_bytes > begun


def test_an_order_of_forwards_alone_asks_for_nothing_of_a_backward_but_its_head():
    steps = GatherSteps(trace_of(model()), KEEPS_HEAD, num_ranks=2, omitted={}, small=SmallWeights.WHOLE)
    used = [step for _, step in steps.order_at_first(Lost.AT_BACKWARD)]
    assert max(used) == steps.first_of_backward < max(step for _, step in steps.order_at_first(Lost.NEVER))
