"""Samples as a micro batch is made of them: their tokens with those of images and sounds, patches, and seconds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vlmplan.chats.downscaling import Size
from vlmplan.data_rules import DataRules
from vlmplan.dataset import Dataset, SampleSize
from vlmplan.dataset.images import ImageAmounts
from vlmplan.dataset.sounds import SoundAmounts
from vlmplan.dataset.videos import VideoAmounts
from vlmplan.errors import InputError
from vlmplan.sample_audio import BLANK_SECONDS
from vlmplan.workload import ModelFiles

BLANK_SIDE, BLANK_TEXT_TOKENS = 28, 16
"""Pixels of what the trainer shows where a micro batch shows nothing of a kind (its ``data/encode.py``), and tokens
that are enough for what stands around it."""
PERCENTILES = (5, 25, 50, 75, 95, 99)
LIMIT_MULTIPLE = 64
"""Of tokens, that limits which are tried are rounded up to. A choice."""


class Shape(NamedTuple):
    """One sample. ``tokens`` has the ``image_tokens`` and ``sound_tokens``, ``patches`` are the vision encoder's for
    all its images, among which are those that stand for the frames of its videos. ``seconds`` are those of the longest
    of its ``num_sounds``. ``answer_tokens`` are those of an answer that a decoder of its own writes, ``shorter_tokens``
    those of the other row of a sample with two. ``num_videos`` are those that the model is not given as images, as it
    is given ``num_pictures``."""

    tokens: int
    patches: int = 0
    num_images: int = 0
    image_tokens: int = 0
    sound_tokens: int = 0
    num_sounds: int = 0
    seconds: float = 0.0
    answer_tokens: int = 0
    shorter_tokens: int = 0
    num_pictures: int = 0
    num_videos: int = 0

    @property
    def real_tokens(self) -> int:
        """Tokens of a row that are no padding; of two rows the mean."""
        return (self.tokens + min(self.shorter_tokens or self.tokens, self.tokens)) // 2 + self.answer_tokens

    @property
    def length(self) -> int:
        """What the bundled trainer sorts by: of a sound's text, as all sounds are as long there."""
        is_heard = self.answer_tokens > 0 and self.sound_tokens == self.tokens
        return self.answer_tokens if is_heard else self.tokens


NOTHING = Shape(0)


class Blanks(NamedTuple):
    """What the bundled trainer adds to a micro batch that shows no picture, no video or has no sound, where others
    do."""

    picture: Shape = NOTHING
    video: Shape = NOTHING
    sound: Shape = NOTHING

    def beside(self, shape: Shape) -> Shape:
        """What a micro batch of these contents gets."""
        kinds = (shape.num_pictures, shape.num_videos, shape.num_sounds)
        made = [blank for blank, number in zip(self, kinds, strict=True) if not number and blank is not NOTHING]
        return Shape(
            sum(one.tokens for one in made),
            sum(one.patches for one in made),
            num_sounds=sum(one.num_sounds for one in made),
            seconds=max([one.seconds for one in made], default=0.0),
        )


