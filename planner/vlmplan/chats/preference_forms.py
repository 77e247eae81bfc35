"""Preferences of other trainers as TRL has them: a prompt, and two ways in which it goes on.

    {"messages": [..., answer], "rejected_response": "text" or [messages]}              ms-swift
    {"messages": [messages], "rejected_messages": [messages]}                           ms-swift
    {"conversations": [...], "chosen": {"from": "gpt", "value": ...}, "rejected": {...}}  LLaMA-Factory, ranking
    {"instruction": "text", "input": "text", "chosen": "text", "rejected": "text"}      LLaMA-Factory, ranking
    {"system": "text", "question": "text", "chosen": "text", "rejected": "text"}        axolotl, chatml.intel
    {"messages": [...], "chosen": {"role": ..., "content": ...}, "rejected": {...}}     axolotl, chat_template.default
    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}   OpenAI
    {"chosen": [messages], "rejected": [messages]}                                      TRL; what both begin with is the
    {"chosen": "text", "rejected": "text"}                                              prompt (``extract_prompt``)

Sources: ``_compat_rejected_response`` in ms-swift's ``template/template_inputs.py``, the converters in LLaMA-Factory's
``data/converter.py``, axolotl's "RLHF" page, ``FineTunePreferenceRequestInput`` of OpenAI's API,
``maybe_extract_prompt`` in TRL's ``data_utils.py``. A prompt that is a text beside whole chats says again what they
begin with, and is left out as TRL does it.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, cast

from vlmplan.chats.messages import LLAVA_ROLES
from vlmplan.chats.other_forms import CHATS
from vlmplan.chats.references import PREFERENCE_KEYS, REJECTED_BESIDE, listed_values
from vlmplan.chats.tools import ANSWER_ROLES
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject

CHOSEN, REJECTED = PREFERENCE_KEYS
PREFERRED, NOT_PREFERRED = "preferred_output", "non_preferred_output"
BEFORE_ANSWERS = ("user", *ANSWER_ROLES)
ASKING = ("instruction", "question", "query")
UNREAD = ("rejected_images", "rejected_videos", "rejected_audios", "rejected_tools", "margin")
"""Of ms-swift: what the worse answer is to in place of the prompt, and by how much it is worse."""


def with_prompt(values: JsonDict, *, source: str) -> JsonDict:
    """``values`` with ``prompt``, ``chosen`` and ``rejected``. Raises InputError, with ``source`` in front, for what is
    no preference."""
    sample = JsonObject({key: value for key, value in values.items() if value is not None}, source=source)
    unread = next((key for key in UNREAD if key in sample), None)
    if unread is not None:
        sample.complain(unread, "both answers are to the same prompt and count alike")
    found = _of_openai(sample) or _of_swift(sample)
    if found is not None:
        return found
    missing = [key for key in PREFERENCE_KEYS if key not in sample]
    if missing:
        raise InputError(
            f"{source}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; --task dpo trains on "
            f"prompt, chosen and rejected"
        )
    made = dict(sample.values)
    answers = [made[key] for key in PREFERENCE_KEYS]
    if all(isinstance(answer, list) for answer in answers):
        return _behind_system(sample, made if isinstance(made.get("prompt"), list) else _apart(made, source))
    chat = next((key for key in CHATS if isinstance(made.get(key), list)), None)
    if chat is not None and all(isinstance(answer, dict) for answer in answers):
        return _behind_system(sample, made | {"prompt": made[chat]} | {key: [made[key]] for key in PREFERENCE_KEYS})
    if "prompt" not in sample and all(isinstance(answer, str) for answer in answers):
        asked = next((key for key in ASKING if key in sample), None)
        return _apart(made, source) if asked is None else _asked(sample, made, asked)
    if "prompt" not in sample:
        raise InputError(
            f"{source}: prompt is missing, and chosen and rejected are neither both texts nor both lists of messages, "
            f"so it cannot be seen"
        )
    return _behind_system(sample, made)


def _of_openai(sample: JsonObject) -> JsonDict | None:
    if PREFERRED not in sample and NOT_PREFERRED not in sample:
        return None
    given = sample.object("input")
    named = {"prompt": given.raw("messages"), CHOSEN: sample.raw(PREFERRED), REJECTED: sample.raw(NOT_PREFERRED)}
    return _behind_system(sample, {**given.values, **named})


def _of_swift(sample: JsonObject) -> JsonDict | None:
    """The better answer of ms-swift is what follows the last turn of the user or of a tool."""
    made = dict(sample.values)
    if "rejected_messages" in sample:
        chosen, rejected = sample.objects("messages"), sample.objects("rejected_messages")
        pair = {CHOSEN: [one.values for one in chosen], REJECTED: [one.values for one in rejected]}
        return _behind_system(sample, _apart(made | pair, sample.source))
    if REJECTED_BESIDE not in sample:
        return None
    if "messages" not in sample:
        asked = next((key for key in ASKING if key in sample), ASKING[0])
        return _asked(sample, made | {CHOSEN: sample.text("response"), REJECTED: sample.text(REJECTED_BESIDE)}, asked)
    messages = [one.values for one in sample.objects("messages")]
    first = 1 + max((place for place, one in enumerate(messages) if one.get("role") in BEFORE_ANSWERS), default=-1)
    worse = sample.raw(REJECTED_BESIDE)
    rejected = [{"role": "assistant", "content": worse}] if isinstance(worse, str) else worse
    return _behind_system(sample, made | {"prompt": messages[:first], CHOSEN: messages[first:], REJECTED: rejected})


def _apart(made: JsonDict, source: str) -> JsonDict:
    """``made`` with what both answers begin with as the prompt; of texts up to the last blank in it."""
    chosen, rejected = cast("list[Sequence[Any]]", [made[key] for key in PREFERENCE_KEYS])
    alike = list(takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    length = min(len(alike), len(chosen) - 1, len(rejected) - 1)
    if isinstance(chosen, str) and length > 0 and chosen[length - 1] == " ":
        length -= 1
    if isinstance(chosen, str) and length <= 0:
        raise InputError(f"{source}: chosen and rejected are texts that begin with nothing alike; a prompt is needed")
    return made | {"prompt": chosen[:length], CHOSEN: chosen[length:], REJECTED: rejected[length:]}


def _asked(sample: JsonObject, made: JsonDict, key: str) -> JsonDict:
    """A question with what it is about, earlier turns and a system's, and two answers that are texts."""
    said = [text for text in (sample.text(key), sample.maybe("input", sample.text)) if text]
    prompt: list[JsonDict] = []
    for pair in listed_values(sample.maybe("history", sample.raw)):
        turns = listed_values(pair)
        if len(turns) != 2:
            sample.refuse("history", "a list of pairs of texts, what the user and the assistant said,")
        prompt += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turns, strict=True)]
    prompt.append({"role": "user", "content": "\n".join(said)})
    answers = {one: [{"role": "assistant", "content": made[one]}] for one in PREFERENCE_KEYS}
    return _behind_system(sample, made | {"prompt": prompt} | answers)


