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
from vlmplan.engines.coordinator.secondary import gathers_apart
from vlmplan.engines.events import Component, Sink, Stream
from vlmplan.evaluation import Evaluation
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import LossKind, Method
from vlmplan.zero_settings import ZeroSettings

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


def kinds_by_phase(*, is_apart: bool) -> tuple[list[set[bool]], list[set[bool]]]:
    model = prepared_model(LLAMA, LORA)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    forward, backward = FlatBuffers(), FlatBuffers()
    gathered = GatheredWeights(trace=trace, zero=SIZES, num_ranks=4, sink=forward, is_apart=is_apart)
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
    forward, backward = kinds_by_phase(is_apart=True)
    assert all(len(kinds) == 1 for kinds in forward)
    assert {True, False} in backward
    forward_together, backward_together = kinds_by_phase(is_apart=False)
    assert {True, False} in forward_together
    assert backward == backward_together


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"hpz": 1}, False),
        ({"grad_accum": 2}, False),
        ({"evaluation": Evaluation(batch=1, samples=8)}, False),
    ],
)
def test_only_a_forward_that_no_other_forward_of_the_step_precedes_is_planned_so(changes, expected):
    assert gathers_apart(LORA.with_changes(**changes)) is expected
