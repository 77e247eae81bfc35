"""Tokens traded for heads: how often, how many bytes, and what ranks have of a sample."""

from collections import Counter

import pytest

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.communication.links import Links
from vlmplan.communication.rings import collective_seconds
from vlmplan.engines.collectives import CollectiveKind, StepPhase, exchanges
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind

HEAD_DIM, HEADS, KV_HEADS, LAYERS = 8, 12, 4, 3
CONFIG = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": 64,
}


def traced(size, *, tokens=24, checkpoints=False, micro_batch=1):
    recipe = Recipe(zero_stage=2, sequence_parallel=size, activation_checkpointing=checkpoints)
    model = prepared_model(CONFIG, recipe)
    for _, stack in model.stacks():
        stack.checkpoints = checkpoints
    batch = Batch(micro_batch=micro_batch, num_tokens=tokens // size, sequence_parallel=size)
    return model.run(Tape(), batch, AttentionBackend(sequence_parallel=size), loss=LossKind.CHUNKED)


def sent_elements(size, tokens):
    """By all-to-all of one layer: queries and their result, keys and values of no fewer heads than ranks."""
    own = tokens // size
    return Counter(2 * [own * HEADS * HEAD_DIM] + 2 * [own * max(KV_HEADS, size) * HEAD_DIM])


@pytest.mark.parametrize("size", [2, 4, 12])
def test_a_layer_trades_queries_keys_values_and_the_result_once_each_way(size):
    trace = traced(size)
    forward, again, backward = (Counter(work.exchanges) for work in trace.works())
    expected = Counter()
    for elements, count in sent_elements(size, 24).items():
        expected[2 * elements] += LAYERS * count
    assert forward == backward == expected
    assert not again


def test_layers_that_run_again_trade_again():
    forward, again, _ = (Counter(work.exchanges) for work in traced(2, checkpoints=True).works())
    assert 0 < again.total() <= forward.total()


def test_collectives_name_the_group_and_repeat_for_every_micro_batch():
    found = exchanges(traced(2), 5, 2)
    assert {one.group_size for one in found} == {2}
    forward = [one for one in found if one.phase is StepPhase.FORWARD]
    assert sum(one.count for one in forward) == 5 * LAYERS * 4
    elements = 2 * 12 * HEADS * HEAD_DIM + 2 * 12 * KV_HEADS * HEAD_DIM
    assert sum(one.num_bytes for one in forward) == 5 * LAYERS * 2 * elements
    assert exchanges(traced(1), 5, 1) == []


def test_attention_has_all_pairs_of_tokens_over_all_ranks():
    alone, shared = traced(1), traced(4)
    assert sum(work.attention_flops for work in alone.works()) == 4 * sum(
        work.attention_flops for work in shared.works()
    )


def test_an_exchange_sends_all_but_its_own_part():
    links = Links(local=100e9, local_sum=100e9, network=None, is_nvlink=True)
    size = 8 * 10**9
    four = collective_seconds(CollectiveKind.ALL_TO_ALL, size, num_nodes=1, ranks_per_node=4, links=links)
    assert four == pytest.approx(size * 3 / 4 / 100e9, rel=0.1)
