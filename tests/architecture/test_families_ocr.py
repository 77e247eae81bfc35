"""GLM-OCR, LightOnOCR and PaddleOCR-VL against transformers."""

import copy

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part

TOWERS = ["model.visual", "model.vision_encoder"]
DECODER = ["model.language_model", "lm_head"]
TEXT = {"num_hidden_layers": 3, "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
GLM = {
    "model_type": "glm_ocr",
    "image_token_id": 999,
    "video_token_id": 998,
    "image_start_token_id": 997,
    "image_end_token_id": 996,
    "video_start_token_id": 995,
    "video_end_token_id": 994,
    "text_config": {
        "model_type": "glm_ocr_text",
        **TEXT,
        **HEADS,
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "partial_rotary_factor": 1.0},
    },
    "vision_config": {
        "depth": 4,
        "hidden_size": 192,
        "num_heads": 3,
        "intermediate_size": 448,
        "out_hidden_size": 256,
        "patch_size": 14,
    },
}
LIGHTON = {
    "model_type": "lighton_ocr",
    "image_token_id": 999,
    "text_config": {"model_type": "qwen3", **TEXT, **HEADS},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 192,
        "intermediate_size": 448,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "head_dim": 64,
        "image_size": 1540,
        "patch_size": 14,
        "hidden_act": "silu",
    },
}
PADDLE = {
    "model_type": "paddleocr_vl",
    "image_token_id": 999,
    "text_config": {
        **TEXT,
        **HEADS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [8, 12, 12]},
    },
    "vision_config": {
        "hidden_size": 192,
        "intermediate_size": 448,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "image_size": 112,
        "patch_size": 14,
    },
}
CONFIGS = {"glm_ocr": GLM, "lighton_ocr": LIGHTON, "paddleocr_vl": PADDLE}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
FROZEN = pytest.mark.parametrize("frozen", [(), TOWERS, DECODER], ids=["all", "no tower", "no decoder"])


def altered(config, text=(), vision=(), **changes):
    config = {**copy.deepcopy(config), **changes}
    config["text_config"] |= dict(text)
    config["vision_config"] |= dict(vision)
    return config


ALTERED = {
    "glm_ocr by default": {"model_type": "glm_ocr"},
    "lighton_ocr by default": {"model_type": "lighton_ocr"},
    "glm_ocr without biases": altered(GLM, {"attention_bias": True}, {"attention_bias": False, "in_channels": 1}),
    "paddleocr_vl by default": {"model_type": "paddleocr_vl"},
    "paddleocr_vl, flat": {"model_type": "paddleocr_vl", **TEXT, "use_bias": True, "num_key_value_heads": 4},
    "paddleocr_vl with an own head": altered(PADDLE, tie_word_embeddings=False),
    "lighton_ocr with an own head": altered(LIGHTON, tie_word_embeddings=False, spatial_merge_size=3),
}


@pytest.mark.parametrize("config", [*CONFIGS.values(), *ALTERED.values()], ids=[*CONFIGS, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(4)
@FROZEN
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(4)
@FROZEN
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, checkpoints=True, frozen=frozen, tolerance=0.01, backward_tolerance=0.001)


def test_what_merged_patches_leave_of_an_image_is_no_token():
    shape = image_shape(LIGHTON, {"patch_size": 14, "size": {"longest_edge": 1540}}, width=500, height=300)
    assert (shape.resized_width, shape.resized_height) == (504, 308)
    assert (shape.num_patch_columns, shape.num_patch_rows) == (36, 22)
    odd = image_shape(LIGHTON, {"patch_size": 14}, width=490, height=294)
    assert (odd.num_patch_columns * odd.num_patch_rows, odd.num_tokens) == (35 * 21, 17 * 10)


def test_towers_and_what_maps_to_the_decoder_are_parts():
    glm, lighton, paddle = (build_model(config) for config in (GLM, LIGHTON, PADDLE))
    assert paddle.part_of("model.projector.pre_norm.weight") is Part.PROJECTOR
    assert paddle.part_of("model.visual.vision_model.post_layernorm.weight") is Part.VISION
    assert glm.part_of("model.visual.downsample.weight") is Part.PROJECTOR
    assert glm.part_of("model.visual.post_layernorm.weight") is Part.VISION
    assert lighton.part_of("model.vision_projection.norm.weight") is Part.PROJECTOR
    assert lighton.part_of("model.vision_encoder.ln_pre.weight") is Part.VISION


def assert_step(config, *, images_per_sample=2, **options):
    pytest.importorskip("transformers")
    from patch_batches import step

    from family_checks import assert_step_matches
    from image_batches import image_step

    if config["model_type"] != "lighton_ocr":
        made = step(config, "", (480, 330), images_per_sample=images_per_sample)
        if config["model_type"] == "paddleocr_vl":  # its patches are small pictures
            made.floats["pixel_values"] = (made.floats["pixel_values"][0], 3, 14, 14)
    else:
        made = image_step(config, {"patch_size": 14}, (490, 330), images_per_sample=images_per_sample)
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)


PREPROCESSORS = {
    "paddleocr_vl": {"image_processor_type": "PaddleOCRVLImageProcessor", "min_pixels": 9000, "max_pixels": 900000},
    "glm_ocr": {"processor_class": "Glm46VProcessor", "image_processor_type": "Glm46VImageProcessor"},
    "lighton_ocr": {"image_processor_type": "PixtralImageProcessor", "patch_size": 14, "size": {"longest_edge": 1540}},
}


@pytest.mark.parametrize(("width", "height"), [(448, 448), (700, 333), (1920, 1080), (97, 1201)])
@EACH
def test_images_become_as_many_tokens_and_patches_as_their_processors_make(config, width, height):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.processors.processing import processed

    settings = PREPROCESSORS[config["model_type"]]
    asked = {"width": width, "height": height, "images_per_sample": 1, "num_samples": 1}
    found = processed(configuration(copy.deepcopy(config)), dict(settings), **asked)
    shape = image_shape(config, settings, width=width, height=height)
    assert found.num_placeholders == shape.num_placeholder_tokens
    pixels = tuple(found.tensors["pixel_values"].shape)
    if config["model_type"] != "lighton_ocr":
        assert pixels[0] == shape.num_patches
    else:
        assert pixels == (1, 3, shape.resized_height, shape.resized_width)
