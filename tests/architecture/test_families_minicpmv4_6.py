"""MiniCPM-V 4.6 and 4.7 against transformers: packed patches, of which four become one in the midst of the tower."""

from dataclasses import asdict
from functools import partial

import pytest

pytest.importorskip("transformers")

import torch
from transformers import AutoConfig

from family_checks import assert_parameters_and_linears_match, assert_step_matches, real_model, text_inputs
from model_table import assert_counts_match_the_table
from tape_probe import predicted_step
from torch_probe import measured_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError
from vlmplan.units import DType
from vlmplan_trainer.rehearse.batch import micro_batch as micro_batch_of
from vlmplan_trainer.rehearse.samples import ImageSpec, Samples

TEXT = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
VISION = {
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "patch_size": 14,
    "image_size": 140,
}
CONFIG = {
    "model_type": "minicpmv4_6",
    "text_config": TEXT,
    "vision_config": VISION,
    "insert_layer_id": 1,
    "image_token_id": 99,
    "video_token_id": 98,
}
WITHOUT_MERGER = {**CONFIG, "downsample_mode": "4x"}
ON_CANVAS = {**CONFIG, "model_type": "minicpmv4_7", "slice_start_id": 97}
CONFIGS = {"16x": CONFIG, "4x": WITHOUT_MERGER, "4.7": ON_CANVAS}
WHOLE, SLICED = (112, 112), (300, 200)


def case(config, size, micro_batch=2):
    """The batch, integer tensors and shapes of those of floats."""
    settings = {"scale_resolution": 112, "downsample_mode": config.get("downsample_mode")}
    return inputs_of(config, image_shape(config, settings, width=size[0], height=size[1]), size, micro_batch)


def inputs_of(config, image, size, micro_batch=2):
    batch = Batch(micro_batch=micro_batch, num_tokens=image.num_tokens + 30, images_per_sample=1, image=image)
    samples = Samples(
        micro_batch=micro_batch,
        num_tokens=batch.num_tokens,
        images_per_sample=1,
        image=ImageSpec(**asdict(image)),
        width=size[0],
        height=size[1],
    )
    made = micro_batch_of(AutoConfig.for_model(**config), samples)
    return batch, made.values, made.shapes


def step(config, size, **options):
    assert_step_matches(config, *case(config, size), **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("size", [WHOLE, SLICED], ids=["whole", "sliced"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(name, size, checkpoints):
    step(CONFIGS[name], size, checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [WHOLE, SLICED], ids=["whole", "sliced"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_videos_keeps_and_peaks_as_in_transformers(name, size):
    config = CONFIGS[name]
    settings = {"scale_resolution": 112, "downsample_mode": config.get("downsample_mode")}
    image = clip_shape(config, settings, settings, num_frames=3, size=size)
    assert_step_matches(config, *inputs_of(config, image, size), checkpoints=True, tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CONFIGS)
def test_a_frozen_tower_keeps_nothing(name):
    step(CONFIGS[name], SLICED, frozen=["model.vision_tower"], tolerance=0.002)
    step(CONFIGS[name], SLICED, frozen=["model.vision_tower", "model.merger"], tolerance=0.002)


@pytest.mark.sweep
def test_eager_attention_keeps_and_peaks_as_in_transformers():
    step(CONFIG, SLICED, attention="eager", tolerance=0.002)


@pytest.mark.sweep
def test_a_merger_behind_the_last_layer_is_the_last_of_the_tower():
    step({**CONFIG, "insert_layer_id": 4}, SLICED, tolerance=0.002)


def test_text_alone_runs_no_tower():
    batch = Batch(micro_batch=2, num_tokens=100)
    assert_step_matches(CONFIG, batch, text_inputs(batch, 90), tolerance=0.002)


@pytest.mark.sweep
def test_autocast_casts_the_mergers_weights_once_for_all_slices():
    batch, values, shapes = case(CONFIG, SLICED)
    build = partial(real_model, CONFIG, dtype=torch.float32)
    measured = measured_step(build, values, floats=shapes, autocast=torch.bfloat16)
    tree = build_model(CONFIG)
    for entry in tree.parameters():
        entry.parameter.dtype = DType.FLOAT32
    predicted = predicted_step(tree, batch, autocast=DType.BFLOAT16, caches_casts=True)
    assert predicted.forward_live == pytest.approx(measured.forward_live, rel=0.01)
    assert predicted.backward_peak == pytest.approx(measured.backward_peak, rel=0.01)


def test_counts_are_those_of_the_real_class():
    assert_counts_match_the_table("minicpm-v-4.6")


def test_the_merger_inside_the_tower_is_of_the_tower_and_the_one_behind_it_the_projector():
    model = build_model(CONFIG)
    assert model.part_of("model.vision_tower.vit_merger.linear_1") is Part.VISION
    assert model.part_of("model.merger.mlp.0.linear_1") is Part.PROJECTOR


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"insert_layer_id": 5}, "insert_layer_id is 5, but the last of the vision tower's 5 layers is 4"),
        ({"downsample_mode": "8x"}, 'downsample_mode is "8x"; one of 16x, 4x is needed'),
        ({"merger_times": 2}, "merger_times is 2; 1 is needed"),
        ({"merge_kernel_size": [3, 3]}, r"merge_kernel_size is \[3, 3\]; \[2, 2\] is needed"),
        ({"vision_config": {**VISION, "window_kernel_size": 2}}, r"window_kernel_size"),
    ],
)
def test_what_the_model_cannot_be_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        build_model({**CONFIG, **changes})


def test_a_processor_that_makes_room_for_other_features_is_refused():
    with pytest.raises(InputError, match=r"downsample_mode is 16x, but that of preprocessor_config.json is 4x"):
        image_shape(CONFIG, {"downsample_mode": "4x"}, width=448, height=448)
    with pytest.raises(InputError, match='downsample_mode is "2x"; one of 16x, 4x is needed'):
        image_shape(CONFIG, {"downsample_mode": "2x"}, width=448, height=448)