def _behind_system(sample: JsonObject, made: JsonDict) -> JsonDict:
    """``made`` with messages that have role and content, behind the text that stands under ``system`` beside them."""
    lists = {key: _messages(made[key]) for key in ("prompt", *PREFERENCE_KEYS) if isinstance(made[key], list)}
    system = sample.maybe("system", sample.text)
    if not system:
        return made | lists
    if "prompt" not in lists:
        sample.complain("system", "a prompt that is a text has none; a list of messages does")
    if any(isinstance(one, dict) and cast(JsonDict, one).get("role") == "system" for one in lists["prompt"][:1]):
        sample.complain("system", "the first turn is the system's too; one of the two has to go")
    return made | lists | {"prompt": [{"role": "system", "content": system}, *lists["prompt"]]}


def _messages(listed: list[Any]) -> list[Any]:
    """Messages with role and content where they have from and value."""
    return [_message(cast(JsonDict, one)) if isinstance(one, dict) and "from" in one else one for one in listed]


def _message(message: JsonDict) -> JsonDict:
    others = {key: value for key, value in message.items() if key not in ("from", "value")}
    role = message["from"]
    return (
        others
        | {"role": LLAVA_ROLES.get(role, role) if isinstance(role, str) else role}
        | ({"content": message["value"]} if "value" in message else {})
    )
