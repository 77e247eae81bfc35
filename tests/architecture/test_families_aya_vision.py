"""Aya Vision and Command A Vision against transformers."""

import copy
from importlib.util import find_spec

import pytest

from tape_probe import predicted_step
from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError

TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
TEXT = {
    "model_type": "cohere2",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "patch_size": 14,
    "image_size": 168,
}
AYA = {
    "model_type": "aya_vision",
    "image_token_index": 999,
    "text_config": TEXT,
    "vision_config": {**VISION, "vision_use_head": False},
}
COMMAND = {
    "model_type": "cohere2_vision",
    "image_token_id": 999,
    "alignment_intermediate_size": 1024,
    "text_config": TEXT,
    "vision_config": VISION,
}
CONFIGS = {
    "aya_vision": AYA,
    "aya_vision of two layers": {**AYA, "vision_feature_layer": [-2, 1], "alignment_intermediate_size": 700},
    "cohere2_vision": COMMAND,
}
ALTERED = {
    "cohere2_vision by default": {"model_type": "cohere2_vision"},
    "cohere2_vision with an own head": {**COMMAND, "tie_word_embeddings": False, "downsample_factor": 3},
    "aya_vision with a Cohere 1": {**AYA, "text_config": {**TEXT, "model_type": "cohere", "use_qk_norm": True}},
}
# The two layers' features are wider than one's.
PARAMETERS = {name: one for name, one in CONFIGS.items() if "two layers" not in name} | ALTERED
FROZEN = pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])
STEPS = pytest.mark.parametrize("config", [AYA, COMMAND], ids=["aya_vision", "cohere2_vision"])
SIDE = 364
SETTINGS = {"crop_to_patches": True, "size": {"height": SIDE, "width": SIDE}}


@pytest.mark.parametrize("config", PARAMETERS.values(), ids=PARAMETERS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@FROZEN
@STEPS
def test_a_step_keeps_and_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(5)
@FROZEN
@STEPS
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, checkpoints=True, frozen=frozen, tolerance=0.01, backward_tolerance=0.001)


def assert_step(config, **options):
    pytest.importorskip("transformers")
    from patch_batches import step

    from family_checks import assert_step_matches

    made = step(config, "", (400, 300))
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)


def test_the_tower_and_what_maps_to_the_decoder_are_parts():
    for config in (AYA, COMMAND):
        model = build_model(config)
        assert model.part_of("model.vision_tower.post_layernorm.weight") is Part.VISION
        assert model.part_of("model.multi_modal_projector.linear_1.weight") is Part.PROJECTOR


def test_features_that_are_no_square_of_merged_ones_are_refused():
    image = image_shape(COMMAND, None, width=100, height=100)
    batch = Batch(micro_batch=1, num_tokens=200, images_per_sample=1, image=image)
    with pytest.raises(InputError, match="downsample_factor"):
        predicted_step({**COMMAND, "downsample_factor": 5}, batch)


@pytest.mark.parametrize(
    ("size", "grid"), [((400, 300), (3, 2)), ((100, 100), (1, 1)), ((2000, 300), (7, 1)), ((4000, 4000), (3, 3))]
)
def test_command_a_vision_takes_the_canvas_that_an_image_is_enlarged_least_for(size, grid):
    shape = image_shape(COMMAND, None, width=size[0], height=size[1])
    assert (shape.num_tile_columns, shape.num_tile_rows) == grid
    num_tiles = grid[0] * grid[1] + (grid != (1, 1))
    assert shape.num_placeholder_tokens == num_tiles * (168 // 14 // 2) ** 2
    assert shape.num_tokens == shape.num_placeholder_tokens + num_tiles + 2


@pytest.mark.parametrize(("width", "height"), [(448, 448), (700, 333), (1920, 1080), (97, 1201)])
@STEPS
def test_images_become_as_many_tokens_and_tiles_as_their_processors_make(config, width, height):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    if config is COMMAND and find_spec("torchvision") is None:
        pytest.skip("its processor needs torchvision")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.processors.processing import processed

    kind = "GotOcr2ImageProcessor" if config is AYA else "Cohere2VisionImageProcessor"
    settings = {**SETTINGS, "image_processor_type": kind} | ({} if config is AYA else {"patch_size": SIDE // 28})
    config = {**config, "vision_config": {**config["vision_config"], "image_size": SIDE}}
    asked = {"width": width, "height": height, "images_per_sample": 1, "num_samples": 1}
    found = processed(configuration(copy.deepcopy(config)), dict(settings), **asked)
    shape = image_shape(config, settings, width=width, height=height)
    assert (found.num_tokens, found.num_placeholders) == (shape.num_tokens, shape.num_placeholder_tokens)
    assert found.tensors["pixel_values"].shape == (shape.num_vision_sequences, 3, SIDE, SIDE)
