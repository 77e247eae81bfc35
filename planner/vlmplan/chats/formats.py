"""The forms of a sample in JSON.

    {"messages": [{"role": "user", "content": "text" or [{"type": "text", "text": ...}, {"type": "image", ...}]}, ...]}
    {"conversations": [{"from": "human", "value": "<image>\\ntext"}, {"from": "gpt", "value": "text"}], "image": ...}
    {"instruction": "text", "input": "text", "output": "text", "system": "text", "history": [["text", "text"], ...]}
    {"prompt": [messages], "completion": [messages]}
    {"prompt": "text", "completion": "text"}
    {"audio": "file" or {"path": ...}, "text": "what is said"}
    {"image": "file" or {"path": ...}, "text": "what is written about it"}

Those of OpenAI, LLaVA (and ShareGPT), Alpaca and TRL, and of data sets of speech, whose text may be ``sentence`` or
``transcription`` too. An image part says where the image is under ``image``, ``path``,
``url``, ``base64`` or OpenAI's ``image_url``, or says nothing and takes the next of the sample's own ``images`` (or
``image``): a reference or a list of them. In texts of the user, ``<image>`` is such a part too, with the line break
beside it. Messages with neither parts nor tags show the sample's images before the user's first text, as TRL has it
(``prepare_multimodal_messages`` in ``trl/data_utils.py``).

Where a trainer's videos are planned, ``<video>`` and ``video`` or ``videos`` are read as images and their tags are, and
so is a part of the type video, which says where it is under ``video`` or ``path``, or takes the sample's next. In place
of its file a video may be a list of the images that its frames are, as qwen-vl-utils and LLaMA-Factory have it. In a
sample without either key ``<video>`` is text: pages are written with that tag.

So it is with sounds where those are read: ``<audio>``, ``audio`` or ``audios``, and parts of the type audio, with
``audio``, ``path``, ``url``, ``base64`` or OpenAI's ``input_audio`` and ``audio_url``. A sound is a file, a data: URI
or base64, as images are.

What is learnt is what the assistant says; of a prompt and its completion, all of the completion and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmplan.chats.references import (
    OWN_IMAGES,
    OWN_SOUNDS,
    OWN_VIDEOS,
    Reference,
    image_of_part,
    listed_values,
    own_images,
    own_sounds,
    own_videos,
    refuse_pair,
    sound_of_part,
    video_of_part,
)
from vlmplan.errors import InputError
from vlmplan.json_reader import JsonObject, shown
from vlmplan.units import counted

IMAGE_TAG = "<image>"
ROLES = ("system", "user", "assistant")
LLAVA_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
TEXT_TYPES = ("text", "input_text")
IMAGE_TYPES = ("image", "image_url", "input_image")
VIDEO_TYPE = "video"
SOUND_TYPES = ("audio", "audio_url", "input_audio")
NO_VIDEOS = NO_SOUNDS = "samples of text and images are read, video and sound are not"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTurn:
    role: str
    content: tuple[str | Reference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    """``form`` is its name for people. ``num_prompt_turns``: after how many turns the completion begins; None for a
    chat. ``is_plain``: prompt and completion are texts, to be read one after the other without a chat template."""

    form: str
    turns: tuple[RawTurn, ...]
    num_prompt_turns: int | None = None
    is_plain: bool = False


class _Tag:
    """An image part that does not say which image, or a video's or a sound's."""


_TAG, _VIDEO, _SOUND = _Tag(), _Tag(), _Tag()
_Part = str | Reference | _Tag
_Parts = list[tuple[str, list[_Part]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The turns of a sample before its own images are put in."""

    form: str
    turns: _Parts
    num_prompt_turns: int | None = None
    is_plain: bool = False
    shows_images_first: bool = False


