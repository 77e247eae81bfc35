"""The forms of a sample in JSON.

    {"messages": [{"role": "user", "content": "text" or [{"type": "text", "text": ...}, {"type": "image", ...}]}, ...]}
    {"conversations": [{"from": "human", "value": "<image>\\ntext"}, {"from": "gpt", "value": "text"}], "image": ...}
    {"instruction": "text", "input": "text", "output": "text", "system": "text", "history": [["text", "text"], ...]}
    {"query": "text", "response": "text", "system": "text", "history": [["text", "text"], ...]}
    {"prompt": [messages], "completion": [messages]}
    {"prompt": "text", "completion": "text"}
    {"audio": "file" or {"path": ...}, "text": "what is said"}
    {"image": "file" or {"path": ...}, "text": "what is written about it"}

Those of OpenAI, LLaVA (and ShareGPT), Alpaca, ms-swift and TRL, and of data sets of speech, whose text may be
``sentence`` or ``transcription`` too. An image part says where the image is under ``image``, ``path``, ``url``,
``base64`` or OpenAI's ``image_url``, or says nothing and takes the next of the sample's own ``images`` (or ``image``):
a reference or a list of them. In texts of the user, ``<image>`` is such a part too, with the line break beside it.
Messages with neither parts nor tags show the sample's images before the user's first text, as TRL has it
(``prepare_multimodal_messages`` in ``trl/data_utils.py``).

Where a trainer's videos are planned, ``<video>`` and ``video`` or ``videos`` are read as images and their tags are, and
so is a part of the type video, which says where it is under ``video`` or ``path``, or takes the sample's next. In place
of its file a video may be a list of the images that its frames are, as qwen-vl-utils and LLaMA-Factory have it. In a
sample without either key ``<video>`` is text: pages are written with that tag.

So it is with sounds where those are read: ``<audio>``, ``audio`` or ``audios``, and parts of the type audio, with
``audio``, ``path``, ``url``, ``base64`` or OpenAI's ``input_audio`` and ``audio_url``. A sound is a file, a data: URI
or base64, as images are.

Tools, their calls and their answers are of ``tools``, thoughts of the assistant and turns of its that are not to be
learnt of ``turn_keys``. What is learnt is what the assistant says in the others; of a prompt and its completion, all of
the completion and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmplan.chats.messages import messages_of, said_in_texts
from vlmplan.chats.other_forms import known_form
from vlmplan.chats.references import (
    OWN_IMAGES,
    OWN_SOUNDS,
    OWN_VIDEOS,
    Reference,
    listed_values,
    own_images,
    refuse_pair,
)
from vlmplan.chats.tools import (
    OfMessage,
    tools_of,
)
from vlmplan.chats.turn_parts import (
    KINDS,
    SOUND,
    TAG,
    Part,
    Parts,
    Unlearnt,
    refuse_own,
    tagged,
    with_images,
    with_own,
    with_tags,
)
from vlmplan.chats.unread import refuse_unread_of_sample
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, shown
from vlmplan.units import counted

NO_VIDEOS = NO_SOUNDS = "samples of text and images are read, video and sound are not"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTurn:
    """``more`` is what its message says beside role and content, of tools and thoughts; ``is_learnt`` as of
    ``samples.Turn``."""

    role: str
    content: tuple[str | Reference, ...]
    more: OfMessage | None = None
    is_learnt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSample:
    """``form`` is its name for people. ``num_prompt_turns``: after how many turns the completion begins; None for a
    chat. ``is_plain``: prompt and completion are texts, to be read one after the other without a chat template."""

    form: str
    turns: tuple[RawTurn, ...]
    num_prompt_turns: int | None = None
    is_plain: bool = False
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The turns of a sample before its own images are put in."""

    form: str
    turns: Parts
    num_prompt_turns: int | None = None
    is_plain: bool = False
    shows_images_first: bool = False


MAX_COLUMNS = 6
"""Columns of a sample that a refusal names. A choice."""


