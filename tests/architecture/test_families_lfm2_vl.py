"""LFM2-VL against the published checkpoint and against transformers."""

import ast
import importlib.util
import math
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

ALIAS = "lfm2-vl-1.6b"
IMAGE_TOKEN = 99
TEXT = {
    "model_type": "lfm2",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VISION = {
    "model_type": "siglip2_vision_model",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_patches": 64,
    "patch_size": 4,
    "vision_use_head": False,
}
CONFIG = {
    "model_type": "lfm2_vl",
    "text_config": TEXT,
    "vision_config": VISION,
    "image_token_id": IMAGE_TOKEN,
    "projector_hidden_size": 112,
}
PLAIN = {**CONFIG, "projector_use_layernorm": False, "projector_bias": False, "tie_word_embeddings": False}
PREPROCESSOR = {
    "encoder_patch_size": 4,
    "tile_size": 64,
    "min_image_tokens": 16,
    "max_image_tokens": 64,
}
SIZES = {"one tile": (50, 40), "tiles": (200, 100), "filled": (64, 64)}
PICTURES = [(448, 448), (512, 512), (300, 2000), (640, 480), (1024, 700), (4000, 3000), (20, 900), (1250, 1000)]


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table(ALIAS)


WHOLE = pytest.param(packaged_config(ALIAS), marks=pytest.mark.sweep)


@pytest.mark.parametrize("config", [WHOLE, CONFIG, PLAIN], ids=[ALIAS, "defaults", "plain"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def step(config, size, **options):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from vlmplan_trainer.rehearse.pictures import picture_inputs
    from vlmplan_trainer.rehearse.pictures_of_batch import Pictures  # as the trainer's rehearsals lay them out

    image = image_shape(config, PREPROCESSOR, width=size[0], height=size[1])
    num_tokens = image.num_tokens + 40
    batch = Batch(micro_batch=2, num_tokens=num_tokens, images_per_sample=1, image=image)
    ids = torch.arange(2 * num_tokens).reshape(2, num_tokens) % 90
    ids[:, 5 : 5 + image.num_placeholder_tokens] = IMAGE_TOKEN
    sizes = SimpleNamespace(model_type="lfm2_vl", vision_config=SimpleNamespace(patch_size=4))
    values, pixels = picture_inputs(Pictures(sizes, SimpleNamespace(num_images=2), image, ids, IMAGE_TOKEN))
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids), **values}
    assert_step_matches(config, batch, inputs, pixels, **options)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("frozen", [(), ("model.vision_tower",), ("model.language_model", "lm_head")], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, frozen, size):
    step(CONFIG, size, frozen=frozen, attention=attention, tolerance=0.0025)


@pytest.mark.parametrize("config", [CONFIG, pytest.param(PLAIN, marks=pytest.mark.sweep)], ids=["norm", "plain"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(config):
    step(config, SIZES["tiles"], checkpoints=True, tolerance=0.0025)


def test_a_grid_and_a_size_are_those_of_transformers():
    """The functions alone: their file wants torchvision."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None:
        pytest.skip("needs transformers")
    source = Path(found.origin).parent / "models" / "lfm2_vl" / "image_processing_lfm2_vl.py"
    names = {"round_by_factor", "find_closest_aspect_ratio", "_target_ratios", "_get_grid_layout", "smart_resize"}
    names.add("_is_image_too_large")
    functions = [
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    space = {"math": math, "lru_cache": lru_cache}
    exec(compile(ast.Module(functions, []), str(source), "exec"), space)
    processor = SimpleNamespace(_target_ratios=lambda least, most: space["_target_ratios"](None, least, most))
    patches = {"encoder_patch_size": 16, "downsample_factor": 2, "max_image_tokens": 256}
    for width, height in PICTURES:
        size = {"height": height, "width": width}
        shape = image_shape(packaged_config(ALIAS), {}, **size)
        whole = space["smart_resize"](None, **size, **patches, min_image_tokens=64)
        if space["_is_image_too_large"](None, **size, **patches, max_pixels_tolerance=2.0):
            columns, rows, *_ = space["_get_grid_layout"](processor, **size, min_tiles=2, max_tiles=10, tile_size=512)
            assert (shape.num_tile_columns, shape.num_tile_rows) == (columns, rows)
            assert (shape.num_unpadded_columns * 16, shape.num_unpadded_rows * 16) == whole
            assert shape.num_placeholder_tokens == columns * rows * 256 + whole[0] * whole[1] // 32**2
        else:
            assert (shape.resized_width, shape.resized_height) == whole
            assert shape.num_placeholder_tokens == whole[0] * whole[1] // 32**2


def test_every_tile_and_the_whole_image_have_a_token_before_them():
    shape = image_shape(packaged_config(ALIAS), None, width=2000, height=1000)
    assert (shape.num_tile_columns, shape.num_tile_rows) == (4, 2)
    whole = 22 * 11  # of 256: each side a multiple of two patches
    assert shape.num_placeholder_tokens == 4 * 2 * 256 + whole
    assert shape.num_tokens == shape.num_placeholder_tokens + (4 * 2 + 1) + 2


def test_another_tower_is_refused():
    with pytest.raises(InputError, match='model_type is "clip_vision_model"; siglip2_vision_model is needed'):
        build_model({**CONFIG, "vision_config": {**VISION, "model_type": "clip_vision_model"}})


def test_tolerances_and_numbers_of_tiles_that_cannot_be_are_refused():
    for settings, words in (
        ({"max_pixels_tolerance": 0}, "a number above 0"),
        ({"min_tiles": 11}, "at most max_tiles"),
    ):
        with pytest.raises(InputError, match=words):
            image_shape(packaged_config(ALIAS), settings, width=448, height=448)


def test_text_alone_runs_without_the_tower():
    alone = predicted_step(CONFIG, Batch(micro_batch=1, num_tokens=64))
    assert alone.trace is not None
    assert not any(key.startswith("vision") for key in alone.trace.sections)