def raw_sample(
    values: dict[str, Any],
    *,
    source: str,
    no_videos: str | None = NO_VIDEOS,
    no_sounds: str | None = NO_SOUNDS,
    completion_key: str = "completion",
) -> RawSample:
    """One sample; what follows a ``prompt`` stands under ``completion_key``. ``no_videos`` says why videos are not
    read, None: they are; ``no_sounds`` as much of sounds.

    Raises InputError, with ``source`` in front, for what is in none of the forms.
    """
    sample = JsonObject(values, source=source)
    whys = {"video": no_videos, "sound": no_sounds}
    for kind in _KINDS:
        _refuse_own(sample, kind, whys[kind.name])
    refuse_pair(sample, completion_key)
    found = [key for key in _READERS if key in sample] or _transcripts(sample) or _captions(sample)
    if len(found) != 1:
        raise InputError(
            f"{source}: the sample has {' and '.join(found) or 'none of ' + ', '.join(_READERS)}; one is needed: "
            "messages, conversations (LLaVA), instruction and output (Alpaca), or prompt and completion (TRL)"
        )
    read = _prompt(sample, completion_key) if found == ["prompt"] else _READERS.get(found[0], _described)(sample)
    for kind in _KINDS:
        read = replace(read, turns=_with_tags(read.turns, sample, kind, whys[kind.name]))
    parts = _with_images(read, own_images(sample), source)
    for kind in _KINDS:
        parts = _with_own(parts, sample, kind) if whys[kind.name] is None else parts
    turns = tuple([_turn(role, content) for role, content in parts])
    _check_order(turns, source, is_plain=read.is_plain)
    return RawSample(form=read.form, turns=turns, num_prompt_turns=read.num_prompt_turns, is_plain=read.is_plain)


# -- the forms -------------------------------------------------------------------------------------------------------


def _chat(sample: JsonObject) -> _Read:
    return _Read(form="messages", turns=_messages(sample, "messages"), shows_images_first=True)


def _conversations(sample: JsonObject) -> _Read:
    """LLaVA's; with role and content in place of from and value, messages under another name."""
    listed = sample.objects("conversations")
    if listed and "from" not in listed[0] and "role" in listed[0]:
        return _Read(form="conversations", turns=_messages(sample, "conversations"), shows_images_first=True)
    turns: _Parts = []
    for message in listed:
        role = LLAVA_ROLES[message.choice("from", LLAVA_ROLES)]
        turns.append((role, _tagged(message.text("value"), role)))
    return _Read(form="conversations (LLaVA)", turns=turns)


def _instruction(sample: JsonObject) -> _Read:
    """Instruction and input are one turn with a line break between them, earlier turns and a system's may come first;
    as LLaMA-Factory reads the form (``AlpacaDatasetConverter`` in ``data/converter.py``)."""
    turns: _Parts = []
    system = sample.maybe("system", sample.text)
    if system:
        turns.append(("system", [system]))
    for pair in listed_values(sample.maybe("history", sample.raw)):
        said = listed_values(pair)
        if len(said) != 2 or not all(isinstance(text, str) for text in said):
            sample.refuse("history", "a list of pairs of texts, what the user and the assistant said,")
        turns += [("user", _tagged(said[0], "user")), ("assistant", [said[1]])]
    asked = [text for text in (sample.text("instruction"), sample.maybe("input", sample.text)) if text]
    if not asked:
        sample.refuse("instruction", "a text that is not empty, or an input,")
    turns.append(("user", _tagged("\n".join(asked), "user")))
    turns.append(("assistant", [sample.text("output")]))
    return _Read(form="instruction, output (Alpaca)", turns=turns)


def _prompt(sample: JsonObject, completion_key: str = "completion") -> _Read:
    kinds: dict[str, type[object]] = {key: type(sample.raw(key)) for key in ("prompt", completion_key)}
    if isinstance(sample.values.get("label"), bool):
        sample.complain("label", "samples that are marked as good or bad are not for supervised fine-tuning")
    if set(kinds.values()) == {str}:
        own = {"images": OWN_IMAGES, "videos": OWN_VIDEOS, "sounds": OWN_SOUNDS}
        for kind, key in ((kind, key) for kind, keys in own.items() for key in keys):
            if sample.maybe(key, sample.raw) is not None:
                sample.complain(key, f"a prompt that is a text shows no {kind}; a list of messages does")
        texts: _Parts = [("user", [sample.text("prompt")]), ("assistant", [sample.text(completion_key)])]
        return _Read(form="prompt, completion (TRL, texts)", turns=texts, num_prompt_turns=1, is_plain=True)
    if set(kinds.values()) != {list}:
        key = next((key for key, kind in kinds.items() if kind not in (str, list)), completion_key)
        sample.refuse(key, f"a text, or a list of messages, and the same for prompt and {completion_key},")
    prompt, completion = _messages(sample, "prompt"), _messages(sample, completion_key)
    if not prompt or not completion or completion[0][0] != "assistant":
        raise InputError(
            f"{sample.source}: a prompt of a message or more and a {completion_key} that begins with one of the "
            f"assistant's are needed; there are {counted(len(prompt), 'message')} and "
            f"{counted(len(completion), 'message')}"
        )
    return _Read(
        form="prompt, completion (TRL, messages)",
        turns=prompt + completion,
        num_prompt_turns=len(prompt),
        shows_images_first=True,
    )


