"""Attention to the tokens that an indexer chooses, DeepSeek-V3.2's, GLM-5's and A.X-K2's, against transformers."""

import pytest

from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.glm_moe_dsa import indexer_types
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind

DEEPSEEK = {
    "model_type": "deepseek_v32",
    "hidden_size": 512,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "index_n_heads": 2,
    "index_head_dim": 24,
    "index_topk": 64,
}
GLM = {**DEEPSEEK, "model_type": "glm_moe_dsa"}
SHARING = {**GLM, "indexer_types": ["full", "shared", "full", "shared"]}
AXK2 = {**DEEPSEEK, "model_type": "axk2", "n_group": None, "topk_group": None}
CONFIGS = {
    "deepseek_v32": DEEPSEEK,
    "deepseek_v32 that chooses everything, layers by name, biases": {
        **DEEPSEEK,
        "index_topk": 1024,
        "attention_bias": True,
        "mlp_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
    },
    "glm_moe_dsa": GLM,
    "glm_moe_dsa that takes over": SHARING,
    "axk2": AXK2,
    "axk2 with groups of experts, layers by name, biases": {
        **AXK2,
        "n_group": 2,
        "topk_group": 1,
        "attention_bias": True,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


def test_no_gradient_comes_to_an_indexer():
    model = build_model(DEEPSEEK)
    trace = model.run(Tape(), BATCH, AttentionBackend(), loss=LossKind.FULL)
    events = [event for section in trace.sections.values() for event in section.backward]
    ready = {id(event.parameter) for event in events if isinstance(event, GradientReady)}
    without = {entry.name for entry in model.parameters() if id(entry.parameter) not in ready}
    assert {name.split(".indexer.")[1] for name in without} == {
        "wq_b.weight",
        "wk.weight",
        "k_norm.weight",
        "k_norm.bias",
        "weights_proj.weight",
    }


@pytest.mark.parametrize(
    ("changes", "letters"),
    [
        ({}, "FFFFFF"),
        ({"index_topk_freq": 2}, "FFSFSF"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSFSS"),
        ({"index_topk_pattern": "FSFSFS"}, "FSFSFS"),
        ({"index_topk_pattern": ["full", "shared", *["full"] * 4]}, "FSFFFF"),
    ],
)
def test_layers_take_over_what_the_file_says(changes, letters):
    config = Config({**GLM, "num_hidden_layers": 6, **changes})
    assert "".join(name[0].upper() for name in indexer_types(config)) == letters


@pytest.mark.parametrize("pattern", ["SFFF", "FFF", "FXFF"])
def test_a_pattern_that_no_model_has_is_refused(pattern):
    with pytest.raises(InputError, match=f'index_topk_pattern is "{pattern}"; full or shared for each of 4 layers'):
        build_model({**GLM, "index_topk_pattern": pattern})
