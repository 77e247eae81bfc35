"""Decoders that are Llamas but for a few things: SmolLM3, OLMo, EXAONE 4, ERNIE 4.5, GPT-NeoX, Jais 2, GLM, ..."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "vocab_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = {"sliding_window": 128}
FULL = ["full_attention"] * SIZES["num_hidden_layers"]
CONFIGS = {
    name: {"model_type": name.split()[0], **SIZES, **changes}
    for name, changes in {
        "ministral3": {},
        "ministral3 with windows": WINDOW,
        "smollm3": {},
        "smollm3 with windows, some layers named": {
            **WINDOW,
            "use_sliding_window": True,
            "no_rope_layers": [1, 0, 1, 1, 0, 1, 1, 0],
        },
        "bitnet": {},
        "bitnet with biases, tied": {"attention_bias": True, "hidden_act": "silu", "tie_word_embeddings": True},
        "arcee": {"mlp_bias": True, "attention_bias": True},
        "nemotron": {},
        "nemotron with biases, all of a head rotated": {
            "attention_bias": True,
            "mlp_bias": True,
            "partial_rotary_factor": 1.0,
        },
        "olmo": {},
        "olmo clipped": {"clip_qkv": 8.0, "attention_bias": True, "tie_word_embeddings": True},
        "olmo2": {},
        "olmo3": WINDOW,
        "olmo3 without windows": {"layer_types": FULL, "attention_bias": True},
        "cwm": {**WINDOW, "bos_token_id": 0, "eos_token_id": 0},
        "ernie4_5": {},
        "ernie4_5 with biases": {"use_bias": True, "num_key_value_heads": None},
        "exaone4": WINDOW,
        "exaone4 without windows": {"sliding_window": None, "layer_types": FULL, "tie_word_embeddings": True},
        "hunyuan_v1_dense": {},
        "helium": {"attention_bias": True},
        "jais2": {},
        "apertus": {"attention_bias": True},
        "apertus with another activation": {"hidden_act": "silu"},
        "iquestcoder": {},
        "nanochat": {"attention_bias": True},
        "hyperclovax": {"logits_scaling": 0.5},
        "hyperclovax without second norms": {"use_post_norm": False},
        "gpt_neox": {},
        "gpt_neox with attention before the MLP": {"use_parallel_residual": False, "tie_word_embeddings": True},
        "granite": {"logits_scaling": 8.0, "residual_multiplier": 0.22, "mlp_bias": True},
        "glm": {},
        "glm without biases": {"attention_bias": False},
        "internlm3": {"qkv_bias": True, "bias": True},
        "ministral": {**WINDOW, "layer_types": ["full_attention", "sliding_attention"] * 4},
        "ministral with windows": WINDOW,
        "glm4": {},
        "glm4 without biases, all of a head rotated": {"attention_bias": False, "partial_rotary_factor": 1.0},
        "seed_oss": {"attention_dropout": 0.0},
        "seed_oss without dropout, with a bias": {
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
            "attention_out_bias": True,
        },
    }.items()
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(28)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", ["seed_oss", "granite", "bitnet", "glm4", "olmo3", "ernie4_5"])
def test_eager_attention_drops_out_what_transformers_drops_out(name, checkpoints):
    """ERNIE 4.5 drops nothing out, whatever its file says. sdpa on CPU is another kernel with dropout, which no GPU
    runs."""
    assert_step({**CONFIGS[name], "attention_dropout": 0.1}, attention="eager", checkpoints=checkpoints)


@pytest.mark.parametrize(
    ("name", "num_kinds"), [("smollm3", 2), ("smollm3 with windows, some layers named", 2), ("olmo3", 2), ("glm4", 1)]
)
def test_layers_that_differ_are_traced_apart(name, num_kinds):
    ((_, stack),) = build_model(CONFIGS[name]).stacks()
    assert len(stack.kinds) == num_kinds


def test_heads_of_helium_are_together_as_wide_as_its_layers():
    with pytest.raises(InputError, match="head_dim 32 are not hidden_size, 512"):
        build_model({**CONFIGS["helium"], "head_dim": 32})
