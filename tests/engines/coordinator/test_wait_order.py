"""A module's waits for its weights are planned in the worst of the orders that DeepSpeed may walk through them in."""

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import strategies as st

from laws import law
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator import gathered_weights
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
from vlmplan.engines.coordinator.records import Gather, GatheredModule, GatheredStorage, GatheredWeight
from vlmplan.engines.coordinator.repeated_layers import of_weights
from vlmplan.engines.coordinator.wait_order import FIRST_STAYS, Wait, waits
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.zero import ZeroSettings

EXPERTS = {
    "model_type": "qwen3_moe",
    "vocab_size": 1000,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "tie_word_embeddings": True,
}
BLOCK_NUMEL = 8 * 3 * 128 * 192 + 8 * 128

Arrival = tuple[Sequence[int], int]
"""Sizes of the weights of one all-gather that a module waits for, and the bytes beside them that others have asked for:
-1 where one has been waited for, so that all are whole already."""


def module_of(arrivals: Sequence[Arrival], order: random.Random, *, has_first: bool) -> GatheredModule:
    weights = list[GatheredWeight]()
    for sizes, others in arrivals:
        own = [GatheredWeight((len(weights) + n, None), size, size, size, False) for n, size in enumerate(sizes)]
        away = [GatheredWeight((-1, None), others, others, others, False)] if others else []
        storages = {weight: GatheredStorage(weight.num_bytes) for weight in (*own, *away)}
        gather = Gather(sum(sizes) + abs(others), len(own) + (others > 0), is_done=others < 0, storages=storages)
        for weight in own:
            weight.gather = gather
        weights += own
    order.shuffle(weights)
    return GatheredModule((0, None), weights, 0, waited_first=order.choice(weights) if has_first else None)


def most_bytes(order: Sequence[Wait]) -> int:
    """As ``AllGatherCoalescedHandle.wait``: the first copies every weight out, and the buffer goes with the last."""
    live = most = 0
    copied = {gather for _, gather in order if gather.is_done}
    num_waiting = {gather: gather.num_waiting for _, gather in order}
    for _, gather in order:
        if gather not in copied and len(gather.storages) > 1:
            live += sum(storage.num_bytes for storage in gather.storages.values())
        copied.add(gather)
        most = max(most, live)
        num_waiting[gather] -= 1
        if not num_waiting[gather] and len(gather.storages) > 1:
            live -= gather.flat_bytes
    return most


@law(
    arrivals=st.lists(
        st.tuples(st.lists(st.integers(1, 99), min_size=1, max_size=2), st.sampled_from([-1, 0, 7])),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 2**16),
    has_first=st.booleans(),
    quick=60,
    thorough=400,
)
def test_no_order_of_waits_takes_more_than_the_planned_one(arrivals, seed, has_first):
    module = module_of(arrivals, random.Random(seed), has_first=has_first)
    planned = waits(module)
    under_way = [(weight, weight.gather) for weight in module.weights if weight.gather is not None]
    orders = permutations(under_way)
    possible = [order for order in orders if not has_first or order[0][0] is module.waited_first]
    assert set(planned) == set(under_way)
    assert most_bytes(planned) == max(map(most_bytes, possible))


def experts_trace(*, method: Method) -> Trace:
    recipe = Recipe(method=method, zero_stage=3, zero=ZeroSettings(), activation_checkpointing=True)
    model = prepared_model(EXPERTS, recipe)
    return model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.CHUNKED)


TRACES = {method: experts_trace(method=method) for method in (Method.FULL, Method.LORA)}


def fetched(trace: Trace, zero: ZeroSettings) -> list[tuple[int, int]]:
    """The most bytes that are live during each event about weights, and those after it."""
    gathered = GatheredWeights(trace=trace, zero=zero, num_ranks=2)
    found = list[tuple[int, int]]()
    for is_late, phase in enumerate((trace.forward(), trace.backward())):
        for run, section in phase:
            for event in of_weights(section.backward if is_late else section.forward):
                most = gathered_weights.notify(gathered, event, run)
                found.append((most, gathered.live_bytes))
    return found


@law(
    method=st.sampled_from(list(TRACES)),
    prefetch=st.integers(0, 3 * BLOCK_NUMEL),
    live=st.integers(0, 4 * BLOCK_NUMEL),
    seed=st.integers(0, 2**16),
    quick=20,
    thorough=200,
)
def test_whatever_the_order_no_moment_of_a_micro_batch_is_above_its_plan_and_what_stays_is_the_same(
    method, prefetch, live, seed
):
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=0,
        stage3_param_persistence_threshold=0,
    )
    planned = fetched(TRACES[method], zero)
    shuffled = random.Random(seed)

    def in_some_order(module: GatheredModule) -> list[Wait]:
        order = waits(module)
        num_fixed = bool(order) and order[0][0] is module.waited_first
        return order[:num_fixed] + shuffled.sample(order[num_fixed:], len(order) - num_fixed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_weights, "waits", in_some_order)
        run = fetched(TRACES[method], zero)
    assert all(most <= limit for (most, _), (limit, _) in zip(run, planned, strict=True))
    assert [after for _, after in run] == [after for _, after in planned]


class Aligned:
    """Hashes as a tensor does, which is to its address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __hash__(self) -> int:
        return self._address


@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_as_many_tensors_as_a_set_of_eight_places_takes_stays_the_first(seed):
    addresses = random.Random(seed).sample(range(0x7F0000000000, 0x7F0000100000, 16), FIRST_STAYS)
    tensors = [Aligned(address) for address in addresses]
    for number in range(1, FIRST_STAYS + 1):
        assert next(iter(set(iter(tensors[:number])))) is tensors[0]


def test_of_more_tensors_another_may_be_the_first():
    first, second = Aligned(16), Aligned(32)
    tensors = [first, second, *(Aligned(32 * number) for number in range(2, 5))]
    assert next(iter(set(iter(tensors)))) is not first
