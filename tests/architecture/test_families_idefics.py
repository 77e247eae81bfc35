import json
from importlib.resources import files

import pytest

import text_steps
from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch

ALIASES = [
    "idefics2-8b",
    "idefics3-8b",
    "smolvlm-256m",
    "smolvlm-500m",
    "smolvlm-2.2b",
    "smolvlm2-256m",
    "smolvlm2-500m",
    "smolvlm2-2.2b",
]
VOCAB_SIZE = 1000
IMAGE_TOKEN = VOCAB_SIZE - 1


def changed(alias, *, text=None, vision=None, **changes):
    config = packaged_config(alias, **changes)
    config["text_config"] = {**config["text_config"], **(text or {})}
    config["vision_config"] = {**config["vision_config"], **(vision or {})}
    return config


def small(alias, **changes):
    """Few layers and a small vocabulary, so that activations and not logits make the peaks."""
    text = {"num_hidden_layers": 2, "vocab_size": VOCAB_SIZE, "pad_token_id": 0}
    vision = {"num_hidden_layers": 3}
    return changed(alias, text=text, vision=vision, image_token_id=IMAGE_TOKEN, **changes)


def shape_of(alias, width, height, **changes):
    path = files("vlmplan").joinpath("data", "models", alias, "preprocessor_config.json")
    preprocessor = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return image_shape(packaged_config(alias), {**preprocessor, **changes}, width=width, height=height)


ALTERED = {
    "idefics2 tied, deeper resampler": changed(
        "idefics2-8b",
        text={"num_hidden_layers": 2, "hidden_size": 1024, "num_attention_heads": 8, "intermediate_size": 2048},
        tie_word_embeddings=True,
        perceiver_config={"resampler_depth": 4, "resampler_n_latents": 32, "num_key_value_heads": 2},
    ),
    "idefics2 with class defaults": {"model_type": "idefics2", "text_config": {"num_hidden_layers": 2}},
    "idefics3 tied, with biases and a wide head": changed(
        "idefics3-8b",
        text={"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True, "head_dim": 64},
        vision={"num_hidden_layers": 2, "hidden_size": 384, "num_attention_heads": 6, "image_size": 448},
        tie_word_embeddings=True,
        scale_factor=4,
    ),
    "smolvlm with a qwen2 decoder": changed(
        "smolvlm2-256m", text={"model_type": "qwen2", "num_hidden_layers": 2}, scale_factor=2
    ),
    "smolvlm whose text configuration alone is tied": changed("smolvlm2-256m", text={"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize("config", [*map(packaged_config, ALIASES), *ALTERED.values()], ids=[*ALIASES, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def assert_step(alias, shape, *, micro_batch=1, num_text_tokens=40, config=None, tolerance=0.002, **options):
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches

    batch, inputs, floats = samples_of(shape, micro_batch, num_text_tokens)
    assert_step_matches(config or small(alias), batch, inputs, floats, tolerance=tolerance, **options)


def samples_of(shape, micro_batch, num_text_tokens):
    """The batch, and its integers and pixels for the real model."""
    import torch

    from family_checks import text_inputs

    num_image_tokens = shape.num_placeholder_tokens
    batch = Batch(
        micro_batch=micro_batch, num_tokens=num_image_tokens + num_text_tokens, images_per_sample=1, image=shape
    )
    inputs = text_inputs(batch)
    inputs["input_ids"][:, :num_image_tokens] = IMAGE_TOKEN
    height = shape.resized_height // shape.num_tile_rows
    width = shape.resized_width // shape.num_tile_columns
    pictures = (micro_batch, shape.num_vision_sequences)
    mask = torch.ones((*pictures, height, width), dtype=torch.int64)
    if shape.has_padded_sequences:
        mask[:, 0, height // 2 :] = 0
    inputs["pixel_attention_mask"] = mask
    return batch, inputs, {"pixel_values": (*pictures, 3, height, width)}


VISION = ("model.vision_model.",)
CASES = {
    # (alias, image width, image height, samples, text tokens)
    "13 tiles": ("smolvlm-256m", 400, 300, 1, 40),
    # 378 of 384 pixels are patches; the output object holds the tower's output
    "smolvlm2": ("smolvlm2-2.2b", 400, 100, 2, 300),
    "grouped heads": ("idefics3-8b", 700, 200, 1, 600),
    "padded quarters": ("idefics2-8b", 700, 490, 1, 600),
    "equal quarters": ("idefics2-8b", 300, 300, 2, 200),
}


@pytest.mark.one_in(11)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("alias", "width", "height", "micro_batch", "num_text_tokens"), list(CASES.values()), ids=list(CASES)
)
def test_a_step_keeps_and_peaks_as_in_transformers(
    alias, width, height, micro_batch, num_text_tokens, attention, checkpoints
):
    shape = shape_of(alias, width, height)
    assert_step(
        alias,
        shape,
        micro_batch=micro_batch,
        num_text_tokens=num_text_tokens,
        attention=attention,
        checkpoints=checkpoints,
    )


@pytest.mark.one_in(23)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [VISION, (*VISION, "model.connector.")], ids=["tower", "tower and connector"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("alias", "width", "height", "micro_batch", "num_text_tokens"), list(CASES.values()), ids=list(CASES)
)
def test_a_frozen_tower_keeps_what_transformers_keeps(
    alias, width, height, micro_batch, num_text_tokens, attention, frozen, checkpoints
):
    shape = shape_of(alias, width, height)
    assert_step(
        alias,
        shape,
        micro_batch=micro_batch,
        num_text_tokens=num_text_tokens,
        attention=attention,
        frozen=frozen,
        checkpoints=checkpoints,
    )


def test_features_of_a_tower_in_float32_are_cast_for_a_decoder_in_16_bit():
    """Its output object holds them in float32, and the convolution of the patches keeps its weight's cast."""
    pytest.importorskip("transformers")
    from family_checks import assert_autocast_step_matches

    batch, inputs, floats = samples_of(shape_of("idefics3-8b", 300, 300), 1, 40)
    frozen = ("model.text_model.", "lm_head.")
    assert_autocast_step_matches(small("idefics3-8b"), batch, inputs, floats, frozen=frozen, tolerance=0.001)


def test_a_step_without_images_is_that_of_the_decoder():
    text_steps.assert_step(small("smolvlm-256m"), Batch(micro_batch=2, num_tokens=300), tolerance=0.002)


def test_pictures_of_different_sizes_cost_a_mask_and_a_bias_in_every_layer():
    equal, padded = shape_of("idefics2-8b", 980 * 2, 980 * 2), shape_of("idefics2-8b", 980, 980)
    assert (equal.has_padded_sequences, padded.has_padded_sequences) == (False, True)
    assert equal.num_patches == padded.num_patches
    config = small("idefics2-8b")
    batches = (Batch(micro_batch=1, num_tokens=400, images_per_sample=1, image=image) for image in (equal, padded))
    plain, masked = (predicted_step(config, batch).forward_live for batch in batches)
    num_layers, num_pictures, num_patches = 3, 5, 70 * 70
    # The rest is the boolean mask, and keys and values that the resampler repeats for every head where it has a mask.
    expected = num_layers * num_pictures * num_patches**2 * 2
    assert expected < masked - plain < 1.6 * expected
