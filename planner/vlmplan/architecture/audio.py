"""What a sound of some seconds becomes: frames of a spectrogram for the audio tower, tokens of the language model.

Source: the feature extractors and processors of transformers 5.23; each function names the class that it restates.
Pure arithmetic on the dictionaries of config.json and preprocessor_config.json. What the files lack has the default of
the extractor's class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.architecture.images.settings import Settings, count, file_settings, number, section
from vlmplan.errors import InputError, UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioShape:
    """What one sound becomes.

    ``num_tokens`` are its positions in the language model, of which ``num_marker_tokens`` are text that the processor
    writes around it; into the others features are put. What only the chat template writes (``<|audio_bos|>``) counts as
    text in neither. ``num_frames`` of the spectrogram are of the sound, of ``num_padded_frames`` that the model is
    handed.
    """

    num_tokens: int
    num_frames: int
    num_padded_frames: int
    num_marker_tokens: int = 0

    @property
    def num_feature_tokens(self) -> int:
        """Tokens that features are put into."""
        return self.num_tokens - self.num_marker_tokens


def audio_shape(
    config: Mapping[str, Any], preprocessor_config: Mapping[str, Any] | None, *, seconds: float
) -> AudioShape:
    """What a sound of ``seconds`` becomes in the model that ``config`` describes, which has to be one of
    ``AUDIO_MODEL_TYPES``; the settings of the feature extractor are in ``preprocessor_config``.

    Raises UnknownNameError for another model type, InputError for settings that are none and for a sound that is too
    short to leave a token.
    """
    model_type = str(config.get("model_type"))
    if model_type not in _SHAPES:
        raise UnknownNameError("model type with sound", model_type, _SHAPES)
    preprocessor = file_settings(preprocessor_config or {}, "preprocessor_config.json: ")
    settings = section(preprocessor, EXTRACTOR) or preprocessor
    shape = _SHAPES[model_type](file_settings(config, "config.json: "), settings, seconds)
    if shape.num_feature_tokens < 1:
        raise InputError(
            f"a sound of {seconds:g} s is too short for a token of a {model_type}; give a longer one (--audio-seconds)"
        )
    return shape


EXTRACTOR = "feature_extractor"
"""Key of the extractor's settings inside processor_config.json, where newer checkpoints keep them."""


def _num_values(settings: Settings, seconds: float) -> int:
    """Values of the waveform."""
    return round(seconds * count(settings, "sampling_rate", 16_000))


def _qwen2_5_omni_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``WhisperFeatureExtractor`` as ``Qwen2_5OmniProcessor`` calls it: longer sounds are cut to ``chunk_length``
    seconds, shorter ones padded to it, with a mask of which every ``hop_length``-th element is taken."""
    hop = count(settings, "hop_length", 160)
    longest = count(settings, "chunk_length", 30) * count(settings, "sampling_rate", 16_000)
    num_padded = longest // hop
    num_frames = min(-(-min(_num_values(settings, seconds), longest) // hop), num_padded)
    convolved = (num_frames - 1) // 2 + 1  # ``_get_feat_extract_output_lengths``
    return AudioShape(num_tokens=(convolved - 2) // 2 + 1, num_frames=num_frames, num_padded_frames=num_padded)


CHUNK_TOKENS = 13
"""Of a whole chunk in ``_get_feat_extract_output_lengths`` of Qwen3-Omni."""


def _qwen3_omni_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``WhisperFeatureExtractor`` as ``Qwen3OmniMoeProcessor`` calls it: no sound is cut, and all are as long here."""
    num_frames = _num_values(settings, seconds) // count(settings, "hop_length", 160)
    window = count(section(config, "audio_config"), "n_window", 50)
    num_chunks, rest = divmod(num_frames, 2 * window)
    num_tokens = num_chunks * CHUNK_TOKENS + halved(rest, times=3)
    return AudioShape(num_tokens=num_tokens, num_frames=num_frames, num_padded_frames=num_frames)


def _phi4_multimodal_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``Phi4MultimodalFeatureExtractor``: whole windows of the waveform, and tokens of so many frames, rounded up twice
    (``_compute_audio_embed_size``)."""
    num_values, window = _num_values(settings, seconds), count(settings, "win_length", 400)
    num_frames = max(0, (num_values - window) // count(settings, "hop_length", 160) + 1)
    num_tokens = num_frames * count(settings, "audio_feat_stride", 1)
    for key, default in (("audio_compression_rate", 8), ("audio_downsample_rate", 1)):
        num_tokens = -(-num_tokens // count(settings, key, default))
    return AudioShape(num_tokens=num_tokens, num_frames=num_frames, num_padded_frames=num_frames)


LONGEST_VALUES = 480_000
"""Of a waveform that Gemma's feature extractors do not cut, ..."""
VALUES_MULTIPLE = 128
"""... and what they pad its length to a multiple of."""


