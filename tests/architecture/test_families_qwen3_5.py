"""Qwen3.5 against transformers: gated delta nets and gated attention in one decoder, and images in front of it."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match, assert_step_matches, real_model, text_inputs
from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.units import DType

TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
EXPERTS = {
    **{key: value for key, value in TEXT.items() if key != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
ALTERED = {
    "as many key heads as value heads": {"linear_num_key_heads": 4, "linear_value_head_dim": 64},
    "biases, a wider convolution, tied": {
        "attention_bias": True,
        "linear_conv_kernel_dim": 7,
        "tie_word_embeddings": True,
    },
    "a layer of attention first": {"layer_types": ["full_attention", "linear_attention"] * 2},
    "attention in every second layer": {
        "full_attention_interval": 2,
        "rope_parameters": {"partial_rotary_factor": 0.5},
    },
}
ALIASES = ["qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b"]
VISION = {"hidden_size": 96, "intermediate_size": 160, "num_heads": 4, "out_hidden_size": TEXT["hidden_size"]}
MIXERS = ("linear_attn", "self_attn")


def step(config=TEXT, num_tokens=150, micro_batch=2, **options):
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens)
    return assert_step_matches(config, batch, text_inputs(batch), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["as it is", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match({**TEXT, **ALTERED.get(name, {})})


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "num_tokens", [40, 128, 150], ids=["less than a chunk", "whole chunks", "a last chunk with padding"]
)
def test_a_step_keeps_and_peaks_as_in_transformers(num_tokens):
    step(num_tokens=num_tokens, tolerance=0.001)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ALTERED)
def test_any_layout_of_layers_and_heads_runs_as_in_transformers(name):
    step({**TEXT, **ALTERED[name]}, tolerance=0.001)


def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers():
    # Integers of a few bytes a token (positions, shifted labels) show where so little is kept.
    step(checkpoints=True, tolerance=0.02, backward_tolerance=0.001)


def test_experts_and_the_shared_one_have_the_parameters_of_transformers():
    assert_parameters_and_linears_match(EXPERTS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_step_with_experts_keeps_and_peaks_as_in_transformers(checkpoints):
    step(EXPERTS, checkpoints=checkpoints, tolerance=0.01, backward_tolerance=0.001)


@pytest.mark.sweep
@pytest.mark.parametrize("trained", MIXERS)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_layers_in_front_of_the_first_that_is_trained_keep_nothing(trained, checkpoints):
    config = {**TEXT, "num_hidden_layers": 8, "full_attention_interval": 2}
    parts = ("mlp", "input_layernorm", "post_attention_layernorm", *(name for name in MIXERS if name != trained))
    frozen = [f"model.layers.{index}.{part}" for index in range(8) for part in parts]
    frozen += ["model.embed_tokens", "model.norm", "lm_head"]
    step(config, checkpoints=checkpoints, frozen=frozen, tolerance=0.02)


@pytest.mark.sweep
def test_attention_in_later_layers_shares_its_positions():
    step({**TEXT, "num_hidden_layers": 8}, tolerance=0.001)


@pytest.mark.sweep
@pytest.mark.parametrize("num_tokens", [500, 640])
def test_many_chunks_keep_and_peak_as_in_transformers(num_tokens):
    step(num_tokens=num_tokens, micro_batch=1, tolerance=0.001)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weights", [DType.FLOAT32, DType.BFLOAT16])
def test_autocast_multiplies_in_16_bits_and_keeps_the_rest_in_float32(weights):
    torch = pytest.importorskip("torch")
    from torch_probe import measured_step

    batch = Batch(micro_batch=1, num_tokens=150)
    dtype = torch.float32 if weights is DType.FLOAT32 else torch.bfloat16
    measured = measured_step(
        lambda: real_model(TEXT, dtype=dtype), text_inputs(batch), autocast=torch.bfloat16, keeps_labels=False
    )
    model = build_model(TEXT)
    for entry in model.parameters():
        entry.parameter.dtype = weights
    predicted = predicted_step(model, batch, autocast=DType.BFLOAT16)
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(predicted, name) == pytest.approx(getattr(measured, name), rel=0.002), name


def test_a_wrong_list_of_layers_is_refused():
    with pytest.raises(InputError, match="a list of 4 names, one a layer is needed"):
        build_model({**TEXT, "layer_types": ["full_attention"]})
    with pytest.raises(UnknownNameError, match="sliding_attention"):
        build_model({**TEXT, "layer_types": ["sliding_attention"] * 4})


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_real_class(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.sweep
@pytest.mark.parametrize("alias", ALIASES)
def test_packaged_models_have_the_parameters_of_transformers(alias):
    assert_parameters_and_linears_match(packaged_config(alias))


def test_the_published_weights_of_9b_take_as_many_bytes_as_its_index_says():
    # Beside the model they hold a layer that predicts further tokens: two norms, a projection of two widths to one, and
    # a layer of attention. A_log (32) and the norm of the gated delta nets (128) are in float32.
    width, query, key, inner, head = 4096, 16 * 256, 4 * 256, 12288, 256
    layer = width * (2 * query + 2 * key) + query * width + 3 * width * inner + 2 * width + 2 * head
    further = 2 * width * width + 3 * width + layer
    model = sum(entry.parameter.numel for entry in build_model(packaged_config("qwen3.5-9b")).parameters())
    assert 2 * (model + further) + 24 * 2 * (32 + 128) == 19_306_216_416


def test_the_merger_is_the_projector():
    model = build_model(packaged_config("qwen3.5-0.8b"))
    assert model.part_of("model.visual.merger.linear_fc1.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.blocks.3.norm1.weight") is Part.VISION
    assert model.part_of("model.language_model.layers.0.linear_attn.A_log") is Part.LANGUAGE


def step_with_images(**options):
    from patch_batches import cut
    from patch_batches import step as batch_of_images

    config = cut("qwen3.5-0.8b", num_layers=4, text=TEXT, vision=VISION)
    made = batch_of_images(config, "qwen3.5-0.8b", (320, 256), images_per_sample=2)
    return assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("frozen", [(), ["model.visual"], ["model.language_model", "lm_head"]], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_with_images_keeps_and_peaks_as_in_transformers(attention, frozen):
    step_with_images(attention=attention, frozen=frozen, tolerance=0.002 if attention == "sdpa" else 0.005)


@pytest.mark.sweep
@pytest.mark.parametrize("frozen", [(), ["model.visual"], ["model.language_model", "lm_head"]], ids=str)
def test_a_step_with_images_and_checkpoints_keeps_and_peaks_as_in_transformers(frozen):
    step_with_images(checkpoints=True, frozen=frozen, tolerance=0.01, backward_tolerance=0.001)


def test_features_of_several_depths_are_left_out_whatever_the_file_says():
    vision = {**packaged_config("qwen3.5-0.8b")["vision_config"], "deepstack_visual_indexes": [5]}
    names = [entry.name for entry in build_model(packaged_config("qwen3.5-0.8b", vision_config=vision)).parameters()]
    assert not [name for name in names if "deepstack" in name]