NO_BLANKS = Blanks()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShapes:
    """Every sample of a data set as a model sees it. ``sizes`` are those of the images that its processor is given,
    with the patches of each; ``num_refused`` samples show an image that it refuses. ``blanks`` are what the bundled
    trainer may add to a micro batch. ``shows_clips`` where samples have videos that are no images to the model.
    ``sound_tokens`` are those of sounds by their seconds."""

    shapes: tuple[Shape, ...]
    sizes: tuple[tuple[int, Size], ...]
    """(patches, (width, height)), the smallest first."""
    num_refused: int
    sentences: tuple[str, ...]
    blanks: Blanks = NO_BLANKS
    shows_clips: bool = False
    sound_tokens: Mapping[float, int] = field(default_factory=dict[float, int], hash=False)
    answer_limit: int | None = None
    """Tokens of the longest answer that is trained on, where answers are limited."""

    @property
    def longest(self) -> int:
        """With what is added to it."""
        return max(shape.tokens + self.blanks.beside(shape).tokens for shape in self.shapes)

    @property
    def longest_answer(self) -> int:
        return max(shape.answer_tokens for shape in self.shapes)

    @property
    def heaviest(self) -> Shape:
        """The sample with the most patches, with those that are added to it, and of these the one with most images."""
        with_blanks = [one._replace(patches=one.patches + self.blanks.beside(one).patches) for one in self.shapes]
        return max(with_blanks, key=lambda shape: (shape.patches, shape.num_images))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The samples that are trained on at a limit, which ``samples`` keep to.

    ``num_cut`` of them are cut there. Left out are ``num_long`` where the trainer leaves long ones out, ``num_no_room``
    whose images and sounds alone do not fit, ``num_many_images`` with more images than are allowed, and
    ``num_many_sounds`` with more or longer sounds.
    """

    samples: SampleShapes
    limit: int
    num_cut: int = 0
    num_long: int = 0
    num_no_room: int = 0
    num_many_images: int = 0
    num_many_sounds: int = 0

    @property
    def num_over(self) -> int:
        """How often the limit is passed."""
        return self.num_cut + self.num_long + self.num_no_room


@dataclass(frozen=True, slots=True, kw_only=True)
class MostShown:
    """The most that a sample may show: images, sounds, and ``seconds`` of each; and tokens of its answer, where a
    decoder of its own writes it. None: any."""

    images: int | None = None
    sounds: int | None = None
    seconds: float | None = None
    answer_tokens: int | None = None

    @property
    def options(self) -> dict[str, float]:
        """The options that are given of sounds and answers, with their values."""
        said = {
            "--audios-per-sample": self.sounds,
            "--audio-seconds": self.seconds,
            "--target-len": self.answer_tokens,
        }
        return {name: value for name, value in said.items() if value is not None}

    def answer(self, shape: Shape) -> int:
        """Tokens of the sample's answer that are trained on."""
        return shape.answer_tokens if self.answer_tokens is None else min(shape.answer_tokens, self.answer_tokens)

    def has_room_for_sounds(self, shape: Shape) -> bool:
        """What is said in a sound is not cut."""
        if shape.num_sounds and self.answer(shape) < shape.answer_tokens:
            return False
        return shape.num_sounds <= (shape.num_sounds if self.sounds is None else self.sounds) and (
            self.seconds is None or shape.seconds <= self.seconds
        )


ANY = MostShown()


def trained(found: SampleShapes, rules: DataRules, *, limit: int, most: MostShown = ANY) -> Trained:
    """What is trained on at a ``limit`` in tokens. Raises InputError if nothing is."""
    kept: list[Shape] = []
    num_cut = num_long = num_no_room = num_many = num_sounds = 0
    for shape in found.shapes:
        if most.images is not None and shape.num_images > most.images:
            num_many += 1
        elif not most.has_room_for_sounds(shape):
            num_sounds += 1
        elif shape.tokens <= limit:
            num_cut += most.answer(shape) < shape.answer_tokens
            kept.append(shape._replace(answer_tokens=most.answer(shape)))
        elif rules.drops_long:
            num_long += 1
        elif shape.image_tokens + shape.sound_tokens >= limit:
            num_no_room += 1
        else:
            num_cut += 1
            kept.append(shape._replace(tokens=limit, answer_tokens=most.answer(shape)))
    if not kept:
        raise InputError(_nothing_kept(limit, num_sounds, most))
    return Trained(
        samples=replace(found, shapes=tuple(kept), answer_limit=most.answer_tokens),
        limit=limit,
        num_cut=num_cut,
        num_long=num_long,
        num_no_room=num_no_room,
        num_many_images=num_many,
        num_many_sounds=num_sounds,
    )


def _nothing_kept(limit: int, num_sounds: int, most: MostShown) -> str:
    if not num_sounds:
        return f"no sample fits into {limit:,} tokens; --seq-len is the limit"
    given = " and ".join(f"{name} {value:g}" for name, value in most.options.items())
    return f"no sample fits into {limit:,} tokens with {given}; give more"


def sample_shapes(dataset: Dataset, model: ModelFiles, rules: DataRules, planned: Size | None = None) -> SampleShapes:
    """The samples as ``model`` sees them under the trainer's rules, images brought to ``planned`` where that is said.

    Raises InputError where the model takes no images and the samples show some, or refuses every sample.
    """
    amounts = ImageAmounts(model, rules, planned if dataset.has_images else None)
    videos, sounds = VideoAmounts(model, rules, amounts), SoundAmounts(model)
    shapes: list[Shape] = []
    sizes: dict[Size, int] = {}
    refused: list[str] = []
    shows_clips = dataset.has_videos and videos.are_clips
    for sample in dataset.samples:
        try:
            shape = _shape(sample, amounts, videos, sizes, shows_clips=shows_clips)
            shapes.append(_heard(sample, shape, sounds))
        except InputError as error:
            refused.append(str(error))
    if not shapes:
        raise InputError(f"{dataset.source}: no sample can be used with {model.id}: {refused[0]}")
    return SampleShapes(
        shapes=tuple(shapes),
        sizes=tuple(sorted((patches, size) for size, patches in sizes.items())),
        num_refused=len(refused),
        sentences=tuple(dict.fromkeys(refused))[:1],
        blanks=_blanks(dataset, amounts, videos, sounds),
        shows_clips=shows_clips,
        sound_tokens=_sound_tokens(shapes, sounds),
    )


