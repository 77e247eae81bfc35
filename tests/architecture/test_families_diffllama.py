"""DiffLlama against transformers, whose norm of what attention has found is one kernel, as on CUDA."""

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_step
from vlmplan.errors import InputError

DIFFLLAMA = {
    "model_type": "diffllama",
    "vocab_size": 2000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
}
UNGROUPED = {**DIFFLLAMA, "num_key_value_heads": 8, "attention_bias": True}


@pytest.mark.parametrize("config", [DIFFLLAMA, UNGROUPED], ids=["grouped heads", "biases"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    pytest.importorskip("transformers")
    from family_checks import assert_parameters_and_linears_match

    assert_parameters_and_linears_match(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("config", "attention"), [(DIFFLLAMA, "sdpa"), (DIFFLLAMA, "eager"), (UNGROUPED, "eager")])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize(("key", "value"), [("attention_dropout", 0.1), ("num_key_value_heads", 1)])
def test_what_the_class_refuses_is_refused(key, value):
    with pytest.raises(InputError, match=f"{key} is {value}"):
        predicted_step({**DIFFLLAMA, key: value}, BATCH)
