import json
from importlib.resources import files

import pytest

import text_steps
from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

ALIAS = "llama-3.2-11b-vision"
VISION = ("model.vision_model.",)
WIDTH = 1280


def changed(*, text=None, vision=None, **changes):
    config = packaged_config(ALIAS, **changes)
    config["text_config"] = {**config["text_config"], **(text or {})}
    config["vision_config"] = {**config["vision_config"], **(vision or {})}
    return config


def small(*, image_size=280, num_layers=4, cross_layers=(1, 3), intermediate_layers=(0, 2)):
    """Few layers and a small vocabulary, so that activations and not logits make the peaks."""
    return changed(
        text={
            "num_hidden_layers": num_layers,
            "cross_attention_layers": list(cross_layers),
            "vocab_size": 2000,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        vision={
            "num_hidden_layers": max(intermediate_layers) + 2,
            "num_global_layers": 2,
            "image_size": image_size,
            "intermediate_layers_indices": list(intermediate_layers),
            "vision_output_dim": WIDTH * (1 + len(intermediate_layers)),
        },
        image_token_index=2000,
    )


ALTERED = {
    "fewer layers": changed(
        text={"num_hidden_layers": 5, "cross_attention_layers": [0, 4], "vocab_size": 5000, "pad_token_id": 0},
        vision={"num_hidden_layers": 4, "num_global_layers": 1, "intermediate_layers_indices": [1, -1]},
    ),
    "other widths, and a tie that the original has no keys for": changed(
        text={"num_hidden_layers": 3, "cross_attention_layers": [2], "hidden_size": 1024, "num_attention_heads": 16},
        vision={
            "num_hidden_layers": 31,
            "hidden_size": 640,
            "attention_heads": 8,
            "max_num_tiles": 2,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            "vision_output_dim": 3840,
        },
        tie_word_embeddings=True,
    ),
    "class defaults": {"model_type": "mllama"},
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table(ALIAS)


@pytest.mark.parametrize("config", [packaged_config(ALIAS), *ALTERED.values()], ids=[ALIAS, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def batch_of(config, *, micro_batch, num_tokens, num_images):
    path = files("vlmplan").joinpath("data", "models", ALIAS, "preprocessor_config.json")
    size = config["vision_config"]["image_size"]
    preprocessor = {**json.loads(path.read_text(encoding="utf-8")), "size": {"height": size, "width": size}}
    shape = image_shape(config, preprocessor, width=1000, height=600)
    return Batch(micro_batch=micro_batch, num_tokens=num_tokens, images_per_sample=num_images, image=shape)


def assert_step(config, *, micro_batch=1, num_tokens=600, num_images=1, **options):
    pytest.importorskip("transformers")
    import torch

    from family_checks import assert_step_matches, text_inputs

    batch = batch_of(config, micro_batch=micro_batch, num_tokens=num_tokens, num_images=num_images)
    num_tiles = batch.image.num_vision_sequences
    inputs = text_inputs(batch)
    inputs["aspect_ratio_ids"] = torch.full((micro_batch, num_images), 2)
    inputs["aspect_ratio_mask"] = torch.tensor([1, 1, 0, 0]).repeat(micro_batch, num_images, 1)
    inputs["cross_attention_mask"] = torch.zeros((micro_batch, num_tokens, num_images, num_tiles), dtype=torch.int64)
    inputs["cross_attention_mask"][:, 5:, :, :2] = 1
    size = config["vision_config"]["image_size"]
    floats = {"pixel_values": (micro_batch, num_images, num_tiles, 3, size, size)}
    assert_step_matches(config, batch, inputs, floats, tolerance=0.002, **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, checkpoints):
    assert_step(small(), attention=attention, checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_with_two_images_in_two_samples_is_that_of_transformers(attention):
    assert_step(small(), micro_batch=2, num_images=2, num_tokens=300, attention=attention)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_step_at_the_published_image_size_is_that_of_transformers(checkpoints):
    assert_step(small(image_size=560, num_layers=3, cross_layers=(1,)), num_tokens=100, checkpoints=checkpoints)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("frozen", [VISION, ("model.language_model.", "lm_head.")], ids=["tower", "decoder"])
def test_frozen_parts_keep_what_transformers_keeps(frozen, attention, checkpoints):
    config = small(intermediate_layers=(3, 5), cross_layers=(1,))
    assert_step(config, frozen=frozen, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_without_an_image_the_cross_attention_layers_are_skipped(checkpoints):
    batch = Batch(micro_batch=2, num_tokens=300)
    text_steps.assert_step(small(), batch, checkpoints=checkpoints, tolerance=0.002)


def test_checkpointing_does_not_reach_the_tower():
    config = small()
    batch = batch_of(config, micro_batch=1, num_tokens=2, num_images=1)
    plain, checkpointed = (predicted_step(config, batch, checkpoints=on).forward_live for on in (False, True))
    # fc1 and gelu alone: five layers over four padded tiles of 401 tokens, 408 with the padding to a multiple of 8
    assert checkpointed > 0.8 * plain > 0.8 * 5 * 2 * 4 * 408 * 5120 * 2


def test_flash_attention_is_refused_as_in_transformers():
    config = small()
    with pytest.raises(InputError, match="flash_attention_2"):
        predicted_step(config, Batch(micro_batch=1, num_tokens=8), implementation="flash_attention_2")
