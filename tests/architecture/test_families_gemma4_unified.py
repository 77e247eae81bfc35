"""Gemma 4 without towers against transformers: merged patches that go into the decoder through norms and Linears."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from gemma4_cases import SEVENTY, step
from model_table import assert_counts_match_the_table
from vlmplan.architecture.audio import AudioShape, audio_shape
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch, Part
from vlmplan.errors import InputError

TEXT = {
    "model_type": "gemma4_unified_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "sliding_window": 64,
}
SHARED = {**TEXT, "num_hidden_layers": 12, "num_kv_shared_layers": 5, "use_double_wide_mlp": True}
IGNORED = {"hidden_size_per_layer_input": 8, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
"""What files may say and the class does not read."""
VISION = {"model_type": "gemma4_unified_vision", "mm_embed_dim": 96, "output_proj_dims": 96, "mm_posemb_size": 64}
AUDIO = {"model_type": "gemma4_unified_audio", "audio_embed_dim": 40}
CONFIG = {
    "model_type": "gemma4_unified",
    "text_config": TEXT,
    "vision_config": VISION,
    "audio_config": AUDIO,
    "image_token_id": 99,
    "video_token_id": 98,
    "audio_token_id": 97,
}
CONFIGS = {"whole": CONFIG, "text": TEXT, "shared": SHARED, "ignored": {**TEXT, **IGNORED}}
BATCH = Batch(micro_batch=2, num_tokens=150)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("size", [(480, 336), (320, 480)], ids=["every patch is used", "patches fill up"])
def test_a_step_with_images_keeps_and_peaks_as_in_transformers(size, checkpoints):
    step(CONFIG, *size, checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_step_with_videos_takes_what_its_frames_do(checkpoints):
    step(CONFIG, 320, 480, micro_batch=1, num_frames=2, checkpoints=checkpoints, tolerance=0.002)


@pytest.mark.sweep
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_frozen_embedder_keeps_nothing(attention):
    step(CONFIG, 320, 480, frozen=["model.embed_vision"], attention=attention, tolerance=0.002)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["whole", "text", "shared"])
def test_a_step_of_text_keeps_and_peaks_as_in_transformers(name):
    assert_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH, 90), tolerance=0.002)
    assert_checkpointed_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH, 90))


@pytest.mark.parametrize("micro_batch", [1, 2])
def test_eager_attention_writes_a_single_head_of_keys_out_for_several_samples_alone(micro_batch):
    batch = Batch(micro_batch=micro_batch, num_tokens=150)
    assert_step_matches(TEXT, batch, text_inputs(batch, 90), attention="eager", tolerance=0.002)


def test_counts_are_those_of_the_real_class():
    assert_counts_match_the_table("gemma-4-12b")


def test_what_stands_in_front_of_the_decoder_is_its_projector():
    model = build_model(CONFIG)
    assert model.part_of("model.embed_vision.patch_dense") is Part.PROJECTOR
    assert model.part_of("model.embed_audio.embedding_projection") is Part.PROJECTOR


@pytest.mark.parametrize(("size", "tokens"), [((480, 336), 10 * 7), ((320, 480), 6 * 10), ((9600, 40), 70)])
def test_a_token_is_one_merged_patch(size, tokens):
    shape = image_shape(CONFIG, SEVENTY, width=size[0], height=size[1])
    assert (shape.num_placeholder_tokens, shape.num_tokens, shape.num_patches) == (tokens, tokens + 2, tokens)
    assert shape.num_patches + shape.num_padding_patches == 70


def test_images_need_a_vision_config():
    with pytest.raises(InputError, match=r"config\.json has no vision_config"):
        image_shape({**CONFIG, "vision_config": None}, SEVENTY, width=480, height=480)


@pytest.mark.parametrize(
    "frozen", [(), ("model.embed_audio",), ("model.language_model",)], ids=["all", "no sound", "no text"]
)
def test_a_step_with_sound_keeps_and_peaks_as_in_transformers(frozen):
    from audio_steps import assert_audio_step

    assert_audio_step(CONFIG, seconds=3.01, frozen=frozen)


@pytest.mark.parametrize("seconds", [0.01, 1, 1.001])
def test_a_sound_is_stretches_of_its_waveform(seconds):
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    made = transformers.Gemma4UnifiedAudioFeatureExtractor()([np.zeros(round(seconds * 16_000), dtype=np.float32)])
    (frames,) = made["input_features_mask"][0].shape
    assert audio_shape(CONFIG, None, seconds=seconds) == AudioShape(
        num_tokens=frames + 2, num_frames=frames, num_padded_frames=frames, num_marker_tokens=2
    )
