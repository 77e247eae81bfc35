"""Tokens of prompts and of answers, each with those that the model's tokenizer adds to a text, for models with an
encoder and a decoder."""

from collections.abc import Sequence

from vlmplan.chats.pairs import Pair, pair_of, speech_of
from vlmplan.chats.samples import Sample
from vlmplan.dataset.counting import TOKENS_PER_TEXT, TOKENS_PER_TURN, BytesCounter, ExactCounter, TokenCounter
from vlmplan.dataset.record import PairTokens
from vlmplan.errors import InputError

SPEECH_TOKENS = 4
"""Around what is said in a sound: language, task, that there are no times, and the end (transformers 5.23
``WhisperTokenizer.prefix_tokens``, of which labels lack the first)."""


class PairCounter:
    """Counts as ``counter`` does, which is that of the model's tokenizer. ``hears``: samples are sounds, and no prompt
    is read."""

    def __init__(self, counter: TokenCounter, *, hears: bool) -> None:
        assert isinstance(counter, ExactCounter | BytesCounter)
        self._counter, self._hears = counter, hears

    @property
    def is_exact(self) -> bool:
        return self._counter.is_exact

    @property
    def digest(self) -> str:
        return f"{self._counter.digest}/{'sounds' if self._hears else 'prompts'} and answers"

    @property
    def about(self) -> str:
        about = self._counter.about.removesuffix(" and its chat template")
        return about.replace(f"{TOKENS_PER_TURN} a turn", f"{TOKENS_PER_TEXT} a text")

    def counts(self, samples: Sequence[Sample]) -> list[PairTokens | InputError]:
        """Tokens of each sample, or why it has none."""
        read: list[Pair | InputError] = []
        for sample in samples:
            try:
                read.append(speech_of(sample) if self._hears else pair_of(sample))
            except InputError as error:
                read.append(error)
        pairs = [one for one in read if isinstance(one, Pair)]
        adds = not self._hears
        answers = self._counter.texts([pair.answer for pair in pairs], adds_special_tokens=adds)
        prompts = self._counter.texts([pair.prompt for pair in pairs], adds_special_tokens=adds)
        if self._hears:
            found = [PairTokens(0, answer + SPEECH_TOKENS) for answer in answers]
        else:
            found = [PairTokens(*both) for both in zip(prompts, answers, strict=True)]
        counted = iter(found)
        return [one if isinstance(one, InputError) else next(counted) for one in read]