def _gemma4_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``Gemma4AudioFeatureExtractor``: a frame is the sound's where the last value in its window is;
    ``Gemma4Processor`` writes a token for every fourth of them, one before and one behind."""
    rate = count(settings, "sampling_rate", 16_000)
    window, hop = (
        round(rate * number(settings, key, default) / 1000)
        for key, default in (("frame_length_ms", 20.0), ("hop_length_ms", 10.0))
    )
    num_values = min(_num_values(settings, seconds), LONGEST_VALUES)
    num_padded_values = -(-num_values // VALUES_MULTIPLE) * VALUES_MULTIPLE
    num_padded = max(0, (num_padded_values + window // 2 - window - 1) // hop + 1)
    num_frames = min(num_padded, max(0, -(-(num_values + window // 2 - window) // hop)))
    return AudioShape(
        num_tokens=-(-num_frames // 4) + 2, num_frames=num_frames, num_padded_frames=num_padded, num_marker_tokens=2
    )


def _gemma4_unified_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``Gemma4UnifiedAudioFeatureExtractor``: a token for each stretch of the waveform, one before and one behind."""
    num_frames = -(-_num_values(settings, seconds) // count(settings, "audio_samples_per_token", 640))
    return AudioShape(
        num_tokens=num_frames + 2, num_frames=num_frames, num_padded_frames=num_frames, num_marker_tokens=2
    )


def _gemma3n_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``Gemma3nAudioFeatureExtractor``, with a mask of which every ``hop_length``-th value is taken;
    ``Gemma3nProcessor`` writes as many tokens for any sound, and four around them."""
    rate = count(settings, "sampling_rate", 16_000)
    window, hop = (
        round(rate * number(settings, key, default) / 1000)
        for key, default in (("frame_length_ms", 32.0), ("hop_length_ms", 10.0))
    )
    num_values = min(_num_values(settings, seconds), LONGEST_VALUES)
    num_padded_values = -(-num_values // VALUES_MULTIPLE) * VALUES_MULTIPLE
    num_padded = max(0, (num_padded_values - window - 1) // hop + 1)
    num_tokens = count(config, "audio_soft_tokens_per_image", 188) if num_padded else 0
    return AudioShape(
        num_tokens=num_tokens + 4,
        num_frames=min(num_padded, -(-num_values // hop)),
        num_padded_frames=num_padded,
        num_marker_tokens=4,
    )


def heard_seconds(preprocessor_config: Mapping[str, Any] | None) -> int:
    """Seconds of sound that Whisper hears at once, whose feature extractor has these settings."""
    preprocessor = file_settings(preprocessor_config or {}, "preprocessor_config.json: ")
    return count(section(preprocessor, EXTRACTOR) or preprocessor, "chunk_length", 30)


def _whisper_shape(config: Settings, settings: Settings, seconds: float) -> AudioShape:
    """``WhisperFeatureExtractor`` as a call of it leaves its defaults: every sound is padded to ``chunk_length``
    seconds, which have to be as many frames as the encoder has positions for, twice (``WhisperEncoder.forward``)."""
    hop, rate = count(settings, "hop_length", 160), count(settings, "sampling_rate", 16_000)
    longest = heard_seconds(settings)
    num_positions = count(config, "max_source_positions", 1500)
    num_padded = longest * rate // hop
    if num_padded != 2 * num_positions:
        raise InputError(
            f"preprocessor_config.json makes {num_padded:,} frames of a sound, but max_source_positions of config.json "
            f"is {num_positions:,}, for twice as many"
        )
    if seconds > longest:
        raise InputError(
            f"a sound lasts {seconds:g} s, and the model hears {longest}: cut it, and what is said in it, into pieces"
        )
    num_frames = min(_num_values(settings, seconds) // hop, num_padded)
    return AudioShape(num_tokens=num_positions, num_frames=num_frames, num_padded_frames=num_padded)


def halved(length: int, *, times: int = 1) -> int:
    """What convolutions with a stride of 2 that are padded by one leave of ``length``.

    >>> halved(100, times=3)
    13
    """
    for _ in range(times):
        length = (length - 1) // 2 + 1
    return length


_SHAPES: Mapping[str, Callable[[Settings, Settings, float], AudioShape]] = {
    "gemma3n": _gemma3n_shape,
    "gemma4": _gemma4_shape,
    "gemma4_unified": _gemma4_unified_shape,
    "phi4_multimodal": _phi4_multimodal_shape,
    "qwen2_5_omni_thinker": _qwen2_5_omni_shape,
    "qwen3_omni_moe_thinker": _qwen3_omni_shape,
    "whisper": _whisper_shape,
}

MAY_BE_DEAF = frozenset({"gemma4", "gemma4_unified"})
"""Those of which a configuration without an ``audio_config`` has no tower, where others have that of its defaults."""

AUDIO_MODEL_TYPES = tuple(_SHAPES)
"""The ``model_type`` values of config.json that ``audio_shape`` knows."""
