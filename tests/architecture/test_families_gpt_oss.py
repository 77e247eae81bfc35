from functools import partial

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import Linear

BATCH = Batch(micro_batch=2, num_tokens=384)
# Experts, not attention, make the peaks.
WIDE_BATCH = Batch(micro_batch=3, num_tokens=96)
GPT_OSS = packaged_config(
    "gpt-oss-20b",
    num_hidden_layers=4,
    layer_types=["sliding_attention", "full_attention"] * 2,
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=384,
    num_attention_heads=8,
    num_key_value_heads=2,
    num_local_experts=8,
    pad_token_id=None,
    eos_token_id=None,
)
del GPT_OSS["quantization_config"]
WIDE = {**GPT_OSS, "intermediate_size": 2048, "vocab_size": 2048, "num_local_experts": 4, "head_dim": 32}
ALTERED = {
    "a key head for each query head": {**GPT_OSS, "num_key_value_heads": 8},
    "full attention alone, tied, no biases": {
        **GPT_OSS,
        "layer_types": ["full_attention"] * 4,
        "tie_word_embeddings": True,
        "attention_bias": False,
    },
    "layers by the class's rule": {key: value for key, value in GPT_OSS.items() if key != "layer_types"},
}


@pytest.mark.parametrize("alias", ["gpt-oss-20b", "gpt-oss-120b"])
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", [GPT_OSS, *ALTERED.values()], ids=["20b", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(("config", "batch"), [(GPT_OSS, BATCH), (WIDE, WIDE_BATCH)], ids=["attention", "experts"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, batch, checkpoints):
    assert_eager_step(config, batch, checkpoints=checkpoints)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", ALTERED.values(), ids=ALTERED)
def test_a_step_of_an_altered_model_keeps_and_peaks_as_in_transformers(config):
    assert_eager_step(config, BATCH)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_experts_keep_what_transformers_keeps(checkpoints):
    frozen = [f"model.layers.{index}.mlp.experts" for index in range(4)]
    assert_eager_step(WIDE, WIDE_BATCH, checkpoints=checkpoints, frozen=["model.embed_tokens", *frozen])


def test_whatever_attention_is_asked_for_eager_runs():
    asked, run = (predicted_step(GPT_OSS, BATCH, implementation=name) for name in ("sdpa", "eager"))
    assert asked.backward_peak == run.backward_peak


def test_only_attention_is_linear():
    names = {name for name, module in build_model(GPT_OSS).named_modules() if isinstance(module, Linear)}
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head"}


assert_eager_step = partial(assert_step, attention="eager")
