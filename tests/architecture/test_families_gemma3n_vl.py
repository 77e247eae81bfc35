"""Gemma 3n with its towers. ``test_timm_steps`` holds it to what transformers' own model takes."""

import pytest

from model_table import assert_counts_match_the_table
from timm_cases import GEMMA3N
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError, UnknownNameError


@pytest.mark.parametrize("alias", ["gemma-3n-e2b", "gemma-3n-e4b"])
def test_counts_are_those_of_the_real_class(alias):
    assert_counts_match_the_table(alias)


def test_the_audio_tower_freezes_with_the_vision_tower_and_both_embedders_are_projectors():
    model = build_model(GEMMA3N)
    assert model.part_of("model.audio_tower.conformer.0.attention.post") is Part.VISION
    assert model.part_of("model.embed_audio.embedding_projection") is Part.PROJECTOR
    assert model.part_of("model.embed_vision.embedding") is Part.PROJECTOR


def test_every_image_has_as_many_tokens_whatever_its_size():
    for width, height in ((100, 2000), (768, 768)):
        shape = image_shape(GEMMA3N, None, width=width, height=height)
        assert (shape.num_placeholder_tokens, shape.num_tokens) == (16 * 16, 16 * 16 + 4)
        assert (shape.resized_width, shape.resized_height) == (768, 768)


@pytest.mark.parametrize(
    "settings", [{"size": {"height": 700, "width": 768}}, {"size": {"height": 768, "width": 1000}}]
)
def test_sides_that_are_not_averaged_to_the_features_are_refused(settings):
    with pytest.raises(InputError, match="sides that are multiples of 256"):
        image_shape(GEMMA3N, settings, width=480, height=480)


def test_another_tower_of_timm_is_refused():
    with pytest.raises(UnknownNameError, match="mobilenetv5_300m_enc"):
        build_model({**GEMMA3N, "vision_config": {"architecture": "resnet50"}})
    with pytest.raises(InputError, match=r"vision_config\.model_args"):
        build_model({**GEMMA3N, "vision_config": {"model_args": {"depth": 3}}})


def test_kernels_of_the_audio_tower_are_two_pairs_that_fit_its_spectrogram():
    with pytest.raises(InputError, match="wider than input_feat_size"):
        build_model({**GEMMA3N, "audio_config": {"input_feat_size": 1, "sscp_conv_kernel_size": [[3, 5], [3, 5]]}})
    with pytest.raises(InputError, match="sscp_conv_kernel_size"):
        build_model({**GEMMA3N, "audio_config": {"sscp_conv_kernel_size": [[3, 3]]}})
