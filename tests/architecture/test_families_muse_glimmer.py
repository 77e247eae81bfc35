"""Muse Glimmer against transformers: windows in the tower, gates and layers without positions in the decoder."""

import ast
import itertools
import math
from pathlib import Path

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Part
from vlmplan.errors import InputError

TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
MUSE = {
    "model_type": "muse_glimmer",
    "image_token_id": 999,
    "video_token_id": 998,
    "out_hidden_size": 1024,
    "projector_hidden_size": 192,
    "text_config": {
        "num_hidden_layers": 6,
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "sliding_window": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "vision_config": {
        "num_hidden_layers": 6,
        "hidden_size": 256,
        "intermediate_size": 448,
        "num_attention_heads": 4,
        "pos_emb_height": 16,
        "pos_emb_width": 16,
        "patch_size": 14,
    },
}
ODD = {
    **MUSE,
    "projector_hidden_size": 88,
    "projector_hidden_act": "gelu_pytorch_tanh",
    "out_hidden_size": 4 * 120,
    "text_config": {
        **MUSE["text_config"],
        "num_hidden_layers": 3,
        "hidden_size": 200,
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "layer_rope_theta": [10000.0, 0, 0],
    },
    "vision_config": {
        **MUSE["vision_config"],
        "hidden_size": 120,
        "intermediate_size": 200,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "pos_emb_height": 11,
        "pos_emb_width": 11,
        "layer_types": ["full_attention", *["window_attention"] * 2],
    },
}
EACH = pytest.mark.parametrize("config", [MUSE, ODD], ids=["powers", "odd"])
FROZEN = pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])


@pytest.mark.parametrize("config", [MUSE, ODD, {"model_type": "muse_glimmer"}], ids=["powers", "odd", "by default"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, frozen):
    """On CPU layer norms of bfloat16 keep what they have found in bfloat16, on a GPU in float32."""
    assert_step(config, frozen=frozen, tolerance=0.002)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, checkpoints=True, tolerance=0.005, backward_tolerance=0.001)


@pytest.mark.one_in(2)
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, attention="eager", checkpoints=config is ODD, tolerance=0.005, backward_tolerance=0.001)


def assert_step(config, **options):
    pytest.importorskip("transformers")
    import torch
    from patch_batches import step

    from family_checks import assert_step_matches

    made = step(config, "", (480, 330), images_per_sample=2)
    image, num_images = made.batch.image, made.batch.num_images
    grids = torch.tensor([[1, image.num_patch_rows, image.num_patch_columns]] * num_images)
    pixels = {"pixel_values": (num_images * image.num_patches, 2 * 3 * 14**2)}
    assert_step_matches(made.config, made.batch, {**made.inputs, "image_grid_thw": grids}, pixels, **options)


@pytest.mark.parametrize("settings", [{}, {"max_image_tokens": 300}], ids=str)
@pytest.mark.parametrize("sides", [(448, 448), (700, 333), (9000, 5000), (97, 1201), (3, 50), (9999, 20)], ids=str)
def test_images_become_as_many_tokens_as_the_processor_makes(sides, settings):
    package = pytest.importorskip("transformers").__path__[0]
    source = Path(package, "models", "muse_glimmer", "image_processing_muse_glimmer.py").read_text(encoding="utf-8")
    named = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == "smart_resize"]
    scope = {"math": math, "itertools": itertools}
    exec(compile(ast.Module(named, []), source, "exec"), scope)  # its module imports torchvision
    width, height = sides
    resized = scope["smart_resize"](height, width, 28, settings.get("max_image_tokens", 4096))
    shape = image_shape(MUSE, settings, width=width, height=height)
    assert (shape.resized_height, shape.resized_width) == resized
    assert shape.num_patches == 4 * (shape.num_tokens - 2) == math.prod(resized) // 14**2


def test_tower_and_what_maps_to_the_decoder_are_parts():
    model = build_model(MUSE)
    assert model.part_of("model.vision_tower.ln_pre.weight") is Part.VISION
    assert model.part_of("model.vision_adapter.fc1.weight") is Part.PROJECTOR
    assert model.part_of("model.vision_projection.weight") is Part.PROJECTOR


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("vision_config", {"layer_types": ["sliding_attention"] * 6}, "names out of full_attention and window"),
        ("text_config", {"layer_rope_theta": [1.0]}, "layer_rope_theta is .* for each of 6 layers"),
    ],
)
def test_what_cannot_be_is_refused(section, changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**MUSE, section: {**MUSE[section], **changes}})
