"""Frames and tokens of sounds against transformers' own feature extractors and processors."""

from typing import Any

import pytest

from model_table import packaged_config
from vlmplan.architecture.audio import AudioShape, audio_shape
from vlmplan.errors import InputError, UnknownNameError

QWEN25 = {"model_type": "qwen2_5_omni_thinker"}
QWEN3 = {"model_type": "qwen3_omni_moe_thinker"}
RATE = 16_000
LENGTHS = (0.0301, 0.5, 0.99999, 1, 1.00001, 2, 2.995, 3.0042, 4, 4.5)
"""Seconds: of few frames, of whole chunks, just above and below, and more than a window of four."""


def whisper(seconds: float, settings: dict[str, Any], **options: Any) -> tuple[int, int]:
    """(frames that its mask has, frames that there are) of a silent sound."""
    np = pytest.importorskip("numpy")
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(**settings)
    sound = np.zeros(round(seconds * RATE), dtype=np.float32)
    made = extractor([sound], sampling_rate=RATE, return_attention_mask=True, **options)
    frames = made["input_features"].shape[-1]
    assert made["attention_mask"].shape == (1, frames)
    return int(made["attention_mask"].sum()), frames


@pytest.mark.parametrize("hop", [160, 150])
@pytest.mark.parametrize("seconds", LENGTHS)
def test_qwen25_omni_pads_and_cuts_sounds_to_one_length(seconds, hop):
    from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import _get_feat_extract_output_lengths

    settings = {"feature_size": 128, "chunk_length": 4, "hop_length": hop}
    frames, padded = whisper(seconds, settings, padding="max_length")
    found = audio_shape(QWEN25, settings, seconds=seconds)
    tokens = _get_feat_extract_output_lengths(frames)
    assert found == AudioShape(num_tokens=tokens, num_frames=frames, num_padded_frames=padded)


@pytest.mark.parametrize("hop", [160, 150])
@pytest.mark.parametrize("seconds", LENGTHS)
def test_qwen3_omni_takes_sounds_whole(seconds, hop):
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    settings = {"feature_size": 128, "chunk_length": 2, "hop_length": hop}
    frames, padded = whisper(seconds, settings, padding=True, truncation=False)
    found = audio_shape(QWEN3, settings, seconds=seconds)
    tokens = _get_feat_extract_output_lengths(frames)
    assert found == AudioShape(num_tokens=tokens, num_frames=frames, num_padded_frames=padded)


def test_packaged_thinkers_hear_25_and_13_tokens_a_second():
    from vlmplan.models import find_model

    shapes = {
        alias: audio_shape(model.config, model.preprocessor, seconds=30)
        for alias in ("qwen2.5-omni-7b", "qwen3-omni-30b-a3b")
        if (model := find_model(alias))
    }
    assert shapes["qwen2.5-omni-7b"] == AudioShape(num_tokens=30 * 25, num_frames=30 * 100, num_padded_frames=300 * 100)
    assert shapes["qwen3-omni-30b-a3b"] == AudioShape(
        num_tokens=30 * 13, num_frames=30 * 100, num_padded_frames=30 * 100
    )


def test_settings_are_those_of_the_extractor_where_the_file_has_them_apart():
    nested = {"hop_length": 7, "feature_extractor": {"chunk_length": 5, "hop_length": 200}}
    assert audio_shape(QWEN25, nested, seconds=9).num_frames == 5 * RATE // 200


def test_sounds_that_cannot_be_are_refused_with_the_option():
    with pytest.raises(InputError, match=r"a sound of 0\.001 s is too short for a token"):
        audio_shape(QWEN3, None, seconds=0.001)
    with pytest.raises(InputError, match=r"preprocessor_config.json: hop_length is 0; a whole number of 1 or more"):
        audio_shape(QWEN3, {"hop_length": 0}, seconds=1)
    with pytest.raises(UnknownNameError, match="llama"):
        audio_shape({"model_type": "llama"}, None, seconds=1)
    assert packaged_config("qwen2.5-omni-7b")["model_type"] == QWEN25["model_type"]
