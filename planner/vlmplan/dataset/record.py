"""What a scan of samples finds: of every one the tokens of its text, and how large and long is what it shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.chats.downscaling import Size
from vlmplan.chats.video_files import VideoHeader

RULES_VERSION = 11
"""Of what is counted; another one makes kept results old."""
MAX_SENTENCES = 5
"""Bad samples that are quoted; all are counted."""


class SampleSize(NamedTuple):
    """``text_tokens`` without those that stand for images, videos and sounds, with what is written between frames;
    ``images`` sizes are (width, height) as looked at, ``sounds`` are seconds. ``answer_tokens`` are those of an answer
    that a decoder of its own writes; 0: they are in the text. ``shorter_tokens`` are those of the text with the other
    answer, where a sample has two and the first are of the longer. ``learnt_tokens`` are those of the text that a loss
    counts; None: that is not known."""

    text_tokens: int
    images: tuple[Size, ...] = ()
    videos: tuple[VideoHeader, ...] = ()
    sounds: tuple[float, ...] = ()
    answer_tokens: int = 0
    shorter_tokens: int = 0
    learnt_tokens: int | None = None


class TextTokens(NamedTuple):
    """Tokens of one sample's text, and those of them that are learnt; None: that is not known."""

    text: int
    learnt: int | None = None


class PairTokens(NamedTuple):
    """Tokens of one sample's prompt and answer, where a decoder of its own writes the answer."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The samples that can be trained on, in their order, and what became of the others.

    ``counting`` says in words how tokens were counted; ``is_exact``: by the model's own tokenizer and template.
    """

    source: str
    samples: tuple[SampleSize, ...]
    forms: Mapping[str, int]
    num_bad: int
    sentences: tuple[str, ...]
    counting: str
    is_exact: bool

    @property
    def learnt_tokens(self) -> int | None:
        """Tokens that the loss counts in samples as they are; None where that is not known of all of them."""
        counts = [sample.learnt_tokens for sample in self.samples]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def has_pictures(self) -> bool:
        return any(sample.images for sample in self.samples)

    @property
    def has_videos(self) -> bool:
        return any(sample.videos for sample in self.samples)

    @property
    def has_sounds(self) -> bool:
        return any(sample.sounds for sample in self.samples)

    @property
    def has_images(self) -> bool:
        """Whether samples have images, or videos, whose frames are seen like images."""
        return any(sample.images or sample.videos for sample in self.samples)
