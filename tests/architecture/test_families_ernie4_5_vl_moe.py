"""ERNIE 4.5 VL against transformers: tokens of images have experts of their own."""

import copy

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Fetch, Release
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

TOWER = ["model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
ERNIE = {
    "model_type": "ernie4_5_vl_moe",
    "image_token_id": 999,
    "image_start_token_id": 998,
    "image_end_token_id": 997,
    "video_token_id": 996,
    "video_start_token_id": 995,
    "video_end_token_id": 994,
    "text_config": {
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "moe_intermediate_size": [192, 96],
        "moe_num_experts": 8,
        "moe_k": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [11, 11, 10]},
    },
    "vision_config": {"depth": 4, "hidden_size": 128, "num_heads": 4, "intermediate_size": 320},
}


def altered(text=(), vision=(), **changes):
    config = {**copy.deepcopy(ERNIE), **changes}
    config["text_config"] |= dict(text)
    config["vision_config"] |= dict(vision)
    return config


ODD = altered(
    {
        "use_bias": True,
        "moe_num_shared_experts": 0,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "tie_word_embeddings": False,
        "moe_intermediate_size": [96, 224],
    },
    {"patch_size": 16, "hidden_act": "gelu"},
    tie_word_embeddings=False,
)
EACH = pytest.mark.parametrize("config", [ERNIE, ODD], ids=["usual", "odd"])
FROZEN = pytest.mark.parametrize("frozen", [(), TOWER, DECODER], ids=["all", "no tower", "no decoder"])


@pytest.mark.parametrize("config", [ERNIE, ODD, {"model_type": "ernie4_5_vl_moe"}], ids=["usual", "odd", "by default"])
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


@pytest.mark.one_in(2)
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, attention="eager", checkpoints=config is ODD, tolerance=0.005, backward_tolerance=0.001)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_text_alone_goes_to_the_experts_of_text(attention):
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches, text_inputs

    batch = Batch(micro_batch=2, num_tokens=384)
    assert_step_matches(ERNIE, batch, text_inputs(batch), attention=attention, tolerance=0.001)


def assert_step(config, sides=(300, 200), **options):
    pytest.importorskip("transformers")
    import torch
    from transformers import AutoConfig

    from family_checks import assert_step_matches
    from vlmplan_trainer.rehearse.pictures import picture_inputs
    from vlmplan_trainer.rehearse.pictures_of_batch import Pictures
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

    image = image_shape(config, {}, width=sides[0], height=sides[1])
    batch = Batch(micro_batch=2, num_tokens=2 * image.num_tokens + 61, images_per_sample=2, image=image)
    ids = torch.arange(2 * batch.num_tokens).reshape(2, -1) % 900
    for start in (20, 22 + image.num_tokens):
        ids[:, start : start + image.num_placeholder_tokens] = 999
    values = {key: value for key, value in copy.deepcopy(config).items() if key != "model_type"}
    real = AutoConfig.for_model("ernie4_5_vl_moe", **values)
    spec = ImageSpec(**{name: getattr(image, name) for name in ImageSpec.__slots__})
    samples = Samples(micro_batch=2, num_tokens=batch.num_tokens, images_per_sample=2, image=spec)
    made, floats = picture_inputs(Pictures(real, samples, spec, ids, 999))
    made["position_ids"] = torch.arange(batch.num_tokens).view(1, 1, -1).expand(3, 2, -1).contiguous()
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids), **made}
    return assert_step_matches(config, batch, inputs, floats, **options)


def test_what_a_layer_gathers_to_run_again_stays_until_both_kinds_of_experts_are_over():
    """Under ZeRO-3: the mask by which results are put back is what the block itself asks for, first of all."""
    recipe = Recipe(method=Method.LORA, zero_stage=3, activation_checkpointing=True)
    model = prepared_model(ERNIE, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    image = image_shape(ERNIE, {}, width=112, height=112)
    batch = Batch(micro_batch=1, num_tokens=image.num_tokens + 9, images_per_sample=1, image=image)
    trace = model.run(Tape(), batch, AttentionBackend(), loss=LossKind.CHUNKED)
    num_sparse = 0
    for _, section in trace.backward():
        events = list(enumerate(section.backward))
        used = [at for at, event in events if isinstance(event, Fetch) and is_of_experts(event.module)]
        ended = [at for at, event in events if isinstance(event, Release) and event.ends_recomputation]
        num_sparse += bool(used)
        assert not used or min(ended) > max(used)
    assert num_sparse == 3


def is_of_experts(module):
    return "gate_up_proj" in module.parameters_by_name


SETTINGS = [{}, {"min_pixels": 10**6}, {"size": {"shortest_edge": 90_000, "longest_edge": 400_000}}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("width", "height"), [(448, 448), (700, 333), (1920, 1080), (97, 1201), (20, 20)])
def test_images_become_as_many_tokens_and_patches_as_the_processor_makes(settings, width, height):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.processors.processing import processed

    asked = {"width": width, "height": height, "images_per_sample": 1, "num_samples": 1}
    settings = {"image_processor_type": "Ernie4_5_VLMoeImageProcessor", **settings}
    found = processed(configuration(copy.deepcopy(ERNIE)), dict(settings), **asked)
    shape = image_shape(ERNIE, settings, width=width, height=height)
    assert found.num_placeholders == shape.num_placeholder_tokens
    assert tuple(found.tensors["pixel_values"].shape) == (shape.num_patches, 3 * 14**2)


def test_tower_and_what_maps_to_the_decoder_are_parts():
    model = build_model(ERNIE)
    assert model.part_of("model.vision_tower.ln.weight") is Part.VISION
    assert model.part_of("model.resampler_model.mlp.weight") is Part.PROJECTOR


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (altered({"moe_intermediate_size": [192]}), "two numbers, of experts of text and of images"),
        (altered({}, {"temporal_merge_size": 3}), "temporal_merge_size is 3"),
        (altered({"mlp_layer_types": ["sparse"] * 3 + ["full"]}), "dense and sparse"),
    ],
)
def test_what_cannot_be_is_refused(config, words):
    with pytest.raises(InputError, match=words):
        build_model(config)
