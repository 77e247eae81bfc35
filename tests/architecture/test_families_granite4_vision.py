"""What only Granite 4 Vision has: windows of a tile's patches, and decoder layers that features are added before."""

import pytest

from seeing_families import CLIP, FAMILIES
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.errors import InputError

CONFIG, SETTINGS = FAMILIES["granite4_vision"].config, FAMILIES["granite4_vision"].settings


def shape(**changes):
    return image_shape({**CONFIG, **changes}, SETTINGS, width=300, height=200)


def test_each_window_leaves_its_queries():
    by_half, by_quarter = shape(downsample_rate="2/4"), shape(downsample_rate="1/4")
    # Two by two tiles of 8 x 8 patches, and the whole: rows that only cover padding are cut off, others have a newline.
    assert by_half.num_placeholder_tokens == 4 * 4 + 6 * (8 + 1)
    assert by_quarter.num_placeholder_tokens == 2 * 2 + 2 * (4 + 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"downsample_rate": "half"}, 'downsample_rate is "half"'),
        ({"downsample_rate": None}, "downsample_rate is null"),
        ({"downsample_rate": "1/3"}, "8 patches a side, which are no whole windows of 3"),
        ({"vision_feature_select_strategy": "default"}, "vision_feature_select_strategy goes with the tower"),
        ({"vision_config": CLIP}, "vision_feature_select_strategy goes with the tower"),
    ],
)
def test_windows_that_tiles_do_not_make_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        shape(**changes)


@pytest.mark.parametrize("value", [None, [1, 2], [[1, 2, 3]], [["a", 0]]])
def test_a_map_of_depths_that_is_no_list_of_pairs_is_refused(value):
    with pytest.raises(InputError, match=r"deepstack_layer_map is .*a list of pairs of layers"):
        build_model({**CONFIG, "deepstack_layer_map": value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"deepstack_layer_map": [[9, 0]]}, "deepstack_layer_map names layer 9; the vision tower has 4 layers"),
        ({"spatial_vision_layer": -6}, "spatial_vision_layer names layer -6; the vision tower has 4 layers"),
        ({"spatial_vision_layer": "last"}, "spatial_vision_layer is .*a list of integers"),
        ({"downsample_rate": "1/4"}, "downsample_rate is 1/4; .* one half is needed"),
    ],
)
def test_depths_and_corners_that_the_tower_does_not_have_are_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        build_model({**CONFIG, **changes})


def test_layers_that_features_are_added_before_begin_a_stretch_of_their_own():
    model = build_model({**CONFIG, "deepstack_layer_map": [[-1, 0], [2, 2], [1, 40]], "spatial_target_layers": [2]})
    assert model.module("model.language_model").stretches == [(0, 2), (2, 3)]