def _none_of_readers(values: Mapping[str, Any]) -> str:
    """What a sample has in place of what is read: a table that was cut at another sign has one column of all names."""
    more = ", ..." if len(values) > MAX_COLUMNS else ""
    named = ", ".join(shown(key) for key in list(values)[:MAX_COLUMNS])
    return f"none of {', '.join(_READERS)}" + (f", but {named}{more}" if values else "")


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
    sample = JsonObject(known_form(values, source=source), source=source)
    whys = {"video": no_videos, "sound": no_sounds}
    for kind in KINDS:
        refuse_own(sample, kind, whys[kind.name])
    refuse_pair(sample, completion_key)
    found = [key for key in _READERS if key in sample] or _transcripts(sample) or _captions(sample)
    if len(found) != 1:
        raise InputError(
            f"{source}: the sample has {' and '.join(found) or _none_of_readers(values)}; one is needed: "
            "messages, conversations (LLaVA), instruction and output (Alpaca), query and response (ms-swift), or "
            "prompt and completion (TRL)" + (TEXT_ALONE if "text" in sample else "" if found else OTHER_NAMES)
        )
    read = _prompt(sample, completion_key) if found == ["prompt"] else _READERS.get(found[0], _described)(sample)
    for kind in KINDS:
        read = replace(read, turns=with_tags(read.turns, sample, kind, whys[kind.name]))
    parts = with_images(read.turns, own_images(sample), source, shows_first=read.shows_images_first)
    for kind in KINDS:
        parts = with_own(parts, sample, kind) if whys[kind.name] is None else parts
    refuse_unread_of_sample(sample, "".join(part for _, parts in read.turns for part in parts if isinstance(part, str)))
    turns, tools = tuple([_turn(role, content) for role, content in parts]), tools_of(sample)
    if tools and read.is_plain:
        sample.complain("tools", "a prompt that is a text calls none; a list of messages does")
    _check_order(turns, source, is_plain=read.is_plain)
    _check_learnt(turns, source, num_prompt_turns=read.num_prompt_turns)
    return RawSample(
        form=read.form,
        turns=turns,
        num_prompt_turns=read.num_prompt_turns,
        is_plain=read.is_plain,
        tools=tools,
    )


# -- the forms -------------------------------------------------------------------------------------------------------


def _chat(sample: JsonObject) -> _Read:
    turns = _behind_system(sample, messages_of(sample, "messages"))
    return _Read(form="messages", turns=turns, shows_images_first=True)


def _behind_system(sample: JsonObject, turns: Parts) -> Parts:
    """The turns behind the text that stands under ``system`` beside them, as ms-swift and ShareGPT have it."""
    system = sample.maybe("system", sample.raw)
    if system in (None, ""):
        return turns
    if turns and turns[0][0] == "system":
        sample.complain("system", "the first turn is the system's too; one of the two has to go")
    return [("system", [sample.text("system")]), *turns]


def _conversations(sample: JsonObject) -> _Read:
    """LLaVA's; with role and content in place of from and value, messages under another name."""
    listed = sample.objects("conversations")
    if listed and "from" not in listed[0] and "role" in listed[0]:
        turns = _behind_system(sample, messages_of(sample, "conversations"))
        return _Read(form="conversations", turns=turns, shows_images_first=True)
    turns = said_in_texts(listed)
    return _Read(form="conversations (LLaVA)", turns=_behind_system(sample, turns))


def _instruction(sample: JsonObject) -> _Read:
    """Instruction and input are one turn with a line break between them, earlier turns and a system's may come first;
    as LLaMA-Factory reads the form (``AlpacaDatasetConverter`` in ``data/converter.py``)."""
    asked = [text for text in (sample.text("instruction"), sample.maybe("input", sample.text)) if text]
    if not asked:
        sample.refuse("instruction", "a text that is not empty, or an input,")
    return _Read(form="instruction, output (Alpaca)", turns=_with_history(sample, "\n".join(asked), "output"))


def _query(sample: JsonObject) -> _Read:
    """As ms-swift reads the form (``ResponsePreprocessor`` in ``dataset/preprocessor/core.py``), which shows images
    without a tag first (``_add_default_tags`` in ``template/base.py``)."""
    turns = _with_history(sample, sample.text("query"), "response")
    return _Read(form="query, response (ms-swift)", turns=turns, shows_images_first=True)


