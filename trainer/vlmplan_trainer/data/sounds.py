"""Sounds as a model's feature extractor takes them, decoded by PyAV: one channel, at its rate, as long as the header
says."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vlmplan.chats.image_files import Embedded
from vlmplan.chats.samples import Sample, SoundPart
from vlmplan.chats.sound_files import missing_pyav, opened_container, opened_sound
from vlmplan.errors import InputError
from vlmplan.sample_audio import BLANK_SECONDS, sound_shape
from vlmplan.units import counted
from vlmplan.workload import ModelFiles
from vlmplan_trainer.data.embedded import embedded_content

FEATURES = ("input_features", "audio_input_features")
"""What models call what an extractor makes of sounds."""
MASK, FEATURES_OF_MASK = "audio_attention_mask", "audio_input_features"
"""Of frames of several sounds, which Phi-4-multimodal's extractor makes, and what they are of."""
MISSING_SHARE = 0.1
"""Of a sound, that may be missing at its end: what a header says may be of whole frames of a codec. A choice, as of
videos."""
MAX_TRIED_SECONDS = 600.0
"""Of a file of samples that are decoded before training, the first ones. A choice: about a second."""
KEPT_LENGTHS = 4096

Waveform = Any
"""A numpy array of float32, (values,)."""


def refuse_sounds_without_packages(samples: Sequence[Sample]) -> None:
    """Raise MissingPackageError where samples have sounds, and what decodes those is not installed."""
    heard = next((sample for sample in samples if sample.sounds), None)
    if heard is not None and importlib.util.find_spec("av") is None:
        raise missing_pyav(f"the sounds of {heard.source}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSounds:
    """The model that hears, and what its plan has room for: so many sounds of a sample, of so many seconds each; None:
    any."""

    model: ModelFiles
    per_sample: int | None = None
    seconds: float | None = None


class SoundMeter:
    """What a processor makes of a sound, by its seconds."""

    def __init__(self, processor: Any, planned: PlannedSounds) -> None:
        self._processor, self._planned = processor, planned
        self.num_tokens = lru_cache(KEPT_LENGTHS)(self._num_tokens)
        self.num_feature_tokens = lru_cache(KEPT_LENGTHS)(self._num_feature_tokens)
        self._blank: dict[str, Any] | None = None
        self._tried_seconds = 0.0

    @property
    def rate(self) -> int:
        """Values of a waveform in a second."""
        extractor = getattr(self._processor, "audio_processor", None) or self._processor.feature_extractor
        return int(extractor.sampling_rate)

    @property
    def blank(self) -> dict[str, Any]:
        """What the processor makes of a short silence and its token alone."""
        if self._blank is None:
            silence = np.zeros(round(BLANK_SECONDS * self.rate), dtype=np.float32)
            token = self._processor.audio_token
            self._blank = dict(
                self._processor(
                    text=[token], **self.arguments([silence]), add_special_tokens=False, return_tensors="pt"
                )
            )
        return self._blank

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """What the processor is called with for the sounds of a sample, which are decoded. Raises InputError, naming
        it, for one that cannot be."""
        numbered = enumerate(sample.sounds, start=1)
        name = f"{sample.source}: sound"
        return self.arguments([waveform(part, rate=self.rate, name=f"{name} {number}") for number, part in numbered])

    def check(self, sample: Sample, ids: Any) -> None:
        """Raise InputError where the processor makes other tokens of the sounds than the plan counts."""
        planned = sum(self.num_feature_tokens(part.seconds) for part in sample.sounds)
        found = int((ids == self._processor.audio_token_id).sum())
        if found != planned:
            raise InputError(
                f"{sample.source}: the model's processor makes {found} tokens of the sounds, and the plan counts "
                f"{planned}; a plan made with the files of this processor is needed"
            )

    def try_sound(self, part: SoundPart) -> None:
        """Decode a sound, of the first ones before training. Raises InputError for a broken one."""
        self._tried_seconds += part.seconds
        if self._tried_seconds <= MAX_TRIED_SECONDS:
            waveform(part, rate=self.rate, name="the sound")

    def arguments(self, waveforms: Sequence[Waveform]) -> dict[str, Any]:
        return {"audio": [*waveforms], "audio_kwargs": {"sampling_rate": self.rate}}

    def _num_feature_tokens(self, seconds: float) -> int:
        """Tokens that features are put into. Raises InputError for a sound that the extractor refuses."""
        return sound_shape(self._planned.model, seconds).num_feature_tokens

    def _num_tokens(self, seconds: float) -> int:
        """Tokens that stand in the text for a sound, with what the processor writes around it. Raises what
        ``num_feature_tokens`` does."""
        ids = self.blank["input_ids"][0]
        around = len(ids) - int((ids == self._processor.audio_token_id).sum())
        return self.num_feature_tokens(seconds) + around

    def refuse_more(self, sample: Sample) -> str | None:
        """Why the plan has no room for a sample's sounds; None where it has."""
        planned = self._planned
        if planned.per_sample is not None and len(sample.sounds) > planned.per_sample:
            has = counted(len(sample.sounds), "sound")
            return f"the sample has {has}, but the plan has --audios-per-sample {planned.per_sample}"
        if planned.seconds is None:
            return None
        room = sound_shape(planned.model, planned.seconds).num_frames
        for sound in sample.sounds:
            if sound_shape(planned.model, sound.seconds).num_frames > room:
                return f"a sound lasts {sound.seconds:g} s, but the plan has --audio-seconds {planned.seconds:g}"
        return None


def waveform(part: SoundPart, *, rate: int, name: str) -> Waveform:
    """The sound as its mean over channels, ``rate`` values a second, -1 to 1. Raises InputError, naming ``name``, for
    one that cannot be decoded."""
    content = embedded_content(part.source, kind="sound") if isinstance(part.source, Embedded) else part.source
    name = f"{name}, {part.source}," if isinstance(part.source, Path) else name
    wanted = round(part.seconds * rate)
    try:
        values = _decoded(content, rate, wanted)
    except Exception as error:  # PyAV raises anything at all for a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name} cannot be read as sound ({reason})") from None
    if len(values) < (1 - MISSING_SHARE) * wanted:
        raise InputError(f"{name} is cut off: it should last {part.seconds:g} s, and has {len(values) / rate:.3g} s")
    return np.pad(values[:wanted], (0, max(0, wanted - len(values))))


def _decoded(content: Path | bytes, rate: int, wanted: int) -> Waveform:
    """The sound, decoded: at least ``wanted`` values, where there are so many, and not much more."""
    av: Any = importlib.import_module("av")
    resampler = av.AudioResampler(format="fltp", rate=rate)  # ffmpeg's own mix to one channel is no mean
    pieces: list[Any] = []
    num_values = 0
    with opened_sound(content) as file, opened_container(file) as container:
        for frame in chain(container.decode(audio=0), [None]):
            for made in resampler.resample(frame):
                pieces.append(made.to_ndarray().mean(axis=0))
                num_values += len(pieces[-1])
            if num_values >= wanted:
                break
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)
