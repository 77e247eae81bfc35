"""Kimi K2.5 against transformers: a tower whose positions are sums of sixteen, in front of DeepSeek-V3."""

import ast
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
KIMI = {
    "model_type": "kimi_k25",
    "image_token_id": 999,
    "video_token_id": 998,
    "projection_hidden_size": 256,
    "text_config": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 3,
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 64,
        "q_lora_rank": 96,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 48,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
    },
    "vision_config": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 448,
        "num_attention_heads": 4,
        "pos_emb_height": 16,
        "pos_emb_width": 16,
        "patch_size": 14,
    },
}
ODD = {
    **KIMI,
    "tie_word_embeddings": False,
    "projection_hidden_size": 120,
    "text_config": {**KIMI["text_config"], "q_lora_rank": None, "moe_intermediate_size": 72, "n_routed_experts": 6},
    "vision_config": {
        **KIMI["vision_config"],
        "hidden_size": 120,
        "intermediate_size": 200,
        "num_attention_heads": 3,
        "num_hidden_layers": 3,
        "pos_emb_height": 11,
        "pos_emb_width": 11,
    },
}
EACH = pytest.mark.parametrize("config", [KIMI, ODD], ids=["a tower of powers", "odd"])
FROZEN = pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])


@pytest.mark.parametrize("config", [KIMI, ODD, {"model_type": "kimi_k25"}], ids=["powers", "odd", "by default"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(6)
@FROZEN
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, frozen=frozen, checkpoints=True, tolerance=0.005, backward_tolerance=0.001)


def assert_step(config, **options):
    """Eager: sdpa on CPU pads the widths of heads that a GPU takes as they are."""
    pytest.importorskip("transformers")
    from patch_batches import step

    from family_checks import assert_step_matches

    made = step(config, "", (480, 330), images_per_sample=2)
    for name in ("mm_token_type_ids", "position_ids"):
        del made.inputs[name]
    patches = made.batch.num_images * made.batch.image.num_patches
    pixels = {"pixel_values": (patches, 3, 14, 14)}
    assert_step_matches(made.config, made.batch, made.inputs, pixels, attention="eager", **options)


def processor_function(name):
    """A function of the processor's module, which imports torchvision."""
    package = pytest.importorskip("transformers").__path__[0]
    source = Path(package, "models", "kimi_k25", "image_processing_kimi_k25.py").read_text(encoding="utf-8")
    (function,) = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == name]
    scope = {"math": math}
    exec(compile(ast.Module([function], []), source, "exec"), scope)
    return scope[name]


@pytest.mark.parametrize("settings", [{}, {"max_patches": 300}, {"size": {"max_height": 20, "max_width": 20}}], ids=str)
@pytest.mark.parametrize("sides", [(448, 448), (700, 333), (9000, 5000), (97, 1201), (3, 50), (9999, 20)], ids=str)
def test_images_become_as_many_patches_as_the_processor_makes(sides, settings):
    width, height = sides
    most = settings.get("size", {"max_height": 512})["max_height"]
    _, padded = processor_function("navit_resize")(height, width, 14, 2, settings.get("max_patches", 16384), most)
    shape = image_shape(KIMI, settings, width=width, height=height)
    assert (shape.resized_height, shape.resized_width) == padded
    assert shape.num_patches == math.prod(padded) // 14**2 == 4 * shape.num_tokens


def test_published_files_name_the_decoder_otherwise():
    older = {**KIMI, "text_config": {**KIMI["text_config"], "model_type": "kimi_k2"}}
    names = [entry.name for entry in build_model(older).parameters()]
    assert names == [entry.name for entry in build_model(KIMI).parameters()]


def test_tower_and_what_maps_to_the_decoder_are_parts():
    model = build_model(KIMI)
    assert model.part_of("model.vision_tower.patch_embed.proj.weight") is Part.VISION
    assert model.part_of("model.mm_projector.in_proj.weight") is Part.PROJECTOR


@pytest.mark.parametrize("side", [2, [2], [2, 0]], ids=str)
def test_a_token_of_other_than_rows_and_columns_of_patches_is_refused(side):
    with pytest.raises(InputError, match="merge_kernel_size is"):
        build_model({**KIMI, "vision_config": {**KIMI["vision_config"], "merge_kernel_size": side}})


def test_sides_that_differ_are_refused():
    with pytest.raises(InputError, match=r"size\.max_height is 20"):
        image_shape(KIMI, {"size": {"max_height": 20, "max_width": 30}}, width=9, height=9)
