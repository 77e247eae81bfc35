"""Gemma 4 with its towers against transformers: padded patches, pooled features, and an audio tower beside them."""

import pytest

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match
from gemma4_cases import SEVENTY, step
from model_table import assert_counts_match_the_table
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError

TEXT = {
    "model_type": "gemma4_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 64,
    "use_bidirectional_attention": "vision",
}
VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "position_embedding_size": 64,
    "standardize": True,
}
LARGE = {"model_type": "gemma4", "text_config": TEXT, "vision_config": VISION, "image_token_id": 99}
LARGE |= {"video_token_id": 98, "audio_token_id": 97}
AUDIO = {"model_type": "gemma4_audio", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
PARTS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100, "use_bidirectional_attention": None}
SMALL = {
    **LARGE,
    "text_config": {**TEXT, **PARTS},
    "vision_config": {**VISION, "use_clipped_linears": True, "standardize": False},
    "audio_config": AUDIO,
}
CONFIGS = {"large": LARGE, "small": SMALL}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(480, 336), (320, 480)], ids=["every patch is used", "patches fill up"])
def test_a_step_keeps_and_peaks_as_in_transformers(size, name, checkpoints):
    step(CONFIGS[name], *size, checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_videos_takes_what_its_frames_do(name, checkpoints):
    step(CONFIGS[name], 320, 480, micro_batch=1, num_frames=2, checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CONFIGS)
def test_a_frozen_tower_keeps_nothing(name):
    step(CONFIGS[name], 320, 480, frozen=["model.vision_tower"], tolerance=0.002)
    step(CONFIGS[name], 320, 480, frozen=["model.vision_tower", "model.embed_vision"], tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CONFIGS)
def test_eager_attention_keeps_and_peaks_as_in_transformers(name):
    step(CONFIGS[name], 320, 480, attention="eager", tolerance=0.002)


@pytest.mark.parametrize("alias", ["gemma-4-e2b", "gemma-4-e4b", "gemma-4-26b-a4b", "gemma-4-31b"])
def test_counts_are_those_of_the_real_class(alias):
    assert_counts_match_the_table(alias)


def test_the_audio_tower_freezes_with_the_vision_tower():
    model = build_model(SMALL)
    assert model.part_of("model.audio_tower.layers.0.self_attn.post.linear") is Part.VISION
    assert model.part_of("model.embed_audio.embedding_projection") is Part.PROJECTOR


@pytest.mark.parametrize(
    ("size", "tokens"), [((480, 336), 10 * 7), ((1000, 1000), 8 * 8), ((320, 480), 6 * 10), ((9600, 40), 70)]
)
def test_images_fill_the_budget_of_tokens_at_their_proportions(size, tokens):
    shape = image_shape(LARGE, SEVENTY, width=size[0], height=size[1])
    assert (shape.num_placeholder_tokens, shape.num_tokens) == (tokens, tokens + 2)
    assert shape.num_patches + shape.num_padding_patches == 70 * 3 * 3


def test_a_budget_that_the_processor_refuses_is_refused():
    with pytest.raises(InputError, match=r"max_soft_tokens is 100; one of 70, 140, 280, 560, 1120 is needed"):
        image_shape(LARGE, {"max_soft_tokens": 100}, width=480, height=480)
