"""Gemma 3n with its towers, held to what transformers' own model with timm's tower takes (``gemma3n_steps.json``)."""

import json
from pathlib import Path

import pytest

from gemma3n_cases import CASES, PEAKS, SMALL, described, predicted
from model_table import assert_counts_match_the_table, packaged_config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError, UnknownNameError

STORED = json.loads((Path(__file__).parent / "gemma3n_steps.json").read_text(encoding="utf-8"))
EXACT = 0.001


@pytest.mark.parametrize("name", ["small", "gemma-3n-e2b", "gemma-3n-e4b"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_the_real_model(name):
    config = SMALL if name == "small" else packaged_config(name)
    assert described(build_model(config)) == STORED["models"][name]


@pytest.mark.parametrize("name", CASES)
def test_a_step_keeps_and_peaks_as_the_real_model(name):
    found = predicted(CASES[name])
    assert found.end_live == 0
    assert {peak: getattr(found, peak) for peak in PEAKS} == pytest.approx(STORED["steps"][name], rel=EXACT)


@pytest.mark.sweep
def test_what_is_stored_is_what_the_real_model_takes_where_timm_is_installed():
    pytest.importorskip("timm", exc_type=ImportError)
    from tools.gemma3n_steps import found

    assert {key: found()[key] for key in ("models", "steps")} == {key: STORED[key] for key in ("models", "steps")}


@pytest.mark.parametrize("alias", ["gemma-3n-e2b", "gemma-3n-e4b"])
def test_counts_are_those_of_the_real_class(alias):
    assert_counts_match_the_table(alias)


def test_the_audio_tower_freezes_with_the_vision_tower_and_both_embedders_are_projectors():
    model = build_model(SMALL)
    assert model.part_of("model.audio_tower.conformer.0.attention.post") is Part.VISION
    assert model.part_of("model.embed_audio.embedding_projection") is Part.PROJECTOR
    assert model.part_of("model.embed_vision.embedding") is Part.PROJECTOR


def test_every_image_has_as_many_tokens_whatever_its_size():
    for width, height in ((100, 2000), (768, 768)):
        shape = image_shape(SMALL, None, width=width, height=height)
        assert (shape.num_placeholder_tokens, shape.num_tokens) == (16 * 16, 16 * 16 + 4)
        assert (shape.resized_width, shape.resized_height) == (768, 768)


@pytest.mark.parametrize(
    "settings", [{"size": {"height": 700, "width": 768}}, {"size": {"height": 768, "width": 1000}}]
)
def test_sides_that_are_not_averaged_to_the_features_are_refused(settings):
    with pytest.raises(InputError, match="sides that are multiples of 256"):
        image_shape(SMALL, settings, width=480, height=480)


def test_another_tower_of_timm_is_refused():
    with pytest.raises(UnknownNameError, match="mobilenetv5_300m_enc"):
        build_model({**SMALL, "vision_config": {"architecture": "resnet50"}})
    with pytest.raises(InputError, match=r"vision_config\.model_args"):
        build_model({**SMALL, "vision_config": {"model_args": {"depth": 3}}})


def test_kernels_of_the_audio_tower_are_two_pairs_that_fit_its_spectrogram():
    with pytest.raises(InputError, match="wider than input_feat_size"):
        build_model({**SMALL, "audio_config": {"input_feat_size": 1, "sscp_conv_kernel_size": [[3, 5], [3, 5]]}})
    with pytest.raises(InputError, match="sscp_conv_kernel_size"):
        build_model({**SMALL, "audio_config": {"sscp_conv_kernel_size": [[3, 3]]}})
