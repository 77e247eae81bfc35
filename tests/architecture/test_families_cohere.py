"""Cohere and Cohere 2 against transformers: attention beside the MLP, positions in float32, layers without any."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.model import Batch

BATCH = Batch(micro_batch=2, num_tokens=150)
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 5, "vocab_size": 100}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {
    "cohere": {"model_type": "cohere", **SIZES},
    "cohere with normed heads": {"model_type": "cohere", **SIZES, "use_qk_norm": True, "attention_bias": True},
    "cohere2": {"model_type": "cohere2", **SIZES, "sliding_window": 200},
    "cohere2 with windows shorter than the sequence": {"model_type": "cohere2", **SIZES, "sliding_window": 64},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(name):
    assert_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH), tolerance=0.001)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(name):
    assert_checkpointed_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH))
