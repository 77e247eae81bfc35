"""A sample as what an encoder hears and what a decoder is to write: a sound, and what is said in it (Whisper).

The answer is encoded with the tokens that the model's tokenizer puts around it: language, task and whether there are
times, as far as tokenizer_config.json says them, and the end. The token that the decoder begins with is not among the
labels: shifted, they begin with it anyway. So does transformers' example (``examples/pytorch/speech-recognition/
run_speech_recognition_seq2seq.py``).
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from vlmplan.chats.pairs import Pair, speech_of
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError
from vlmplan.sample_audio import BLANK_SECONDS
from vlmplan.units import counted
from vlmplan_trainer.data.encode import Encoded, Encoder, LeftOutError, PlannedSamples
from vlmplan_trainer.data.pairs import PairEncoder
from vlmplan_trainer.data.sounds import waveform
from vlmplan_trainer.labels import HEARD, IGNORED_LABEL, TARGET_LABELS


class SpeechEncoder(PairEncoder):
    """Encodes samples of one sound each and what is said in it. ``begins_with``: the decoder's first token."""

    measures = "transcript"

    def __init__(self, processor: Any, planned: PlannedSamples, *, begins_with: int | None, **more: Any) -> None:
        super().__init__(processor, planned, **more)
        self._begins_with = begins_with

    def encode(self, sample: Sample) -> Encoded:
        """The tensors of a sample. Raises InputError naming it."""
        assert self.sound_meter is not None
        [part] = sample.sounds
        heard = waveform(part, rate=self.sound_meter.rate, name=f"{sample.source}: the sound")
        return self._heard(heard) | {TARGET_LABELS: self._labels(self._said(sample))}

    def encode_or_nothing(self, sample: Sample) -> Encoded:
        """As of other samples whose sounds are decoded when they are reached."""
        return Encoder.encode_or_nothing(self, sample)

    @cached_property
    def nothing(self) -> Encoded:
        """A short silence that nothing is learned from, in place of a sample that turned out bad during training."""
        assert self.sound_meter is not None
        silence = torch.zeros(round(BLANK_SECONDS * self.sound_meter.rate)).numpy()
        return self._heard(silence) | {TARGET_LABELS: self._labels([])}

    @property
    def blank_sound(self) -> Encoded:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Never put in: every sample has a sound."""
        return self.nothing

    def measure(self, sample: Sample) -> tuple[int, int]:
        """Tokens of what is said, and no images. What is longer than the plan's answers is left out: cut, it would
        teach to stop early."""
        said = self._said(sample)
        assert self.sound_meter is not None
        try:
            why = self.sound_meter.refuse_more(sample)
            if why is None:
                self.sound_meter.try_sound(sample.sounds[0])
        except InputError as error:
            raise InputError(f"{sample.source}: {error}") from None
        num_tokens = len(said)
        if num_tokens > self.target_len:
            why = f"what is said has {counted(num_tokens, 'token')}, but the plan has --target-len {self.target_len}"
        if why is not None:
            raise LeftOutError(f"{sample.source}: {why}")
        return num_tokens, 0

    def pair(self, sample: Sample) -> Pair:
        """What is said, and no prompt. Raises InputError for a sample that is no sound and what is said in it."""
        self._refuse_unseen_images(sample)
        return speech_of(sample)

    def _said(self, sample: Sample) -> list[int]:
        """Token ids of what is said, without the decoder's first token."""
        ids = list(self.tokenizer(text_target=self.pair(sample).answer, verbose=False)["input_ids"])
        return ids[1:] if ids and ids[0] == self._begins_with else ids

    def _labels(self, ids: list[int]) -> torch.Tensor:
        """(1, tokens), padded with labels that count nothing."""
        wanted = max(self._target_pads_to, -(-len(ids) // self._target_pads_to) * self._target_pads_to)
        return torch.tensor([ids + [IGNORED_LABEL] * (min(wanted, self.target_len) - len(ids))])

    def _heard(self, values: Any) -> Encoded:
        assert self.sound_meter is not None
        made: Mapping[str, Any] = self.processor.feature_extractor(
            values, sampling_rate=self.sound_meter.rate, return_tensors="pt"
        )
        return {HEARD: made[HEARD]}