_READERS: Mapping[str, Callable[[JsonObject], _Read]] = {
    "messages": _chat,
    "conversations": _conversations,
    "instruction": _instruction,
    "prompt": _prompt,
}
"""By the key that tells a form."""


TRANSCRIPTS = ("text", "sentence", "transcription")
"""What data sets of speech call what is said: LibriSpeech, Common Voice and FLEURS on the Hub."""
CAPTIONS = ("text", "caption")
"""What data sets of images call what is written in them or about them: IAM and image folders on the Hub, Flickr30k."""


def _transcripts(sample: JsonObject) -> list[str]:
    """The keys of what is said in a sample that has a sound beside them."""
    has_sound = any(sample.maybe(key, sample.raw) is not None for key in OWN_SOUNDS)
    return [key for key in TRANSCRIPTS if has_sound and key in sample]


def _captions(sample: JsonObject) -> list[str]:
    """The keys of what is written about the one image beside it."""
    has_image = any(sample.maybe(key, sample.raw) is not None for key in OWN_IMAGES)
    return [key for key in CAPTIONS if has_image and key in sample]


def _described(sample: JsonObject) -> _Read:
    """A sound and what is said in it, or an image and what is written about it."""
    said = _transcripts(sample)
    [key] = said or _captions(sample)
    turns: _Parts = [("user", [_SOUND if said else _TAG]), ("assistant", [sample.text(key)])]
    return _Read(form="audio, text (speech)" if said else "image, text", turns=turns)


def _messages(sample: JsonObject, key: str) -> _Parts:
    turns: _Parts = []
    for message in sample.objects(key):
        role = message.choice("role", ROLES)
        content = message.raw("content")
        if isinstance(content, str):
            turns.append((role, _tagged(content, role)))
        elif isinstance(content, list):
            turns.append((role, [_part(part) for part in message.objects("content")]))
        else:
            message.refuse("content", "text, or a list of parts")
    return turns


# -- parts and images --------------------------------------------------------------------------------------------------


def _part(part: JsonObject) -> _Part:
    kind = part.choice("type", (*TEXT_TYPES, *IMAGE_TYPES, VIDEO_TYPE, *SOUND_TYPES))
    if kind in TEXT_TYPES:
        return part.text("text")
    if kind == VIDEO_TYPE:
        return video_of_part(part) or _VIDEO
    if kind in SOUND_TYPES:
        return sound_of_part(part) or _SOUND
    return image_of_part(part) or _TAG


def _tagged(text: str, role: str) -> list[_Part]:
    """``text`` cut at its image tags. Whoever is not the user speaks of tags, and shows nothing."""
    if role != "user" or IMAGE_TAG not in text:
        return [text]
    parts: list[_Part] = []
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


def _with_images(read: _Read, images: list[Reference], source: str) -> _Parts:
    turns = read.turns
    num_tags = sum(part is _TAG for _, parts in turns for part in parts)
    shows_own = any(isinstance(part, Reference) and part.kind == "image" for _, parts in turns for part in parts)
    if images and not num_tags and not shows_own and read.shows_images_first:
        turns, num_tags = _images_first(turns, len(images)), len(images)
    if num_tags != len(images):
        fault = "an image tag has no image" if num_tags > len(images) else "there are more images than tags"
        raise InputError(f"{source}: {fault}: {counted(num_tags, 'tag')}, {counted(len(images), 'image')}"
                         + (f" ({shown([image.text for image in images])})" if images else ""))  # fmt: skip
    return _filled(turns, _TAG, images)


