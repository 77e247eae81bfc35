"""Sounds of a rehearsed micro batch: their tokens in the rows of ids, masks of their frames, spectrograms by shape.

What a sound becomes is the planner's ``AudioShape``, which is held to transformers' own feature extractors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

TEXT_TOKEN = 4
"""What stands for text that a processor writes around a sound."""

Made = tuple[dict[str, torch.Tensor], dict[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec:
    """One sound, in the words of ``vlmplan.architecture.audio.AudioShape``."""

    num_tokens: int
    num_frames: int
    num_padded_frames: int
    num_marker_tokens: int = 0


def with_sounds(config: Any, row: torch.Tensor, audio: AudioSpec, count: int) -> torch.Tensor:
    """``row`` of ids with ``count`` sounds behind it, each between two tokens where those are free in it."""
    num_markers = 2 * count if len(row) >= 2 * count else 0
    around = [audio_token(config, "audio_start_token_id")] if num_markers else []
    behind = [audio_token(config, "audio_end_token_id")] if num_markers else []
    text = [TEXT_TOKEN] * audio.num_marker_tokens
    features = [audio_token(config)] * (audio.num_tokens - audio.num_marker_tokens)
    sound = torch.tensor([*around, *features, *text, *behind])
    return torch.cat([row[: len(row) - num_markers], *[sound] * count])


def audio_token(config: Any, name: str = "audio_token_id") -> int:
    """The id that stands for a token of sound, or the one of another ``name``; of text where there is none."""
    values = (getattr(section, name, None) for section in (config, config.audio_config))
    return int(next((value for value in values if value is not None), TEXT_TOKEN))


def sound_inputs(config: Any, audio: AudioSpec, num_audios: int) -> Made:
    """What the processor hands to the model of ``num_audios`` sounds beside their tokens, without types of these."""
    return _FAMILIES[config.model_type](config, audio, num_audios)


def _padded_spectrograms(config: Any, audio: AudioSpec, num_audios: int) -> Made:
    """Spectrograms, mel bins first, with a mask of their frames in 32 bit, as numpy makes it (Whisper's extractor)."""
    is_of_sound = torch.arange(audio.num_padded_frames) < audio.num_frames
    values = {"feature_attention_mask": is_of_sound.int().repeat(num_audios, 1)}
    return values, {"input_features": (num_audios, config.audio_config.num_mel_bins, audio.num_padded_frames)}


def _phi4_multimodal(config: Any, audio: AudioSpec, num_audios: int) -> Made:
    """Spectrograms, mel bins last, and of several sounds a mask of their frames."""
    values = {"audio_embed_sizes": torch.full((num_audios,), audio.num_tokens)}
    if num_audios > 1:
        values["audio_attention_mask"] = torch.ones(num_audios, audio.num_padded_frames, dtype=torch.bool)
    return values, {"audio_input_features": (num_audios, audio.num_padded_frames, config.audio_config.input_size)}


def _masked_spectrograms(config: Any, audio: AudioSpec, num_audios: int) -> Made:
    """Spectrograms, mel bins last, with a mask of their frames."""
    is_of_sound = torch.arange(audio.num_padded_frames) < audio.num_frames
    values = {"input_features_mask": is_of_sound.repeat(num_audios, 1)}
    width = getattr(config.audio_config, "audio_embed_dim", MEL_BINS)
    return values, {"input_features": (num_audios, audio.num_padded_frames, width)}


MEL_BINS = 128
"""Of Gemma's feature extractors that make spectrograms."""

_FAMILIES: Mapping[str, Callable[[Any, AudioSpec, int], Made]] = {
    **dict.fromkeys(("gemma3n", "gemma4", "gemma4_unified"), _masked_spectrograms),
    "phi4_multimodal": _phi4_multimodal,
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), _padded_spectrograms),
}
