"""Layouts of samples under other names, as those that ``formats`` reads; what is no sample to fine-tune on is refused.

    {"question": "text", "answer": "text", "system_prompt": "text"}        names that ms-swift takes for one another
    {"instruction": "text", "input": "text", "response": "text"}           axolotl, gpteacher
    {"conversation": [{"human": "text", "assistant": "text"}, ...]}        ms-swift's ShareGPT
    {"texts": [{"user": "text", "assistant": "text"}, ...], "images": []}  the Cauldron
    {"file_name": "a.png", ...}                                            folders of images, videos and sounds

Sources: ``ResponsePreprocessor`` in ms-swift's ``dataset/preprocessor/core.py`` for names; axolotl's "Instruction
Tuning" page; ``folder_based_builder.py`` in ``datasets`` for ``file_name``, ``file_names`` and names that end so.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from vlmplan.chats.references import IMAGE_NAMES, OWN_IMAGES, OWN_SOUNDS, OWN_VIDEOS
from vlmplan.files.json_reader import JsonDict, JsonObject

CHATS = ("messages", "conversations")
QUESTIONS = ("query", "question", "problem", "input", "prompt")
ANSWERS = ("response", "answer", "output", "solution", "target", "targets")
PAIRS: Mapping[str, str] = {"conversation": "human", "texts": "user"}
"""Lists of what one side said with the answer, under ``assistant``, by what the first is called."""
FILES, NAME_ENDS = ("file_name", "file_names"), ("_file_name", "_file_names")
VIDEO_NAMES = (".mp4", ".mov", ".avi", ".mkv", ".webm")
ASIDE = ("context", "article", "passage", "choices", "options")
"""What data sets have beside a question that has to be read with it."""
NO_SAMPLES: Mapping[str, str] = {
    "input_ids": "samples are texts, which the model's own chat template and tokenizer make tokens of",
    "segments": "texts are written by the model's chat template; messages with a role and a content are needed",
    "completions": "steps that are marked one by one are for a reward model; one completion is needed",
    "contents": "messages with a role and a content are needed",
}
"""Of axolotl (tokenised and template-free), TRL (stepwise supervision) and Gemini."""
TEMPLATE_VALUES = "chat_template_kwargs"


def known_form(values: JsonDict, *, source: str) -> JsonDict:
    """``values`` in a form of ``formats``, where they have it under other names. Raises InputError, with ``source`` in
    front, for what would change what is learnt and is not read."""
    sample = JsonObject({key: value for key, value in values.items() if value is not None}, source=source)
    if sample.values.get(TEMPLATE_VALUES) not in (None, {}):
        sample.complain(TEMPLATE_VALUES, "the chat template is given messages and tools and nothing else")
    made = _with_system(_with_files(dict(sample.values)))
    if any(key in made for key in CHATS):
        return made if "completion" in made else {key: value for key, value in made.items() if key != "prompt"}
    no_sample = next((key for key in NO_SAMPLES if key in made), None)
    if no_sample is not None:
        sample.complain(no_sample, NO_SAMPLES[no_sample])
    pairs = next((key for key in PAIRS if isinstance(made.get(key), list)), None)
    if pairs is not None:
        return _of_pairs(sample, made, pairs)
    return _of_question(sample, made)


def _with_system(made: JsonDict) -> JsonDict:
    return made | {"system": made["system_prompt"]} if "system_prompt" in made and "system" not in made else made


def _with_files(made: JsonDict) -> JsonDict:
    """``made`` with the files that a folder's metadata names under what they are."""
    for key in [key for key in made if key in FILES or key.endswith(NAME_ENDS)]:
        named = made[key]
        names = cast("list[Any]", named) if isinstance(named, list) else [named]
        if names and all(isinstance(name, str) for name in names):
            kind = _kind_of(cast(str, names[0]))
            if not any(own in made for own in kind):
                made |= {kind[1]: names}
    return made


def _kind_of(name: str) -> tuple[str, ...]:
    suffix = PurePath(name).suffix.lower()
    return OWN_IMAGES if suffix in IMAGE_NAMES else OWN_VIDEOS if suffix in VIDEO_NAMES else OWN_SOUNDS


def _of_pairs(sample: JsonObject, made: JsonDict, key: str) -> JsonDict:
    messages: list[JsonDict] = []
    for pair in sample.objects(key):
        messages.append({"role": "user", "content": pair.text(PAIRS[key])})
        messages.append({"role": "assistant", "content": pair.text("assistant")})
    return {name: value for name, value in made.items() if name != key} | {"messages": messages}


def _of_question(sample: JsonObject, made: JsonDict) -> JsonDict:
    """A question and its answer as ``query`` and ``response``, or ``output`` of an instruction."""
    if "completion" in made:
        return made
    answers = [key for key in ANSWERS if key in made]
    asked = ["instruction"] if "instruction" in made else [key for key in QUESTIONS if isinstance(made.get(key), str)]
    if not answers or not asked:
        return made
    aside = next((key for key in ASIDE if key in made and made[key] not in ("", [])), None)
    if aside is not None:
        sample.complain(aside, f"it is not read beside {asked[0]}; write it into that text")
    if len(asked) > 1 or len(answers) > 1:
        several = asked if len(asked) > 1 else answers
        sample.complain(several[1], f"the sample has {' and '.join(several)}; one of them is needed")
    names = ("instruction", "output") if asked == ["instruction"] else ("query", "response")
    others = {key: value for key, value in made.items() if key not in (asked[0], answers[0])}
    return others | {names[0]: made[asked[0]], names[1]: made[answers[0]]}
