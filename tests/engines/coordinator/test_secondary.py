"""With hpZ the first forward after a step gathers trained weights apart from frozen ones."""

from collections.abc import Hashable

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify
from vlmplan.engines.coordinator.records import Gather
from vlmplan.engines.coordinator.repeated_layers import of_weights
from vlmplan.engines.coordinator.secondary import secondary_among
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.wrapper_modules import WITHOUT_ADAPTERS
from vlmplan.engines.events import Component, Sink, Stream
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings

SIZES = ZeroSettings(
    stage3_prefetch_bucket_size=60_000,
    stage3_max_live_parameters=100_000,
    stage3_max_reuse_distance=0,
    stage3_param_persistence_threshold=0,
)
LORA = Recipe(method=Method.LORA, zero_stage=3, hpz=2, zero=SIZES)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}


class FlatBuffers(Sink):
    """For each flat buffer that several weights share, whether these are trained."""

    def __init__(self) -> None:
        self.kinds: list[set[bool]] = []

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if isinstance(owner, Gather):
            self.kinds.append({weight.is_trained for weight in owner.storages})


def kinds_by_phase(*, among: int) -> tuple[list[set[bool]], list[set[bool]]]:
    model = prepared_model(LLAMA, LORA)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    forward, backward = FlatBuffers(), FlatBuffers()
    gathered = GatheredWeights(trace=trace, zero=SIZES, num_ranks=4, sink=forward, secondary_among=among)
    for run, section in trace.forward():
        if run.layer == 3:  # by then nothing has been prefetched for backward
            gathered._sink = None
        for event in of_weights(section.forward):
            notify(gathered, event, run)
    gathered._sink = backward
    gathered.begin_backward()
    for run, section in trace.backward():
        for event in of_weights(section.backward):
            notify(gathered, event, run)
    return forward.kinds, backward.kinds


def test_until_a_trained_weight_has_been_released_it_is_gathered_apart_from_frozen_ones():
    forward, backward = kinds_by_phase(among=2)
    assert all(len(kinds) == 1 for kinds in forward)
    assert {True, False} in backward
    forward_together, backward_together = kinds_by_phase(among=1)
    assert {True, False} in forward_together
    assert backward == backward_together


def test_each_secondary_partition_is_back_once_its_weight_has_been_released():
    """What has come back by the end of forward lacks that of the weights which are whole still; a step finds all."""
    recipe = LORA.with_changes(method=Method.FULL)
    model = prepared_model(LLAMA, recipe)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    lacking, having = (
        gather_walk(trace, SIZES, wrappers=WITHOUT_ADAPTERS, num_ranks=4, secondary_among=among) for among in (2, 1)
    )
    gathered = sum(entry.parameter.num_bytes for entry in model.parameters())
    assert 0 < lacking.forward.left - having.forward.left < gathered // 2
    assert lacking.backward.left - having.backward.left == gathered // 2
    assert lacking.never_freed == having.never_freed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2),
        ({"hpz": 1}, 1),
        ({"grad_accum": 2}, 1),
        ({"evaluation": Evaluation(batch=1, samples=8)}, 2),
    ],
)
def test_only_a_forward_that_no_other_forward_of_the_step_precedes_is_planned_so(changes, expected):
    assert secondary_among(LORA.with_changes(**changes)) == expected
