import json
from importlib.resources import files

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_autocast_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families.llama import causal_masks
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation, Deallocation
from vlmplan.units import DType


def small(alias: str, **changes: object) -> dict[str, object]:
    config = json.loads(files("vlmplan").joinpath("data", "models", alias, "config.json").read_text())
    config.update(num_hidden_layers=4, **changes)
    return config


BATCH = Batch(micro_batch=2, num_tokens=384)
TOKENS_OF_MASK = 40


@pytest.mark.parametrize("alias", ["tinyllama-1.1b", "mistral-7b", "qwen2.5-0.5b", "qwen3-0.6b", "smollm2-135m"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(alias):
    assert_parameters_and_linears_match(small(alias))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", ["tinyllama-1.1b", "qwen2.5-0.5b", "qwen3-0.6b"])
def test_a_step_keeps_and_peaks_as_in_transformers(alias, checkpoints):
    assert_step_matches(small(alias), BATCH, text_inputs(BATCH), checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_with_a_sliding_window_shorter_than_the_sequence_build_masks(attention):
    config = small("mistral-7b", sliding_window=128)
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention=attention, tolerance=0.01)


def test_eager_attention_keeps_scores_of_every_head():
    config = small("tinyllama-1.1b")
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention="eager", tolerance=0.005)


def test_eager_attentions_weights_stay_while_the_mlp_of_a_layer_runs_that_keeps_no_graph():
    config = small("tinyllama-1.1b", hidden_size=64, num_attention_heads=8, num_key_value_heads=8, vocab_size=64)
    config.update(intermediate_size=4096)  # the MLP is the highest moment of forward
    assert_step_matches(config, BATCH, text_inputs(BATCH), checkpoints=True, attention="eager", tolerance=0.01)


def test_autocast_multiplies_eager_attentions_weights_in_16_bits_beside_those_of_the_softmax():
    assert_autocast_step_matches(small("tinyllama-1.1b"), BATCH, text_inputs(BATCH), attention="eager")


@pytest.mark.parametrize(("window", "num_made"), [(None, 0), (16, 4)])
def test_a_window_is_compared_with_where_it_begins_and_where_it_ends(window: int | None, num_made: int):
    """Two comparisons and what each leaves of the keys, of which three are there together; one stays."""
    tape, bools = LoggingTape(), TOKENS_OF_MASK**2
    with tape.section("masks"):
        x = tape.tensor((2, TOKENS_OF_MASK, 8), DType.BFLOAT16)
        masks = causal_masks(x, AttentionBackend(implementation="sdpa"), [window])
    events = [one for one in tape.trace().sections["masks"].forward if isinstance(one, Allocation | Deallocation)]
    sizes = {one.handle: one.num_bytes for one in events if isinstance(one, Allocation)}
    live = highest = 0
    for one in events:
        is_mask = sizes[one.handle] == bools
        live += (1 if isinstance(one, Allocation) else -1) * is_mask
        highest = max(highest, live)
    assert list(sizes.values()).count(bools) == num_made
    assert (highest, live) == ((3, 1) if num_made else (0, 0))
    assert len(masks) == (1 if num_made else 0)
