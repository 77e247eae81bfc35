"""Which samples can be trained on, and how long they are: known before training starts, without opening an image.

An image's number of tokens comes from its size, a video's and a sound's from its header; the first of them are decoded,
as the first images were. So every rank leaves out the same samples, and the ranks' numbers of micro batches stay equal.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from vlmplan.chats.learnt import TemplateError
from vlmplan.chats.learnt_tokens import learnt_tokens
from vlmplan.chats.samples import LEAVES_OUT, MAX_SENTENCES, ImagePart, Sample, SoundPart, VideoPart
from vlmplan.errors import InputError
from vlmplan_trainer.data.downscaling import text_of
from vlmplan_trainer.data.encode import Encoder, LeftOutError, TooLongError, kind_of_last
from vlmplan_trainer.data.places import ShownTokens
from vlmplan_trainer.data.templates import TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetScan:
    """The samples to train on, with their ``lengths`` in tokens after the cut.

    ``truncated`` and ``skipped`` are sources, ``num_images_reduced`` images made smaller; ``sentences`` are of the
    first ``MAX_SENTENCES`` samples that were left out.
    """

    samples: list[Sample] = field(default_factory=list[Sample])
    lengths: list[int] = field(default_factory=list[int])
    truncated: set[str] = field(default_factory=set[str])
    skipped: set[str] = field(default_factory=set[str])
    num_images_reduced: int = 0
    num_learnt: int | None = None
    """Tokens that the loss counts, after the cut; None: they were not counted."""
    sentences: tuple[str, ...] = ()

    @property
    def num_truncated(self) -> int:
        return len(self.truncated)

    @property
    def num_skipped(self) -> int:
        return len(self.skipped)


def scanned(encoder: Encoder, samples: Iterable[Sample], measure: "Measure | None" = None) -> DatasetScan:
    """The samples that can be trained on and how long they are, without opening an image.

    ``measure`` gives what ``Measure`` says of a sample; of a whole sample where nothing else is said. Raises InputError
    for the first bad one unless ``encoder.skips_bad``. Samples that do not fit the plan are left out.
    """
    measure = measure or (_measured if encoder.needs_places else type(encoder).measure)
    kept: list[Sample] = []
    lengths: list[int] = []
    truncated: set[str] = set()
    skipped: set[str] = set()
    sentences: list[str] = []
    num_reduced = 0
    num_learnt: int | None = 0
    for sample in samples:
        try:
            num_tokens, reduced, *learnt = measure(encoder, sample)
        except TemplateError:
            raise
        except InputError as error:
            if not encoder.skips_bad and not isinstance(error, LeftOutError):
                raise InputError(f"{error} ({LEAVES_OUT})") from None
            skipped.add(sample.source)
            sentences.append(str(error))
            continue
        kept.append(sample)
        lengths.append(min(num_tokens, encoder.seq_len))
        num_reduced += reduced
        num_learnt = num_learnt + sum(learnt) if learnt and num_learnt is not None else None
        if num_tokens > encoder.seq_len or sample.source in encoder.truncated:
            truncated.add(sample.source)
    encoder.truncated |= truncated
    encoder.skipped |= skipped
    return DatasetScan(
        samples=kept,
        lengths=lengths,
        truncated=truncated,
        skipped=skipped,
        num_images_reduced=num_reduced,
        num_learnt=num_learnt,
        sentences=tuple(sentences[:MAX_SENTENCES]),
    )


def _measured(encoder: Encoder, sample: Sample) -> tuple[int, int, int]:
    """The lengths of a whole sample, with the tokens after the cut that the loss counts.

    Raises LeftOutError for a sample that the plan has no room for, other InputErrors for a bad one.
    """
    _refuse_more_images(encoder, sample)
    rendered = encoder.rendered(sample)
    adds = encoder.adds_special_tokens(rendered)
    first = min(start for start, _ in rendered.spans)
    if sample.videos and encoder.video_meter.writes_videos:
        text, images = _written(encoder, sample, rendered.text)
    else:
        text, images = _images(encoder, sample, rendered.text, first)
    first = images.moved(first)
    made = encoder.tokenizer(text, add_special_tokens=adds, return_offsets_mapping=True, verbose=False)
    ends = [end for _, end in made["offset_mapping"]]
    end_of_text = len(text) + 1
    if images.places:
        place, gained = images.places[-1]
        if _tokens_before(place, ends) + gained >= encoder.seq_len:
            raise TooLongError(sample.source, encoder.seq_len, kind_of_last(sample))
    if max(1, _tokens_before(first, ends) + images.tokens_gained(first)) >= encoder.seq_len:
        raise LeftOutError(
            f"{sample.source}: the {'completion' if rendered.is_plain else 'assistant'}'s first word comes after "
            f"--seq-len {encoder.seq_len} tokens, so nothing would be learned"
        )
    num_learnt = 0
    spans = [(images.moved(start), images.moved(end)) for start, end in rendered.spans]
    for begin, end in learnt_tokens(made.encodings[0], spans):
        before = images.tokens_gained(made.token_to_chars(begin).start)
        num_learnt += max(0, min(end + before, encoder.seq_len) - (begin + before))
    return len(ends) + images.tokens_gained(end_of_text), images.num_reduced, num_learnt


Measure = Callable[[Encoder, Sample], tuple[int, int] | tuple[int, int, int]]
"""Tokens of a sample before the cut, its images that are made smaller and, where they are counted, the tokens that a
loss counts."""


def measured_prompt(encoder: Encoder, sample: Sample) -> tuple[int, int]:
    """What ``_measured`` returns but for what is learnt, of a sample that has no answer yet, which is not cut:
    ``encoder.seq_len`` is the most that a prompt may have."""
    _refuse_more_images(encoder, sample)
    prompt = encoder.prompt(sample)
    text, images = _images(encoder, sample, prompt, len(prompt))
    ids = encoder.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    num_tokens = len(ids) + images.tokens_gained(len(text) + 1)
    if num_tokens > encoder.seq_len:
        raise LeftOutError(
            f"{sample.source}: the prompt has {num_tokens:,} tokens, but beside the longest answer --seq-len leaves "
            f"{encoder.seq_len:,}"
        )
    return num_tokens, images.num_reduced


def _refuse_more_images(encoder: Encoder, sample: Sample) -> None:
    if encoder.images_per_sample is not None and len(sample.images) > encoder.images_per_sample:
        raise LeftOutError(
            f"{sample.source}: the sample shows {len(sample.images)} images, but the plan has --images-per-sample "
            f"{encoder.images_per_sample}"
        )
    if sample.videos and not _has_room(encoder, sample):
        raise LeftOutError(
            f"{sample.source}: the sample's videos have more patches than the images that the plan has room for; a "
            f"plan of --data has room for them"
        )
    if sample.sounds and encoder.sound_meter is not None:
        try:
            why = encoder.sound_meter.refuse_more(sample)
        except InputError as error:
            raise InputError(f"{sample.source}: {error}") from None
        if why is not None:
            raise LeftOutError(f"{sample.source}: {why}")


def _has_room(encoder: Encoder, sample: Sample) -> bool:
    """Whether the plan has room for a sample with videos. Raises InputError, naming it, for one that the processor
    refuses."""
    try:
        encoder.video_meter.refuse_together(sample)
        return encoder.has_room(sample)
    except InputError as error:
        raise InputError(f"{sample.source}: {error}") from None


def _images(encoder: Encoder, sample: Sample, text: str, first: int) -> tuple[str, ShownTokens]:
    """``text`` with a short text for each image, video and sound that joins the text around it as what the processor
    writes does; and what is shown in it. ``first``: where an answer begins."""
    written = encoder.with_images(sample, text, first)
    if written is not None:
        return written
    places, ends = list[tuple[int, int]](), list[tuple[int, int]]()
    pieces, end, length, gained, num_reduced = list[str](), 0, 0, 0, 0
    for part in sample.shown:
        token = text_of(encoder.processor, TYPES[type(part)])
        assert token is not None
        place = text.index(token, end)
        try:
            num_tokens, is_reduced = _tokens_of(encoder, part, sample.images)
        except InputError as error:
            raise InputError(f"{sample.source}: {error}") from None
        short, num_short = (
            (token, 1) if encoder.meter is None or not isinstance(part, ImagePart) else encoder.meter.stand_in
        )
        pieces += [text[end:place], short]
        length += place - end
        places.append((length + len(short) - len(short.lstrip()), gained + num_tokens - num_short))
        length, end = length + len(short), place + len(token)
        ends.append((end, length))
        gained += num_tokens - num_short
        num_reduced += is_reduced
    found = ShownTokens(places=tuple(places), num_reduced=num_reduced, ends=tuple(ends))
    return "".join([*pieces, text[end:]]), found


def _written(encoder: Encoder, sample: Sample, text: str) -> tuple[str, ShownTokens]:
    """``text`` with its videos written out, which have no more tokens than stand there then."""
    try:
        written, ends = encoder.video_meter.written([part.header for part in sample.videos], text)
        for part in sample.videos:
            encoder.try_video(part, name="the video")
    except InputError as error:
        raise InputError(f"{sample.source}: {error}") from None
    return written, ShownTokens(places=tuple((after - 1, 0) for _, after in ends), ends=tuple(ends))


def _tokens_of(
    encoder: Encoder, part: ImagePart | VideoPart | SoundPart, images: Sequence[ImagePart]
) -> tuple[int, bool]:
    """Tokens that an image, a video or a sound becomes, and whether it is an image that is made smaller; ``images`` are
    all of its sample."""
    if isinstance(part, SoundPart):
        assert encoder.sound_meter is not None
        encoder.sound_meter.try_sound(part)
        return encoder.sound_meter.num_tokens(part.seconds), False
    if isinstance(part, VideoPart):
        try:
            num_tokens = encoder.video_meter.num_tokens(part.header)
        except InputError as error:
            raise InputError(f"the video {part.source}: {error}") from None
        encoder.try_video(part, name="the video")
        return num_tokens, False
    assert encoder.meter is not None
    size = (part.width, part.height)
    fit = encoder.fit(size)
    if len(images) == 1:
        return encoder.meter.num_tokens(fit.canvas), fit.scaled != size
    place = next(place for place, image in enumerate(images) if image is part)
    among = encoder.meter.num_tokens_among(fit.canvas, is_first=place == 0)
    return among + encoder.meter.more_digits(place), fit.scaled != size


def _tokens_before(character: int, ends: list[int]) -> int:
    """The number of tokens that end at or before ``character``."""
    return next((index for index, end in enumerate(ends) if end > character), len(ends))
