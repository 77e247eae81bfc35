"""A file of chats as checked samples. Before training starts, every sample is looked at, and the headers of what it
shows."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from vlmplan.chats.data_files import DataFile, records_of_files
from vlmplan.chats.formats import NO_SOUNDS, NO_VIDEOS, RawSample, RawTurn, raw_sample
from vlmplan.chats.image_files import Embedded, PixelBudget, Source, checked_size, located, located_file
from vlmplan.chats.named_columns import NamedColumns
from vlmplan.chats.references import Reference
from vlmplan.chats.sound_files import sound_seconds
from vlmplan.chats.tools import OfMessage
from vlmplan.chats.video_files import VideoHeader, video_header
from vlmplan.errors import InputError
from vlmplan.files.data_file import Record
from vlmplan.files.json_reader import JsonDict, parse_json_object

T = TypeVar("T")
LISTED_FRAMES_PER_SECOND = 2.0
"""Of a list of frames that says nothing: ``sample_fps`` in qwen-vl-utils, ``video_fps`` in LLaMA-Factory."""
LEAVES_OUT = "--skip-bad-samples leaves such samples out"
"""What is said of a sample that cannot be used."""
MAX_SENTENCES = 20
"""Bad samples that a report quotes; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image of ``width x height`` pixels as it is looked at, by where it is."""

    source: Source
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPart:
    """A video by what its container's header says; read where it is planned for a trainer that takes videos. ``frames``
    are the images that it is a list of, the first of which is ``source`` then."""

    source: Path
    header: VideoHeader
    frames: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundPart:
    """A sound of ``seconds``, as its file says it, by where it is."""

    source: Source
    seconds: float


Part = TextPart | ImagePart | VideoPart | SoundPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side says. ``role`` is system, user, assistant or tool; only the user shows images, videos and sounds.
    ``more`` is what its message says beside role and content, of tools and thoughts. ``is_learnt``: of the
    assistant's, whether the loss counts it."""

    role: str
    content: tuple[Part, ...]
    more: OfMessage | None = None
    is_learnt: bool = True

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def num_characters(self) -> int:
        return len(self.text) + (0 if self.more is None else len(self.more.text))

    def message(self, content: object) -> JsonDict:
        """What a chat template gets of the turn, with ``content`` in its form."""
        return {"role": self.role, "content": content} | ({} if self.more is None else self.more.for_template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One chat. ``source`` says where it stands, as file:line or file[index].

    ``num_prompt_turns``: after how many turns a completion begins, of which all is learnt; None: what the assistant
    says is, but for turns that are not to be. ``is_plain``: prompt and completion are read one after the other, without
    the model's chat template.
    ``tools`` are those that may be called, each as JSON.
    """

    source: str
    turns: tuple[Turn, ...]
    num_prompt_turns: int | None = None
    is_plain: bool = False
    tools: tuple[str, ...] = ()

    @property
    def is_exchange(self) -> bool:
        """Whether it is one prompt and one completion, or a caption: what can be read one after the other."""
        is_one = [turn.role for turn in self.turns] == ["user", "assistant"]
        is_one = is_one and not self.tools and self.turns[1].more is None
        return is_one and (self.num_prompt_turns == 1 or not self.turns[0].text)

    @property
    def shown(self) -> tuple[ImagePart | VideoPart | SoundPart, ...]:
        """Images, videos and sounds, in the order of the text."""
        return tuple(part for turn in self.turns for part in turn.content if not isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return tuple(part for part in self.shown if isinstance(part, ImagePart))

    @property
    def videos(self) -> tuple[VideoPart, ...]:
        return tuple(part for part in self.shown if isinstance(part, VideoPart))

    @property
    def sounds(self) -> tuple[SoundPart, ...]:
        return tuple(part for part in self.shown if isinstance(part, SoundPart))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What was read: samples of each form by the form's name, and the ``num_bad`` that are left out.

    ``sentences`` are of the first ``MAX_SENTENCES`` bad ones, each with its file and place.
    """

    num_samples: int
    num_bad: int
    forms: Mapping[str, int] = field(default_factory=dict[str, int])
    sentences: tuple[str, ...] = ()


def read_chats(
    path: Path,
    *,
    skips_bad: bool,
    image_root: Path | None = None,
    no_videos: str | None = NO_VIDEOS,
    no_sounds: str | None = NO_SOUNDS,
) -> tuple[list[Sample], ReadReport]:
    """The samples of ``data_files``; images, videos and sounds are looked for in ``image_root``, then beside their
    file. ``no_videos`` and ``no_sounds`` as of ``raw_sample``.

    Raises InputError with file and place for the first sample that cannot be used, or leaves such samples out and
    reports them if ``skips_bad``. Raises it for a file without samples in any case, and UnavailableError for one that
    cannot be read.
    """
    budget = PixelBudget()

    def read(record: Record, file: DataFile) -> tuple[str, Sample]:
        folders = file.folders(image_root)
        return sample_of(
            record,
            folders,
            budget,
            file=file.path,
            columns=file.columns,
            no_videos=no_videos,
            no_sounds=no_sounds,
        )

    whys = {"videos": no_videos, "audios": no_sounds}
    takes = [name for name, why in whys.items() if why is None]
    return read_each(path, read, skips_bad=skips_bad, takes=takes)


def read_each(
    path: Path,
    read: Callable[[Record, DataFile], tuple[str, T]],
    *,
    skips_bad: bool,
    takes: Collection[str] = (),
) -> tuple[list[T], ReadReport]:
    """What ``read`` makes of each record of the files of ``path`` beside the name of its form; raises what
    ``read_chats`` does. ``takes`` as of ``data_files``."""
    samples: list[T] = []
    forms: Counter[str] = Counter()
    num_bad = 0
    sentences: list[str] = []
    for one, file in records_of_files(path, takes=takes):
        try:
            form, sample = read(one, file)
        except InputError as error:
            if not skips_bad:
                raise InputError(f"{error} ({LEAVES_OUT})") from None
            num_bad += 1
            if num_bad <= MAX_SENTENCES:
                sentences.append(str(error))
            continue
        samples.append(sample)
        forms[form] += 1
    if not samples:
        raise nothing_to_train_on(str(path), num_bad, sentences)
    return samples, ReadReport(num_samples=len(samples), num_bad=num_bad, forms=dict(forms), sentences=tuple(sentences))


def nothing_to_train_on(source: str, num_bad: int, sentences: Sequence[str]) -> InputError:
    """That ``source`` has no sample that can be used, of ``num_bad`` of which the first ``sentences`` tell."""
    if not num_bad:
        return InputError(f"{source} has no sample to train on")
    bad = "its only one is bad" if num_bad == 1 else f"all of its {num_bad:,} are bad, the first"
    return InputError(f"{source} has no sample to train on; {bad}: {sentences[0]}")


def sample_of(
    record: Record,
    folders: tuple[Path, ...],
    budget: PixelBudget,
    *,
    file: Path,
    columns: NamedColumns | None = None,
    no_videos: str | None = NO_VIDEOS,
    no_sounds: str | None = NO_SOUNDS,
) -> tuple[str, Sample]:
    """The name of its form, and the sample, whose columns may have names of their own. ``no_videos`` and ``no_sounds``
    as of ``raw_sample``.

    Raises InputError, naming the sample, for one that cannot be used.
    """
    values = values_of(record)
    if columns is not None:
        values = columns.standard(values, source=record.source)
    raw = raw_sample(values, source=record.source, no_videos=no_videos, no_sounds=no_sounds)
    return raw.form, checked_sample(raw, record, folders, budget, file=file)


def values_of(record: Record) -> JsonDict:
    """The object that a record is. Raises InputError, naming it, for what is no JSON object in UTF-8."""
    source = record.source
    try:
        text = record.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{source} is not text in UTF-8") from None
    values = parse_json_object(text, source=source)
    _refuse_halves(values, text, source)
    return values


def checked_sample(
    raw: RawSample, record: Record, folders: tuple[Path, ...], budget: PixelBudget, *, file: Path
) -> Sample:
    """``raw``, of ``record`` in ``file``, with its images found and their headers read. Raises InputError for one that
    cannot be used."""
    place = Embedded(file=file, offset=record.offset, num_bytes=len(record.content), index=0)
    turns = tuple(_turns(raw.turns, record.source, folders, budget, place))
    return Sample(
        source=record.source,
        turns=turns,
        num_prompt_turns=raw.num_prompt_turns,
        is_plain=raw.is_plain,
        tools=raw.tools,
    )


def _refuse_halves(values: JsonDict, text: str, source: str) -> None:
    """Raise InputError for half of a character, which JSON can write (RFC 8259, 8.2) and no text can hold."""
    if "\\u" not in text:
        return
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise InputError(f"{source} has half of a character, {half} (a lone surrogate), which is no text") from None


def _turns(
    raw: tuple[RawTurn, ...], source: str, folders: tuple[Path, ...], budget: PixelBudget, place: Embedded
) -> Iterator[Turn]:
    counts: Counter[str] = Counter()
    for turn in raw:
        content: list[Part] = []
        for part in turn.content:
            if isinstance(part, Reference):
                content.append(
                    _shown(part, source, folders, budget, dataclasses.replace(place, index=counts[part.kind]))
                )
                counts[part.kind] += 1
            elif part:
                content.append(TextPart(text=part))
        yield Turn(role=turn.role, content=tuple(content), more=turn.more, is_learnt=turn.is_learnt)


def _shown(
    reference: Reference, source: str, folders: tuple[Path, ...], budget: PixelBudget, place: Embedded
) -> ImagePart | VideoPart | SoundPart:
    """``place``: where it is, if it is in the sample itself."""
    if reference.is_video:
        return _video(reference, source, folders)
    if reference.is_sound:
        return _sound(reference, source, folders, place)
    return _image(reference, source, folders, budget, place)


def _video(reference: Reference, source: str, folders: tuple[Path, ...]) -> VideoPart:
    try:
        if reference.frames:
            return _listed_video(reference, folders)
        path = located_file(reference, folders, kind="video")
        return VideoPart(source=path, header=video_header(path, name=f"the video {path}"))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _listed_video(reference: Reference, folders: tuple[Path, ...]) -> VideoPart:
    """A video that is a list of frames, which are as large as each other."""
    frames = [located_file(Reference(text=name), folders, kind="frame") for name in reference.frames]
    width, height = checked_size(frames[0], name=f"the frame {frames[0]}")
    for frame in frames[1:]:
        size = checked_size(frame, name=f"the frame {frame}")
        if size != (width, height):
            raise InputError(
                f"the frame {frame} has {size[0]}x{size[1]} pixels, and the first of its video {width}x{height}; all "
                f"have to be of one size"
            )
    seconds = len(frames) / (reference.frames_per_second or LISTED_FRAMES_PER_SECOND)
    header = VideoHeader(width=width, height=height, num_frames=len(frames), seconds=seconds, is_listed=True)
    return VideoPart(source=frames[0], header=header, frames=tuple(frames))


def _image(
    reference: Reference, source: str, folders: tuple[Path, ...], budget: PixelBudget, place: Embedded
) -> ImagePart:
    try:
        found = located(reference, folders)
        number = place.index + 1
        name = f"image {number}" if isinstance(found, bytes) else f"image {number}, {found},"
        width, height = checked_size(found, name=name, budget=budget)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return ImagePart(source=place if isinstance(found, bytes) else found, width=width, height=height)


def _sound(reference: Reference, source: str, folders: tuple[Path, ...], place: Embedded) -> SoundPart:
    try:
        found = located(reference, folders)
        number = place.index + 1
        name = f"sound {number}" if isinstance(found, bytes) else f"sound {number}, {found},"
        seconds = sound_seconds(found, name=name)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return SoundPart(source=place if isinstance(found, bytes) else found, seconds=seconds)
