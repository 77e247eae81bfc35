"""Doge against transformers. A step with sdpa is another on CPU, where no fused kernel takes a learned mask."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

DOGE = {
    "model_type": "doge",
    "vocab_size": 2048,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
}
CONFIGS = {
    "dense": DOGE,
    "more keys than a query sees": {**DOGE, "num_key_value_heads": 8, "keep_window_size": 128, "hidden_dropout": 0.1},
    "with experts": {**DOGE, "is_moe": True, "num_experts": 256, "num_experts_per_tok": 8},
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step(config, attention="eager", checkpoints=checkpoints)


def test_experts_whose_scores_transformers_cannot_train_are_refused():
    with pytest.raises(InputError, match="norm_topk_prob is true"):
        build_model({**CONFIGS["with experts"], "norm_topk_prob": True})
