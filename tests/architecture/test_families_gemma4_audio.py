"""The audio tower of Gemma 4 against transformers, op by op, and how its feature extractor counts."""

import pytest
from test_families_gemma4_vl import AUDIO, SMALL

from vlmplan.architecture.audio import AudioShape, audio_shape

RATE = 16_000
TOLERANCE = 0.004
"""Layer norms keep their means in 32 bit on a GPU, and in those of their input on CPUs."""
TOWER = {**AUDIO, "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "output_proj_dims": 192}
HEARING = {**SMALL, "audio_config": TOWER}
OTHERS = {
    "not clipped": {"use_clipped_linears": False},
    "blocks": {"attention_chunk_size": 10, "attention_context_left": 21, "conv_kernel_size": 3},
}
PARTS = {"all": (), "no tower": ("model.audio_tower",), "no decoder": ("model.language_model",)}


def assert_step(config=None, **options):
    pytest.importorskip("transformers")
    from audio_steps import assert_audio_step

    assert_audio_step(HEARING if config is None else config, tolerance=TOLERANCE, **options)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("frozen", PARTS)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("seconds", [0.4, 7.31])
def test_a_step_with_sound_keeps_and_peaks_as_in_transformers(seconds, checkpoints, frozen):
    assert_step(seconds=seconds, checkpoints=checkpoints, frozen=PARTS[frozen])


@pytest.mark.sweep
def test_one_sound_is_copied_less():
    assert_step(seconds=8, audios_per_sample=1, rows=1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", OTHERS)
def test_other_values_run_as_in_transformers(name):
    assert_step({**HEARING, "audio_config": {**TOWER, **OTHERS[name]}}, seconds=3)


@pytest.mark.parametrize("settings", [{}, {"frame_length_ms": 25.0, "hop_length_ms": 12.5}], ids=["usual", "longer"])
@pytest.mark.parametrize("seconds", [0.03, 0.3, 1, 1.0075, 29.999, 31])
def test_frames_and_tokens_are_those_of_the_extractor_and_the_processor(seconds, settings):
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    class Marks:
        boa_token, audio_token, eoa_token = "(", "s", ")"

    extractor = transformers.Gemma4AudioFeatureExtractor(**settings)
    made = extractor([np.zeros(round(seconds * RATE), dtype=np.float32)])
    mask = made["input_features_mask"][0]
    written = Gemma4Processor.replace_audio_token(Marks(), made, 0)
    found = audio_shape(HEARING, settings, seconds=seconds)
    assert found == AudioShape(
        num_tokens=len(written), num_frames=int(mask.sum()), num_padded_frames=len(mask), num_marker_tokens=2
    )
    assert found.num_feature_tokens == written.count("s")
    assert made["input_features"][0].shape == (len(mask), 128)


def test_a_sound_of_a_model_without_a_tower_is_beside_the_point():
    from planned import model_files
    from vlmplan.errors import InputError
    from vlmplan.sample_audio import sample_audio
    from vlmplan.workload import Workload

    heard = Workload(model=model_files("gemma-4-e2b"), seq_len=4096, audios_per_sample=1, audio_seconds=5)
    audio = sample_audio(heard)
    assert audio is not None
    assert audio.num_feature_tokens == 5 * 25
    unheard = Workload(model=model_files("gemma-4-31b"), seq_len=4096, audios_per_sample=1, audio_seconds=5)
    with pytest.raises(InputError, match="gemma-4-31b takes no sound"):
        sample_audio(unheard)
