"""The forms of a chat in JSON.

    {"messages": [{"role": "user", "content": "text" or [{"type": "text", "text": ...}, {"type": "image", ...}]}, ...]}
    {"conversations": [{"from": "human", "value": "<image>\\ntext"}, {"from": "gpt", "value": "text"}], "image": ...}

An image part says where the image is under ``image``, ``path``, ``url``, ``base64`` or OpenAI's ``image_url``, or says
nothing and takes the next of the sample's own ``images`` (or ``image``): a reference or a list of them. In texts of
the user, ``<image>`` is such a part too, with the line break beside it.
"""

from dataclasses import dataclass
from typing import Any

from vlmplan.errors import InputError
from vlmplan.json_reader import JsonObject, shown
from vlmplan.units import counted

IMAGE_TAG = "<image>"
ROLES = ("system", "user", "assistant")
LLAVA_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
TEXT_TYPES = ("text", "input_text")
IMAGE_TYPES = ("image", "image_url", "input_image")
REFERENCE_KEYS = ("image", "path", "url", "base64", "image_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where an image is, as it stands in the JSON: a path, a data: URI or base64."""

    text: str
    is_base64: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTurn:
    role: str
    content: tuple[str | Reference, ...]


class _Tag:
    """An image part that does not say which image."""


_TAG = _Tag()
_Parts = list[tuple[str, list[str | Reference | _Tag]]]


def raw_turns(values: dict[str, Any], *, source: str) -> tuple[RawTurn, ...]:
    """The turns of one sample. Raises InputError, with ``source`` in front, for what is in neither form."""
    sample = JsonObject(values, source=source)
    forms = [key for key in ("messages", "conversations") if key in sample]
    if len(forms) != 1:
        raise InputError(f"{source}: the sample has {' and '.join(forms) or 'neither messages nor conversations'}; "
                         "one of messages and conversations is needed")  # fmt: skip
    read = _messages if forms == ["messages"] else _conversations
    return _with_images(read(sample), _own_images(sample), source)


def _messages(sample: JsonObject) -> _Parts:
    turns: _Parts = []
    for message in sample.objects("messages"):
        role = message.choice("role", ROLES)
        content = message.raw("content")
        if isinstance(content, str):
            turns.append((role, _tagged(content, role)))
        elif isinstance(content, list):
            turns.append((role, [_part(part) for part in message.objects("content")]))
        else:
            message.refuse("content", "text, or a list of parts")
    return turns


def _conversations(sample: JsonObject) -> _Parts:
    turns: _Parts = []
    for message in sample.objects("conversations"):
        role = LLAVA_ROLES[message.choice("from", LLAVA_ROLES)]
        turns.append((role, _tagged(message.text("value"), role)))
    return turns


def _part(part: JsonObject) -> str | Reference | _Tag:
    kind = part.choice("type", (*TEXT_TYPES, *IMAGE_TYPES))
    if kind in TEXT_TYPES:
        return part.text("text")
    given = [key for key in REFERENCE_KEYS if part.maybe(key, part.raw) is not None]
    if not given:
        return _TAG
    if len(given) > 1:
        raise InputError(f"{part.source}: {part.path} names its image twice, by {' and '.join(given)}; one has to go")
    [key] = given
    if isinstance(part.raw(key), dict):  # OpenAI: {"image_url": {"url": "data:..."}}
        return Reference(text=part.object(key).text("url"))
    return Reference(text=part.text(key), is_base64=key == "base64")


def _tagged(text: str, role: str) -> list[str | Reference | _Tag]:
    """``text`` cut at its image tags. Whoever is not the user speaks of tags, and shows nothing."""
    if role != "user" or IMAGE_TAG not in text:
        return [text]
    parts: list[str | Reference | _Tag] = []
    pieces = text.split(IMAGE_TAG)
    for index, piece in enumerate(pieces):
        if index:
            parts.append(_TAG)
            piece = piece.removeprefix("\n")
        if index < len(pieces) - 1:
            piece = piece.removesuffix("\n")
        if piece:
            parts.append(piece)
    return parts


def _own_images(sample: JsonObject) -> list[Reference]:
    """``image`` or ``images`` of the sample: one reference or a list of them."""
    given = [key for key in ("image", "images") if sample.maybe(key, sample.raw) is not None]
    if len(given) > 1:
        raise InputError(f"{sample.source}: the sample has both image and images; one of the two has to go")
    if not given:
        return []
    [key] = given
    value = sample.raw(key)
    return [Reference(text=text) for text in ((value,) if isinstance(value, str) else sample.texts(key))]


def _with_images(turns: _Parts, images: list[Reference], source: str) -> tuple[RawTurn, ...]:
    num_tags = sum(part is _TAG for _, parts in turns for part in parts)
    if num_tags != len(images):
        fault = "an image tag has no image" if num_tags > len(images) else "there are more images than tags"
        raise InputError(f"{source}: {fault}: {counted(num_tags, 'tag')}, {counted(len(images), 'image')}"
                         + (f" ({shown([image.text for image in images])})" if images else ""))  # fmt: skip
    rest = iter(images)
    result = tuple(
        RawTurn(role=role, content=tuple(next(rest) if isinstance(part, _Tag) else part for part in parts))
        for role, parts in turns
    )
    _check_order(result, source)
    return result


def _check_order(turns: tuple[RawTurn, ...], source: str) -> None:
    for turn in turns:
        if turn.role != "user" and any(isinstance(part, Reference) for part in turn.content):
            raise InputError(f"{source}: a turn of the {turn.role} shows an image; images belong to the user's turns")
    answers = [index for index, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        raise InputError(f"{source}: no turn is the assistant's, so there is nothing to learn")
    if not any(turn.role == "user" for turn in turns[: answers[0]]):
        raise InputError(f"{source}: the assistant speaks before the user; a turn of the user has to come first")
    for index in answers:
        if not "".join(str(part) for part in turns[index].content).strip():
            raise InputError(f"{source}: turn {index + 1}, the assistant's, is empty")
