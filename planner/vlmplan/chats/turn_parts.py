"""Parts of a turn: texts, tags, and what a sample shows in their place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vlmplan.chats.references import (
    OWN_SOUNDS,
    OWN_VIDEOS,
    Reference,
    image_of_part,
    own_sounds,
    own_videos,
    sound_of_part,
    video_of_part,
)
from vlmplan.chats.tools import OfMessage
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, shown
from vlmplan.units import counted

IMAGE_TAG = "<image>"
TEXT_TYPES = ("text", "input_text")
IMAGE_TYPES = ("image", "image_url", "input_image")
VIDEO_TYPE = "video"
SOUND_TYPES = ("audio", "audio_url", "input_audio")


class Tag:
    """An image part that does not say which image, or a video's or a sound's."""


class Unlearnt:
    """That a turn of the assistant is not to be learnt."""


TAG, VIDEO, SOUND, UNLEARNT = Tag(), Tag(), Tag(), Unlearnt()
Part = str | Reference | Tag | OfMessage | Unlearnt
Parts = list[tuple[str, list[Part]]]


def part_of(part: JsonObject) -> Part:
    """A part of a content; qwen-vl-utils' has no type, and LLaMA-Factory 1's has a text under value."""
    untyped = next((key for key in ("text", "image", VIDEO_TYPE, "audio") if key in part and "type" not in part), None)
    kind = untyped or part.choice("type", (*TEXT_TYPES, *IMAGE_TYPES, VIDEO_TYPE, *SOUND_TYPES))
    if kind in TEXT_TYPES:
        return part.text("value" if "text" not in part and "value" in part else "text")
    if kind == VIDEO_TYPE:
        return video_of_part(part) or VIDEO
    if kind in SOUND_TYPES:
        return sound_of_part(part) or SOUND
    return image_of_part(part) or TAG


def tagged(text: str, role: str) -> list[Part]:
    """``text`` cut at its image tags. Whoever is not the user speaks of tags, and shows nothing."""
    if role != "user" or IMAGE_TAG not in text:
        return [text]
    parts: list[Part] = []
    pieces = text.split(IMAGE_TAG)
    for index, piece in enumerate(pieces):
        if index:
            parts.append(TAG)
            piece = piece.removeprefix("\n")
        if index < len(pieces) - 1:
            piece = piece.removesuffix("\n")
        if piece:
            parts.append(piece)
    return parts


def with_images(turns: Parts, images: list[Reference], source: str, *, shows_first: bool) -> Parts:
    """The images in place of their tags; before the user's first text where there are none and it ``shows_first``."""
    num_tags = sum(part is TAG for _, parts in turns for part in parts)
    shows_own = any(isinstance(part, Reference) and part.kind == "image" for _, parts in turns for part in parts)
    if images and not num_tags and not shows_own and shows_first:
        turns, num_tags = _images_first(turns, len(images)), len(images)
    if num_tags != len(images):
        fault = "an image tag has no image" if num_tags > len(images) else "there are more images than tags"
        raise InputError(f"{source}: {fault}: {counted(num_tags, 'tag')}, {counted(len(images), 'image')}"
                         + (f" ({shown([image.text for image in images])})" if images else ""))  # fmt: skip
    return _filled(turns, TAG, images)


def _images_first(turns: Parts, num_images: int) -> Parts:
    first = next((index for index, (role, _) in enumerate(turns) if role == "user"), None)
    tags: list[Part] = [TAG] * num_images
    return [(role, tags + parts if index == first else parts) for index, (role, parts) in enumerate(turns)]


def _filled(turns: Parts, tag: Tag, references: Iterable[Reference]) -> Parts:
    """The references one after another, in place of the tags."""
    rest = iter(references)
    return [(role, [next(rest) if part is tag else part for part in parts]) for role, parts in turns]


# -- videos and sounds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a sample may show beside images: its name, the text that stands for one, and where the sample's own are."""

    name: str
    text: str
    tag: Tag
    keys: tuple[str, ...]
    own: Callable[[JsonObject], list[Reference]]


KINDS = (
    Kind(name="video", text="<video>", tag=VIDEO, keys=OWN_VIDEOS, own=own_videos),
    Kind(name="sound", text="<audio>", tag=SOUND, keys=OWN_SOUNDS, own=own_sounds),
)


def refuse_own(sample: JsonObject, kind: Kind, why: str | None) -> None:
    for key in kind.keys:
        if why is not None and sample.maybe(key, sample.raw) not in (None, []):
            sample.complain(key, why)


def with_tags(turns: Parts, sample: JsonObject, kind: Kind, why: str | None) -> Parts:
    """The user's texts cut at their tags of this kind, in a sample that has some beside its turns."""
    if why is not None:
        if any(part is kind.tag or _is_of(part, kind) for _, parts in turns for part in parts):
            raise InputError(f"{sample.source}: a turn shows a {kind.name}; {why}")
        return turns
    if all(sample.maybe(key, sample.raw) is None for key in kind.keys):
        return turns
    return [(role, _cut_at(parts, kind) if role == "user" else parts) for role, parts in turns]


def _is_of(part: Part, kind: Kind) -> bool:
    return isinstance(part, Reference) and part.kind == kind.name


def _cut_at(parts: list[Part], kind: Kind) -> list[Part]:
    cut: list[Part] = []
    for part in parts:
        if not isinstance(part, str) or kind.text not in part:
            cut.append(part)
            continue
        first, *others = part.split(kind.text)
        cut += [first] if first else []
        for piece in others:
            cut += [kind.tag, piece] if piece else [kind.tag]
    return cut


def with_own(turns: Parts, sample: JsonObject, kind: Kind) -> Parts:
    own = kind.own(sample)
    num_tags = sum(part is kind.tag for _, parts in turns for part in parts)
    if num_tags != len(own):
        raise InputError(
            f"{sample.source}: {counted(num_tags, f'{kind.text} tag')}, but {counted(len(own), kind.name)}"
        )
    return _filled(turns, kind.tag, own)
