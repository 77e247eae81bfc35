"""Molmo 2 against transformers: all hidden states of a tower, pooled patches, tokens of images that see each other."""

import ast
import itertools
import math
from pathlib import Path

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError

TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
MOLMO = {
    "model_type": "molmo2",
    "image_patch_id": 999,
    "image_start_token_id": 998,
    "low_res_image_start_token_id": 997,
    "image_end_token_id": 996,
    "frame_start_token_id": 995,
    "frame_end_token_id": 994,
    "text_config": {
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "additional_vocab_size": 24,
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "vision_config": {
        "num_hidden_layers": 5,
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "image_size": [126, 126],
    },
    "adapter_config": {
        "vision_feature_layer": [4, 2],
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "intermediate_size": 384,
        "text_hidden_size": 256,
    },
}
ODD = {
    **MOLMO,
    "text_config": {
        **MOLMO["text_config"],
        "hidden_size": 200,
        "qk_norm_type": "olmo",
        "norm_after": True,
        "qkv_bias": True,
        "rope_scaling_layers": [1, 3],
    },
    "vision_config": {**MOLMO["vision_config"], "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 40},
    "adapter_config": {
        **MOLMO["adapter_config"],
        "vision_feature_layer": [-3],
        "num_key_value_heads": 2,
        "attention_bias": False,
        "mlp_bias": True,
        "text_hidden_size": 200,
    },
}
PUBLISHED = {
    **{key: value for key, value in MOLMO.items() if key not in ("vision_config", "adapter_config")},
    "vit_config": {
        **{key: value for key, value in MOLMO["vision_config"].items() if key != "image_size"},
        "model_type": "molmo2",
        "num_hidden_layers": 6,
        "image_default_input_size": [126, 126],
        "image_num_pos": 81,
        "image_patch_size": 14,
    },
    "adapter_config": {
        **{key: value for key, value in MOLMO["adapter_config"].items() if key != "vision_feature_layer"},
        "model_type": "molmo2",
        "vit_layers": [-2, -4],
    },
}
SETTINGS = {"size": {"height": 126, "width": 126}, "overlap_margins": [1, 1]}
EACH = pytest.mark.parametrize("config", [MOLMO, ODD], ids=["powers", "odd"])
FROZEN = pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])


@pytest.mark.parametrize(
    "config", [MOLMO, ODD, PUBLISHED, {"model_type": "molmo2"}], ids=["powers", "odd", "published", "by default"]
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, frozen):
    """On CPU layer norms of bfloat16 keep what they have found in bfloat16, on a GPU in float32."""
    assert_step(config, frozen=frozen, tolerance=0.002 if frozen != TOWER else 0.0002)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, checkpoints=True, tolerance=0.005, backward_tolerance=0.001)


@pytest.mark.one_in(2)
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, attention="eager", checkpoints=config is ODD, tolerance=0.005, backward_tolerance=0.001)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_text_alone_has_a_mask_too(attention):
    pytest.importorskip("transformers")
    import torch

    from family_checks import assert_step_matches, text_inputs

    batch = Batch(micro_batch=2, num_tokens=384)
    inputs = text_inputs(batch)
    del inputs["attention_mask"]
    inputs["mm_token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    assert_step_matches(MOLMO, batch, inputs, attention=attention, tolerance=0.001)


def assert_step(config, sides=(300, 200), **options):
    pytest.importorskip("transformers")
    import torch

    from family_checks import assert_step_matches
    from vlmplan_trainer.rehearse.pictures import picture_inputs
    from vlmplan_trainer.rehearse.pictures_of_batch import Pictures
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

    image = image_shape(config, SETTINGS, width=sides[0], height=sides[1])
    batch = Batch(micro_batch=2, num_tokens=2 * image.num_tokens + 61, images_per_sample=2, image=image)
    ids = torch.arange(2 * batch.num_tokens).reshape(2, -1) % 900
    ids[:, 20 : 20 + 2 * image.num_placeholder_tokens] = 999
    from transformers import AutoConfig

    real = AutoConfig.for_model("molmo2", **{key: value for key, value in config.items() if key != "model_type"})
    spec = ImageSpec(**{name: getattr(image, name) for name in ImageSpec.__slots__})
    samples = Samples(micro_batch=2, num_tokens=batch.num_tokens, images_per_sample=2, image=spec)
    made, floats = picture_inputs(Pictures(real, samples, spec, ids, 999))
    inputs = {"input_ids": ids, "labels": ids.clone(), "mm_token_type_ids": (ids == 999).long(), **made}
    return assert_step_matches(config, batch, inputs, floats, **options)


def scope_of_the_processor():
    package = pytest.importorskip("transformers").__path__[0]
    import torch

    source = Path(package, "models", "molmo2", "image_processing_molmo2.py").read_text(encoding="utf-8")
    named = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]
    wanted = [one for one in named if one.name in ("select_tiling", "compute_crop_geometry")]
    scope = {"math": math, "itertools": itertools, "torch": torch}
    exec(compile(ast.Module(wanted, []), source, "exec"), scope)  # its module imports torchvision
    return scope


@pytest.mark.parametrize("settings", [{}, {"max_crops": 24}, {"max_crops": 5, "overlap_margins": [3, 2]}], ids=str)
@pytest.mark.parametrize(
    "sides", [(448, 448), (1024, 1024), (700, 333), (9000, 5000), (97, 1201), (112, 112), (3, 50), (9999, 20)], ids=str
)
def test_images_become_as_many_crops_and_tokens_as_the_processor_makes(sides, settings):
    width, height = sides
    margins = settings.get("overlap_margins", [4, 4])
    rows, columns, high, wide = scope_of_the_processor()["compute_crop_geometry"](
        height, width, settings.get("max_crops", 8), margins, 378, 14
    )
    shape = image_shape({"model_type": "molmo2"}, settings, width=width, height=height)
    assert (shape.num_tile_rows, shape.num_tile_columns) == (rows, columns)
    assert (shape.resized_height, shape.resized_width) == (high, wide)
    assert shape.num_vision_sequences == rows * columns + 1
    tokens = [math.ceil(pixels / 28) for pixels in (high, wide)]
    assert shape.num_placeholder_tokens == 14 * 14 + math.prod(tokens)
    assert shape.num_tokens == shape.num_placeholder_tokens + 14 + tokens[0] + 4


def test_tower_and_what_maps_to_the_decoder_are_parts():
    model = build_model(MOLMO)
    assert model.part_of("model.vision_tower.positional_embedding") is Part.VISION
    assert model.part_of("model.multi_modal_projector.image_pooling_2d.q_proj.weight") is Part.PROJECTOR


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("text_config", {"qk_norm_type": "llama"}, "qwen3 or olmo"),
        ("adapter_config", {"vision_feature_layer": [5]}, "numbers of the 5 layers of the tower"),
    ],
)
def test_what_cannot_be_is_refused(section, changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**MOLMO, section: {**MOLMO[section], **changes}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pooling_size": [3, 3]}, "pooling_size is .3, 3.; .2, 2. alone"),
        ({"overlap_margins": [14, 14]}, "overlap_margins are 28 patches together"),
        ({"overlap_margins": 4}, "two whole numbers"),
        ({"size": {"height": 364, "width": 364}}, "takes crops of 378 x 378"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        image_shape({"model_type": "molmo2"}, settings, width=448, height=448)
