"""Samples of one length with equal images that take at least what given samples take: what an estimate is made of.

Memory of the vision encoder goes with its patches, that of the language model with tokens. So images are chosen such
that a micro batch has no fewer patches than the real one, and each row no fewer tokens. Sounds of a micro batch are
padded to its longest, so that all are taken to be as long.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import NamedTuple

from vlmplan.architecture.images import ImageShape
from vlmplan.chats.downscaling import Size
from vlmplan.data_plan.lengths import SampleShapes
from vlmplan.dataset.images import ImageAmounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Covering:
    """Every sample has ``seq_len`` tokens and ``images_per_sample`` images of ``image_size`` (width, height), or as
    many videos of ``clip_frames`` where their model sees frames otherwise than images, and ``audios_per_sample`` sounds
    of ``audio_seconds``. ``target_len`` are the tokens of answers that a decoder of its own writes."""

    seq_len: int
    images_per_sample: int = 0
    image_size: Size | None = None
    clip_frames: int | None = None
    audios_per_sample: int = 0
    audio_seconds: float = 0.0
    target_len: int = 0

    @property
    def of_text(self) -> "Covering":
        """A micro batch as long, with nothing but text."""
        return Covering(seq_len=self.seq_len, target_len=self.target_len)

    def image(self, amounts: ImageAmounts, size: Size | None = None) -> ImageShape:
        """What one of the images becomes, of another ``size`` where that is said."""
        shown = size or self.image_size
        assert shown is not None
        if self.clip_frames is not None:
            return amounts.clip(self.clip_frames, shown)
        return amounts.shape(shown, self.images_per_sample)


class Sounds(NamedTuple):
    """``number`` sounds, the longest of so many ``seconds``."""

    number: int = 0
    seconds: float = 0.0


def covering(
    samples: SampleShapes,
    amounts: ImageAmounts,
    *,
    num_tokens: int,
    num_patches: int,
    num_images: int,
    num_rows: int,
    sounds: Sounds | None = None,
) -> Covering:
    """What covers a micro batch of ``num_rows`` rows of ``num_tokens``, with so many patches, images and sounds in all.

    Every row has as many sounds as there are on average, rounded up, of the seconds of the longest, and becomes longer
    where it has no room for those.
    """
    if sounds is None or not sounds.number:
        sizes = {"num_tokens": num_tokens, "num_patches": num_patches}
        return _of_images(samples, amounts, **sizes, num_images=num_images, num_rows=num_rows)
    count = -(-sounds.number // num_rows)
    taken = count * samples.sound_tokens[sounds.seconds]
    sizes = {"num_tokens": max(0, num_tokens - taken), "num_patches": num_patches}
    shown = _of_images(samples, amounts, **sizes, num_images=num_images, num_rows=num_rows)
    length = max(num_tokens, shown.seq_len + taken)
    return replace(shown, seq_len=length, audios_per_sample=count, audio_seconds=sounds.seconds)


def _of_images(
    samples: SampleShapes, amounts: ImageAmounts, *, num_tokens: int, num_patches: int, num_images: int, num_rows: int
) -> Covering:
    """What covers so many patches and images, in rows of ``num_tokens`` that have no sounds.

    As few images a sample as the micro batch has on average, rounded up, and of the smallest size of the data with
    which patches suffice; more images where those would not fit into the row. A row becomes longer only where no number
    of images fits.
    """
    if not num_patches:
        return Covering(seq_len=num_tokens)
    least = -(-num_images // num_rows)
    if samples.shows_clips:
        return clips_covering(samples, amounts, num_tokens=num_tokens, num_patches=num_patches / num_rows, count=least)
    most = max(least, max(shape.num_images for shape in samples.shapes))
    best: tuple[int, int, Size] | None = None
    for count in range(least, most + 1):
        size = _smallest(samples, -(-num_patches // (num_rows * count)))
        if size is None:
            continue
        taken = count * amounts.shape(size, count).num_tokens
        if taken <= num_tokens:
            return Covering(seq_len=num_tokens, images_per_sample=count, image_size=size)
        best = min(best or (taken, count, size), (taken, count, size))
    if best is None:  # more patches a sample than any number of its images has: images of a tiling that differs
        size = samples.sizes[-1][1]
        count = -(-num_patches // (num_rows * amounts.shape(size, most).num_patches))
        best = (count * amounts.shape(size, count).num_tokens, count, size)
    taken, count, size = best
    return Covering(seq_len=max(num_tokens, taken), images_per_sample=count, image_size=size)


def clips_covering(
    samples: SampleShapes, amounts: ImageAmounts, *, num_tokens: int, num_patches: float, count: int
) -> Covering:
    """``count`` videos a sample that have its patches, those of its images too: SmolVLM's tiles are frames to its
    tower."""
    size = samples.sizes[-1][1]
    frames = amounts.clip_frames(num_patches / count, size)
    taken = count * amounts.clip(frames, size).num_tokens
    return Covering(seq_len=max(num_tokens, taken), images_per_sample=count, image_size=size, clip_frames=frames)


def _smallest(samples: SampleShapes, num_patches: int) -> Size | None:
    """The smallest size of the data's images with so many patches; None if none has."""
    place = bisect_left(samples.sizes, (num_patches, (0, 0)))
    return samples.sizes[place][1] if place < len(samples.sizes) else None


def covering_every_order(samples: SampleShapes, amounts: ImageAmounts, *, limit: int, pads_to: int) -> Covering:
    """What covers any micro batch of any order: the longest sample and the one with most patches, in every row."""
    heaviest = samples.heaviest
    covers = covering(
        samples,
        amounts,
        num_tokens=padded(min(samples.longest, limit), pads_to, limit),
        num_patches=heaviest.patches,
        num_images=heaviest.num_images,
        num_rows=1,
        sounds=most_sounds(samples),
    )
    return replace(covers, target_len=answers_padded(samples.longest_answer, samples, pads_to))


def answers_padded(num_tokens: int, samples: SampleShapes, pads_to: int) -> int:
    """The length of answers in a micro batch whose longest has so many tokens."""
    return padded(num_tokens, pads_to, samples.answer_limit or num_tokens + pads_to)


def most_sounds(samples: SampleShapes) -> Sounds:
    """The most sounds that any of the samples has, each as many seconds as the longest."""
    shapes = samples.shapes
    return Sounds(max(shape.num_sounds for shape in shapes), max(shape.seconds for shape in shapes))


def padded(num_tokens: int, pads_to: int, limit: int) -> int:
    """Rounded up to the multiple, but not over the limit.

    >>> padded(13, 8, 100), padded(13, 8, 14)
    (16, 14)
    """
    return min(-(-num_tokens // pads_to) * pads_to, max(limit, num_tokens))
