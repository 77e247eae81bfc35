"""Samples whose columns a dataset_info.json names, as LLaMA-Factory reads them.

Source: LLaMA-Factory 0.9.5, ``DatasetAttr`` in ``data/parser.py`` for names and defaults, and for what is made of them
``AlpacaDatasetConverter`` and ``SharegptDatasetConverter`` in ``data/converter.py``.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.chats.references import PREFERENCE_KEYS
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject

ALPACA, SHAREGPT = "alpaca", "sharegpt"
RANKING, KTO_TAG = "ranking", "kto_tag"
"""That a data set has two answers, under ``chosen`` and ``rejected``; the column that says which answers are good."""
COLUMNS: Mapping[str, str] = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "conversations",
}
"""Where nothing is said of columns; what is not here has none then."""
TAGS: Mapping[str, str] = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
NOT_PLANNED = {
    RANKING: "it has two answers to each prompt, on which --task dpo trains; supervised fine-tuning needs one",
    KTO_TAG: "its answers are marked as good or bad, on which --task kto trains; others take none that are",
    "videos": "vlmplan has no memory model of videos",
    "audios": "sounds in samples are not read here; --audio-seconds says how much of them there is",
}
EVERYTHING = tuple(NOT_PLANNED)
"""What is taken where samples are counted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedColumns:
    """How one data set of a dataset_info.json is read. ``columns`` and ``tags`` by LLaMA-Factory's names for them.
    ``is_ranking``: it has two answers, and ``standard`` makes what ``preference_forms`` reads."""

    name: str
    formatting: str
    columns: Mapping[str, str]
    tags: Mapping[str, str]
    is_ranking: bool = False

    def standard(self, row: JsonDict, *, source: str) -> JsonDict:
        """The sample of a row in one of the forms that ``chats.formats`` reads. Raises InputError naming ``source``."""
        sample = JsonObject(row, source=source)
        images = self._value(sample, "images")
        own: JsonDict = {} if images in (None, []) else {"images": images}
        for column in ("videos", "audios"):
            value = self._value(sample, column)
            own |= {} if value is None else {column: value}
        made = self._alpaca(sample) if self.formatting == ALPACA else self._sharegpt(sample)
        tag = self.columns.get(KTO_TAG)
        own |= {KTO_TAG: sample.raw(tag)} if tag is not None else {}
        return {**made, **own, **(self._answers(sample) if self.is_ranking else {})}

    def _answers(self, sample: JsonObject) -> JsonDict:
        """Both answers: texts, or messages whose roles and contents have names of their own."""
        found: JsonDict = {}
        for column in PREFERENCE_KEYS:
            key = self.columns.get(column)
            if key is None:
                raise InputError(f"dataset_info.json names no column of {column} answers for {self.name}")
            if self.formatting == ALPACA:
                found[column] = sample.text(key)
                continue
            message = sample.object(key)
            message.choice(self.tags["role_tag"], (self.tags["assistant_tag"], self.tags["function_tag"]))
            found[column] = {"from": "gpt", "value": message.text(self.tags["content_tag"])}
        return found

    def _value(self, sample: JsonObject, column: str) -> Any:
        key = self.columns.get(column)
        return None if key is None else sample.values.get(key)

    def _text(self, sample: JsonObject, column: str) -> str:
        key = self.columns.get(column)
        return "" if key is None else sample.maybe(key, sample.text) or ""

    def _system(self, sample: JsonObject) -> str:
        """The system's text, and the tools that templates write behind it."""
        return "\n".join(text for text in (self._text(sample, "system"), self._text(sample, "tools")) if text)

    def _alpaca(self, sample: JsonObject) -> JsonDict:
        made: JsonDict = {
            "instruction": self._text(sample, "prompt"),
            "input": self._text(sample, "query"),
            "system": self._system(sample),
        } | ({} if self.is_ranking else {"output": self._text(sample, "response")})
        history = self._value(sample, "history")
        return made if history is None else made | {"history": history}

    def _sharegpt(self, sample: JsonObject) -> JsonDict:
        """What tools answer counts as the user's, and what calls them as the assistant's."""
        key = self.columns.get("messages")
        if key is None:
            raise InputError(f"dataset_info.json names no column of messages for {self.name}")
        tags = self.tags
        roles = {
            tags["user_tag"]: "human",
            tags["observation_tag"]: "human",
            tags["assistant_tag"]: "gpt",
            tags["function_tag"]: "gpt",
            tags["system_tag"]: "system",
        }
        turns: list[JsonDict] = []
        system = self._system(sample)
        if system:
            turns.append({"from": "system", "value": system})
        for message in sample.objects(key):
            role = roles[message.choice(tags["role_tag"], roles)]
            turns.append({"from": role, "value": message.text(tags["content_tag"])})
        return {"conversations": turns}


def named_columns(name: str, info: JsonObject, *, takes: Collection[str] = ()) -> NamedColumns:
    """How dataset_info.json says that the data set ``name`` is read, of which videos and audios are only where they are
    among ``takes``. Raises InputError for what is not planned."""
    formatting = info.choice("formatting", (ALPACA, SHAREGPT)) if "formatting" in info else ALPACA
    columns: Mapping[str, Any] = info.mapping("columns") if "columns" in info else COLUMNS
    tags: Mapping[str, Any] = {**TAGS, **(info.mapping("tags") if "tags" in info else {})}
    for key, why in NOT_PLANNED.items():
        if key in takes:
            continue
        if columns.get(key) or info.values.get(key):
            raise InputError(f"{info.source}: {info.path} has {key}; {why}")
    for key, value in (*columns.items(), *tags.items()):
        if not isinstance(value, str):
            raise InputError(f"{info.source}: {info.path}: {key} is no name of a column or a role; text is needed")
    is_ranking = bool(info.values.get(RANKING))
    return NamedColumns(name=name, formatting=formatting, columns=dict(columns), tags=dict(tags), is_ranking=is_ranking)
