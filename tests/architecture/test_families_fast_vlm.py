"""FastVLM with timm's tower. ``test_timm_steps`` holds it to what transformers' own model takes."""

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from timm_cases import FAST_VLM
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError, UnknownNameError

TOWER = {"architecture": "fastvit_mci3", "hidden_size": 3072, "model_args": {"inference_mode": True}}


@pytest.mark.parametrize("alias", ["fastvlm-0.5b", "fastvlm-1.5b", "fastvlm-7b"])
def test_counts_are_those_of_the_real_class(alias):
    assert_counts_match_the_table(alias)


def test_a_tower_that_is_left_out_or_named_with_a_checkpoint_is_the_published_one():
    left_out, written = build_model(FAST_VLM), build_model({**FAST_VLM, "vision_config": TOWER})
    tagged = build_model({**FAST_VLM, "vision_config": {**TOWER, "architecture": "fastvit_mci3.apple_mclip2_dfndr2b"}})
    numels = [[entry.parameter.numel for entry in model.parameters()] for model in (left_out, written, tagged)]
    assert numels[0] == numels[1] == numels[2]
    assert left_out.part_of("model.vision_tower.timm_model.final_conv.se.fc1") is Part.VISION


def test_every_image_has_a_token_for_64_pixels_a_side_of_the_cropped_square():
    for width, height in ((100, 2000), (768, 768)):
        shape = image_shape(packaged_config("fastvlm-0.5b"), None, width=width, height=height)
        assert (shape.num_placeholder_tokens, shape.num_tokens) == (1024 // 64 * (1024 // 64),) * 2
        assert (shape.resized_width, shape.resized_height) == (1024, 1024)


def test_sides_of_which_the_tower_makes_another_number_of_features_are_refused():
    sides = {"crop_size": {"height": 1000, "width": 1000}, "size": {"shortest_edge": 1000}}
    with pytest.raises(InputError, match="multiples of that"):
        image_shape(FAST_VLM, sides, width=480, height=480)


@pytest.mark.parametrize("arguments", [None, {"inference_mode": False}, {"inference_mode": True, "layers": [2]}])
def test_a_tower_with_the_branches_that_it_was_trained_with_is_refused(arguments):
    with pytest.raises(InputError, match=r"vision_config\.model_args"):
        build_model({**FAST_VLM, "vision_config": {**TOWER, "model_args": arguments}})


def test_another_tower_or_another_choice_of_features_is_refused():
    with pytest.raises(UnknownNameError, match="fastvit_mci3"):
        build_model({**FAST_VLM, "vision_config": {**TOWER, "architecture": "resnet50"}})
    with pytest.raises(InputError, match="vision_feature_layer"):
        build_model({**FAST_VLM, "vision_feature_layer": -2})
    with pytest.raises(InputError, match="vision_feature_select_strategy"):
        build_model({**FAST_VLM, "vision_feature_select_strategy": "default"})
