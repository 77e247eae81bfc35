"""A JSONL file of chats as checked samples. Before training starts, every line and image header is looked at."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vlmplan.errors import InputError, UnavailableError
from vlmplan.json_reader import parse_json_object
from vlmplan_trainer.data.forms import RawTurn, Reference, raw_turns
from vlmplan_trainer.data.images import EmbeddedImage, ImageSource, checked_size, located

MAX_SENTENCES = 20
"""Bad lines that a report quotes; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image of ``width x height`` pixels as it is looked at, by where it is."""

    source: ImageSource
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side says. ``role`` is system, user or assistant; only the user shows images."""

    role: str
    content: tuple[TextPart | ImagePart, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One chat. ``source`` says where it stands, as file:line."""

    source: str
    turns: tuple[Turn, ...]

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return tuple(part for turn in self.turns for part in turn.content if isinstance(part, ImagePart))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What was read. ``sentences`` are of the first ``MAX_SENTENCES`` bad lines, each with file and line."""

    num_samples: int
    num_bad: int
    sentences: tuple[str, ...] = ()


def read_chats(path: Path, *, skips_bad: bool, image_root: Path | None = None) -> tuple[list[Sample], ReadReport]:
    """The samples of a JSONL file; images are looked for in ``image_root``, then beside the file.

    Raises InputError with file and line for the first line that cannot be used, or leaves such lines out and reports
    them if ``skips_bad``. Raises it for a file without samples in any case, and UnavailableError for one that cannot
    be read.
    """
    folders = (path.parent,) if image_root is None else (image_root, path.parent)
    samples: list[Sample] = []
    num_bad, sentences = 0, []
    for number, offset, line in _lines(path):
        source = f"{path}:{number}"
        try:
            samples.append(_sample(line, source, folders, file=path, offset=offset))
        except InputError as error:
            if not skips_bad:
                raise InputError(f"{error} (--skip-bad-samples leaves such lines out)") from None
            num_bad += 1
            if num_bad <= MAX_SENTENCES:
                sentences.append(str(error))
    if not samples:
        why = f"; all of its {num_bad} are bad, the first: {sentences[0]}" if num_bad else ""
        raise InputError(f"{path} has no sample to train on{why}")
    return samples, ReadReport(num_samples=len(samples), num_bad=num_bad, sentences=tuple(sentences))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, place and bytes of the lines that are not blank."""
    try:
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if number == 1 and text.lstrip().startswith(b"["):
                    raise InputError(f"{path} is a JSON list; one sample per line is needed (JSONL)")
                if text.strip():
                    yield number, offset, line
                offset += len(line)
    except FileNotFoundError:
        raise UnavailableError(f"{path} does not exist") from None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None


def _sample(line: bytes, source: str, folders: tuple[Path, ...], *, file: Path, offset: int) -> Sample:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{source} is not text in UTF-8") from None
    raw = raw_turns(parse_json_object(text, source=source), source=source)
    place = EmbeddedImage(file=file, offset=offset, num_bytes=len(line), index=0)
    return Sample(source=source, turns=tuple(_turns(raw, source, folders, place)))


def _turns(raw: tuple[RawTurn, ...], source: str, folders: tuple[Path, ...], place: EmbeddedImage) -> Iterator[Turn]:
    num_images = 0
    for turn in raw:
        content: list[TextPart | ImagePart] = []
        for part in turn.content:
            if isinstance(part, Reference):
                content.append(_image(part, source, folders, place, num_images))
                num_images += 1
            elif part:
                content.append(TextPart(text=part))
        yield Turn(role=turn.role, content=tuple(content))


def _image(reference: Reference, source: str, folders: tuple[Path, ...], place: EmbeddedImage, index: int) -> ImagePart:
    try:
        found = located(reference, folders)
        name = f"image {index + 1}" if isinstance(found, bytes) else f"image {index + 1}, {found},"
        width, height = checked_size(found, name=name)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    kept: ImageSource = found
    if isinstance(found, bytes):
        kept = EmbeddedImage(file=place.file, offset=place.offset, num_bytes=place.num_bytes, index=index)
    return ImagePart(source=kept, width=width, height=height)