def _sound_tokens(shapes: Sequence[Shape], sounds: SoundAmounts) -> dict[float, int]:
    """Tokens by the seconds of the longest sound of each sample, and of a blank one; empty without sounds."""
    seconds = {shape.seconds for shape in shapes if shape.num_sounds}
    return {one: sounds.num_tokens(one) for one in sorted({*seconds, BLANK_SECONDS})} if seconds else {}


def _shape(
    sample: SampleSize, amounts: ImageAmounts, videos: VideoAmounts, sizes: dict[Size, int], *, shows_clips: bool
) -> Shape:
    """One sample; the sizes of its images go into ``sizes``, with their patches. Where ``shows_clips``, those count
    that fill up an image too, as they do of frames. Raises InputError for what the model's processor refuses."""
    videos.refuse_together(sample)
    shown = [videos.seen(video) for video in sample.videos]
    image_tokens, patches = sum(video.num_tokens for video in shown), sum(video.num_patches for video in shown)
    for video in shown:
        sizes[video.size] = amounts.shape(video.size, 1).num_patches
    seen_sizes = [amounts.seen_size(size) for size in sample.images]
    num_images = len(seen_sizes) + sum(video.num_images for video in shown)
    for seen in seen_sizes:
        made = amounts.shape(seen, len(seen_sizes))
        image_tokens += made.num_tokens
        patches += made.num_encoded_patches if shows_clips else made.num_patches
        sizes[seen] = made.num_patches
    image_tokens += amounts.more_tokens(len(sample.images), len(sample.videos))
    tokens = sample.text_tokens + image_tokens
    shorter = sample.shorter_tokens + image_tokens if sample.shorter_tokens else 0
    more = {"answer_tokens": sample.answer_tokens, "shorter_tokens": shorter}
    more |= {"num_pictures": len(sample.images), "num_videos": len(sample.videos)}
    if not videos.needs_both_kinds:
        more |= {"num_pictures": len(sample.images) + len(sample.videos), "num_videos": 0}
    return Shape(tokens, patches, num_images, image_tokens, **more)


def _heard(sample: SampleSize, shape: Shape, sounds: SoundAmounts) -> Shape:
    """``shape`` with the sounds of its sample. Raises InputError for one that the model's extractor refuses."""
    if not sample.sounds:
        return shape
    tokens = sum(sounds.num_tokens(seconds) for seconds in sample.sounds)
    return shape._replace(
        tokens=shape.tokens + tokens,
        sound_tokens=tokens,
        num_sounds=len(sample.sounds),
        seconds=max(sample.sounds),
    )


def _blanks(dataset: Dataset, amounts: ImageAmounts, videos: VideoAmounts, sounds: SoundAmounts) -> Blanks:
    """A blank image and a blank video, where samples show both kinds and the model sees them one after the other; a
    blank sound too where samples have sounds and images."""
    shows_both = dataset.has_pictures and dataset.has_videos and videos.needs_both_kinds
    shows_and_sounds = dataset.has_sounds and dataset.has_images
    if not shows_both and not shows_and_sounds:
        return NO_BLANKS
    image = amounts.shape((BLANK_SIDE, BLANK_SIDE), 1)
    made = Blanks(picture=Shape(image.num_tokens + BLANK_TEXT_TOKENS))
    if shows_both:
        video = videos.blank(BLANK_SIDE)
        patches = image.num_encoded_patches if videos.are_clips else image.num_patches
        made = Blanks(
            picture=made.picture._replace(patches=patches),
            video=Shape(video.num_tokens + BLANK_TEXT_TOKENS, video.num_patches),
        )
    if shows_and_sounds:
        tokens = sounds.num_tokens(BLANK_SECONDS) + BLANK_TEXT_TOKENS
        made = made._replace(sound=Shape(tokens, num_sounds=1, seconds=BLANK_SECONDS))
    return made


def limits_at(samples: SampleShapes, percentiles: Sequence[int]) -> list[int]:
    """Limits in tokens at these percentiles, below the longest sample, the largest first."""
    in_order = sorted(shape.tokens for shape in samples.shapes)
    found = {-(-int(percentile(in_order, one)) // LIMIT_MULTIPLE) * LIMIT_MULTIPLE for one in percentiles}
    return sorted((one for one in found if one < in_order[-1]), reverse=True)


def percentile(in_order: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in ascending order.

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99)
    (2, 4)
    """
    return in_order[max(0, math.ceil(len(in_order) * percent / 100) - 1)]
