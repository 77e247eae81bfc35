"""What only Granite for Docling has: a fine route through its connector, and a rule for wide pages."""

import copy
import random

import pytest
from test_families_of_images import assert_step_of

from seeing_families import FAMILIES
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.errors import InputError

CONFIG, SETTINGS = FAMILIES["granite_docling"].config, FAMILIES["granite_docling"].settings
DENSE = {"max_patches": 6, "dense_max_patches": 12, "dense_max_scale": 0.5, "dense_min_aspect": 1.2}


@pytest.mark.sweep
def test_a_step_on_the_fine_route_keeps_and_peaks_as_in_transformers():
    image = image_shape(CONFIG, {**SETTINGS, "fine_route": True}, width=300, height=200)
    assert_step_of("granite_docling", image, images_per_sample=1)


def test_a_tile_on_the_fine_route_has_four_times_as_many_features():
    coarse = image_shape(CONFIG, SETTINGS, width=300, height=200)
    fine = image_shape(CONFIG, {**SETTINGS, "fine_route": True}, width=300, height=200)
    assert fine.num_placeholder_tokens == 4 * coarse.num_placeholder_tokens
    assert fine.num_tokens - fine.num_placeholder_tokens == coarse.num_tokens - coarse.num_placeholder_tokens


def test_a_fine_route_that_the_model_lacks_is_refused():
    config = copy.deepcopy(CONFIG)
    config["vision_config"]["use_fine_route"] = False
    with pytest.raises(InputError, match="fine_route is True; the model has no fine route"):
        image_shape(config, {**SETTINGS, "fine_route": True}, width=300, height=200)


@pytest.mark.parametrize("factor", [1, 3])
def test_squares_of_patches_that_no_tile_consists_of_are_refused(factor):
    with pytest.raises(InputError, match=f"vision_config.scale_factor is {factor}"):
        build_model({**CONFIG, "vision_config": {**CONFIG["vision_config"], "scale_factor": factor}})


@pytest.mark.parametrize("settings", [DENSE, DENSE | {"dense_max_aspect": 2.0}, {"crop_to_patches": False}, {}])
def test_pages_have_as_many_tiles_as_their_processor_cuts(settings):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    from transformers.models.granite_docling.image_processing_pil_granite_docling import (
        GraniteDoclingImageProcessorPil,
    )

    processor = GraniteDoclingImageProcessorPil(**settings)
    chosen = random.Random("pages")
    for _ in range(100):
        width, height = chosen.randint(50, 6000), chosen.randint(50, 6000)
        shape = image_shape({"model_type": "granite_docling"}, settings, width=width, height=height)
        assert shape.num_vision_sequences == processor.get_number_of_image_patches(height, width), (width, height)
        grid = (shape.num_tile_rows, shape.num_tile_columns)
        assert grid == processor.get_tile_grid(height, width), (width, height)
