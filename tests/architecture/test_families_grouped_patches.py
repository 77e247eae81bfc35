"""EXAONE 4.5 and LFM3-VL, whose vision encoders have fewer heads of keys than of queries, against transformers."""

import copy
from dataclasses import asdict

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError

TOWERS = ["model.visual", "model.vision_tower"]
DECODER = ["model.language_model", "lm_head"]
EXAONE = {
    "model_type": "exaone4_5",
    "image_token_id": 999,
    "video_token_id": 998,
    "text_config": {
        "model_type": "exaone4",
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 100,
    },
    "vision_config": {
        "depth": 4,
        "patch_size": 14,
        "hidden_size": 256,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 448,
        "out_hidden_size": 256,
        "fullatt_block_indexes": [1, 3],
    },
}
LFM = {
    "model_type": "lfm3_vl",
    "image_token_id": 999,
    "video_token_id": 998,
    "projector_hidden_size": 384,
    "text_config": {
        "model_type": "lfm3",
        "num_hidden_layers": 4,
        "vocab_size": 1000,
        "pad_token_id": 0,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "sliding_window": 100,
    },
    "vision_config": {
        "hidden_size": 256,
        "intermediate_size": 448,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "patch_size": 16,
    },
}
CONFIGS = {"exaone4_5": EXAONE, "lfm3_vl": LFM}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
FROZEN = pytest.mark.parametrize("frozen", [(), TOWERS, DECODER], ids=["all", "no tower", "no decoder"])
ALTERED = {
    "exaone4_5 by default": {"model_type": "exaone4_5"},
    "exaone4_5, tied": {**EXAONE, "tie_word_embeddings": True},
    "lfm3_vl by default": {"model_type": "lfm3_vl"},
    "lfm3_vl, other layers, untied, no biases": {
        **LFM,
        "tie_word_embeddings": False,
        "projector_bias": False,
        "vision_config": {**LFM["vision_config"], "layer_types": ["full_attention", "conv"] * 3, "conv_kernel_size": 5},
    },
}


@pytest.mark.parametrize("config", [*CONFIGS.values(), *ALTERED.values()], ids=[*CONFIGS, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@FROZEN
@EACH
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, config, frozen):
    assert_step(config, attention=attention, frozen=frozen, tolerance=0.001)


@pytest.mark.one_in(5)
@FROZEN
@EACH
def test_a_step_with_checkpoints_peaks_as_in_transformers(config, frozen):
    assert_step(config, checkpoints=True, frozen=frozen, tolerance=0.01, backward_tolerance=0.001)


@FROZEN
def test_a_step_with_videos_of_lfm3_vl_takes_their_frames_at_once(frozen):
    pytest.importorskip("transformers")
    from transformers import AutoConfig

    from family_checks import assert_step_matches
    from vlmplan_trainer.rehearse.batch import micro_batch
    from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

    config = LFM
    image = clip_shape(config, None, None, num_frames=5, size=(160, 96))
    assert (image.num_vision_sequences, image.num_patches) == (3, 3 * 10 * 6)
    batch = Batch(micro_batch=2, num_tokens=image.num_tokens + 40, images_per_sample=1, image=image)
    shown = {"images_per_sample": 1, "image": ImageSpec(**asdict(image)), "width": 160, "height": 96}
    made = micro_batch(
        AutoConfig.for_model(**copy.deepcopy(config)),
        Samples(micro_batch=2, num_tokens=batch.num_tokens, **shown),
    )
    assert_step_matches(config, batch, made.values, made.shapes, frozen=frozen, tolerance=0.001)


def test_the_text_type_of_the_first_files_is_exaone_4():
    first = {**EXAONE, "text_config": {**EXAONE["text_config"], "model_type": "exaone4_5_text"}}
    names = [entry.name for entry in build_model(first).parameters()]
    assert names == [entry.name for entry in build_model(EXAONE).parameters()]


def test_towers_and_what_maps_to_the_decoder_are_parts():
    model = build_model(EXAONE)
    assert model.part_of("model.visual.merger.ln_q.weight") is Part.PROJECTOR
    assert model.part_of("model.visual.patch_embed.proj.weight") is Part.VISION
    model = build_model(LFM)
    assert model.part_of("model.multi_modal_projector.linear_1.weight") is Part.PROJECTOR
    assert model.part_of("model.vision_tower.patch_embed.weight") is Part.VISION


def test_other_kinds_of_vision_layers_are_refused():
    with pytest.raises(InputError, match=r"vision_config.layer_types is .* names out of full_attention and conv"):
        build_model({**LFM, "vision_config": {**LFM["vision_config"], "layer_types": ["linear_attention"] * 6}})


def assert_step(config, **options):
    pytest.importorskip("transformers")
    from patch_batches import step

    from family_checks import assert_step_matches

    made = step(config, "", (480, 330), images_per_sample=2)
    for name in ("mm_token_type_ids", "position_ids"):
        del made.inputs[name]
    assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)


@pytest.mark.parametrize(("width", "height"), [(448, 448), (700, 333), (1920, 1080), (97, 1201)])
@EACH
def test_images_become_as_many_tokens_and_patches_as_their_processors_make(config, width, height):
    pytest.importorskip("transformers")
    pytest.importorskip("PIL.Image")
    from vlmplan_trainer.probe import configuration
    from vlmplan_trainer.processors.processing import processed

    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": config["vision_config"]["patch_size"],
        "size": {"shortest_edge": 3136, "longest_edge": 10**6},
    }
    asked = {"width": width, "height": height, "images_per_sample": 1, "num_samples": 1}
    found = processed(configuration(copy.deepcopy(config)), dict(settings), **asked)
    shape = image_shape(config, settings, width=width, height=height)
    assert found.num_placeholders == shape.num_placeholder_tokens
    assert found.tensors["pixel_values"].shape[0] == shape.num_patches