def _images_first(turns: _Parts, num_images: int) -> _Parts:
    first = next((index for index, (role, _) in enumerate(turns) if role == "user"), None)
    tags: list[_Part] = [_TAG] * num_images
    return [(role, tags + parts if index == first else parts) for index, (role, parts) in enumerate(turns)]


def _filled(turns: _Parts, tag: _Tag, references: Iterable[Reference]) -> _Parts:
    """The references one after another, in place of the tags."""
    rest = iter(references)
    return [(role, [next(rest) if part is tag else part for part in parts]) for role, parts in turns]


# -- videos and sounds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a sample may show beside images: its name, the text that stands for one, and where the sample's own are."""

    name: str
    text: str
    tag: _Tag
    keys: tuple[str, ...]
    own: Callable[[JsonObject], list[Reference]]


_KINDS = (
    _Kind(name="video", text="<video>", tag=_VIDEO, keys=OWN_VIDEOS, own=own_videos),
    _Kind(name="sound", text="<audio>", tag=_SOUND, keys=OWN_SOUNDS, own=own_sounds),
)


def _refuse_own(sample: JsonObject, kind: _Kind, why: str | None) -> None:
    for key in kind.keys:
        if why is not None and sample.maybe(key, sample.raw) not in (None, []):
            sample.complain(key, why)


def _with_tags(turns: _Parts, sample: JsonObject, kind: _Kind, why: str | None) -> _Parts:
    """The user's texts cut at their tags of this kind, in a sample that has some beside its turns."""
    if why is not None:
        if any(part is kind.tag or _is_of(part, kind) for _, parts in turns for part in parts):
            raise InputError(f"{sample.source}: a turn shows a {kind.name}; {why}")
        return turns
    if all(sample.maybe(key, sample.raw) is None for key in kind.keys):
        return turns
    return [(role, _cut_at(parts, kind) if role == "user" else parts) for role, parts in turns]


def _is_of(part: _Part, kind: _Kind) -> bool:
    return isinstance(part, Reference) and part.kind == kind.name


def _cut_at(parts: list[_Part], kind: _Kind) -> list[_Part]:
    cut: list[_Part] = []
    for part in parts:
        if not isinstance(part, str) or kind.text not in part:
            cut.append(part)
            continue
        first, *others = part.split(kind.text)
        cut += [first] if first else []
        for piece in others:
            cut += [kind.tag, piece] if piece else [kind.tag]
    return cut


def _with_own(turns: _Parts, sample: JsonObject, kind: _Kind) -> _Parts:
    own = kind.own(sample)
    num_tags = sum(part is kind.tag for _, parts in turns for part in parts)
    if num_tags != len(own):
        raise InputError(
            f"{sample.source}: {counted(num_tags, f'{kind.text} tag')}, but {counted(len(own), kind.name)}"
        )
    return _filled(turns, kind.tag, own)


# -- turns -------------------------------------------------------------------------------------------------------------


def _turn(role: str, content: list[_Part]) -> RawTurn:
    """A turn whose tags have all been filled."""
    return RawTurn(role=role, content=tuple([part for part in content if not isinstance(part, _Tag)]))


def _check_order(turns: tuple[RawTurn, ...], source: str, *, is_plain: bool) -> None:
    for turn in turns:
        shown = next((part for part in turn.content if isinstance(part, Reference)), None)
        if turn.role != "user" and shown is not None:
            one = "an image" if shown.kind == "image" else f"a {shown.kind}"
            raise InputError(
                f"{source}: a turn of the {turn.role} shows {one}; {shown.kind}s belong to the user's turns"
            )
    answers = [index for index, turn in enumerate(turns) if turn.role == "assistant"]
    if not answers:
        raise InputError(f"{source}: no turn is the assistant's, so there is nothing to learn")
    if not any(turn.role == "user" for turn in turns[: answers[0]]):
        raise InputError(f"{source}: the assistant speaks before the user; a turn of the user has to come first")
    for index in answers:
        if not "".join(str(part) for part in turns[index].content).strip():
            what = "the completion" if is_plain else f"turn {index + 1}, the assistant's,"
            raise InputError(f"{source}: {what} is empty")