def _with_history(sample: JsonObject, asked: str, answer_key: str) -> Parts:
    """The system's text and earlier turns, which may be missing, the question and its answer."""
    turns: Parts = []
    system = sample.maybe("system", sample.text)
    if system:
        turns.append(("system", [system]))
    for pair in listed_values(sample.maybe("history", sample.raw)):
        said = listed_values(pair)
        if len(said) != 2 or not all(isinstance(text, str) for text in said):
            sample.refuse("history", "a list of pairs of texts, what the user and the assistant said,")
        turns += [("user", tagged(said[0], "user")), ("assistant", [said[1]])]
    return [*turns, ("user", tagged(asked, "user")), ("assistant", [sample.text(answer_key)])]


def _prompt(sample: JsonObject, completion_key: str = "completion") -> _Read:
    kinds: dict[str, type[object]] = {key: type(sample.raw(key)) for key in ("prompt", completion_key)}
    if set(kinds.values()) == {str}:
        own = {"images": OWN_IMAGES, "videos": OWN_VIDEOS, "sounds": OWN_SOUNDS}
        for kind, key in ((kind, key) for kind, keys in own.items() for key in keys):
            if sample.maybe(key, sample.raw) is not None:
                sample.complain(key, f"a prompt that is a text shows no {kind}; a list of messages does")
        texts: Parts = [("user", [sample.text("prompt")]), ("assistant", [sample.text(completion_key)])]
        return _Read(form="prompt, completion (TRL, texts)", turns=texts, num_prompt_turns=1, is_plain=True)
    if set(kinds.values()) != {list}:
        key = next((key for key, kind in kinds.items() if kind not in (str, list)), completion_key)
        sample.refuse(key, f"a text, or a list of messages, and the same for prompt and {completion_key},")
    prompt, completion = messages_of(sample, "prompt"), messages_of(sample, completion_key)
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
    "query": _query,
    "prompt": _prompt,
}
"""By the key that tells a form."""


TRANSCRIPTS = ("text", "sentence", "transcription")
"""What data sets of speech call what is said: LibriSpeech, Common Voice and FLEURS on the Hub."""
CAPTIONS = ("text", "caption")
"""What data sets of images call what is written in them or about them: IAM and image folders on the Hub, Flickr30k."""


TEXT_ALONE = "; a text that answers nothing is for pretraining"
OTHER_NAMES = "; a dataset_info.json beside the file says what columns of other names are, and its folder is given then"


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
    turns: Parts = [("user", [SOUND if said else TAG]), ("assistant", [sample.text(key)])]
    return _Read(form="audio, text (speech)" if said else "image, text", turns=turns)


# -- turns -------------------------------------------------------------------------------------------------------------


def _turn(role: str, content: list[Part]) -> RawTurn:
    """A turn whose tags have all been filled."""
    more = next((part for part in content if isinstance(part, OfMessage)), None)
    shown = tuple([part for part in content if isinstance(part, str | Reference)])
    return RawTurn(
        role=role, content=shown, more=more, is_learnt=not any(isinstance(part, Unlearnt) for part in content)
    )


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
        more = turns[index].more
        if not (more and more.calls) and not "".join(str(part) for part in turns[index].content).strip():
            what = "the completion" if is_plain else f"turn {index + 1}, the assistant's,"
            raise InputError(f"{source}: {what} is empty")


def _check_learnt(turns: tuple[RawTurn, ...], source: str, *, num_prompt_turns: int | None) -> None:
    if num_prompt_turns is not None:
        index = next((index for index, turn in enumerate(turns[num_prompt_turns:]) if not turn.is_learnt), None)
        if index is not None:
            raise InputError(
                f"{source}: turn {index + 1} of the completion is not to be learnt, but all of a completion is; "
                f"messages in place of prompt and completion may leave turns out"
            )
    elif not any(turn.is_learnt for turn in turns if turn.role == "assistant"):
        raise InputError(f"{source}: no turn of the assistant is to be learnt, so there is nothing to learn")
