"""The tokenizer and the chat template of a model, where its files are at hand: in its folder or in the Hub's cache.

What transformers 5.23 takes: ``tokenizer.json``; a template in ``chat_template.jinja``, ``chat_template.json`` (of
processors), ``processor_config.json`` or ``tokenizer_config.json``; special tokens by the names that templates use.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.dataset.image_texts import IMAGE_TEXTS, ImageTexts
from vlmplan.errors import InputError
from vlmplan.files import MAX_TEXT_BYTES, text_if_there
from vlmplan.files.json_reader import JsonDict, parse_json_object
from vlmplan.models.hub import cached_snapshot
from vlmplan.models.hub_names import hub_id
from vlmplan.workload import ModelFiles

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
WITH_TEMPLATE = ("chat_template.json", "processor_config.json", "tokenizer_config.json")
"""JSON files with a template under ``chat_template``, the first that has one decides."""
SPECIAL_TOKENS = ("special_tokens_map.json", "tokenizer_config.json")
MAX_TOKENIZER_BYTES = 128 * 2**20
"""The largest published one, of Gemma 3's 262,144 tokens, has 33 MB."""
PLACEHOLDER_KEYS = (
    *("image_token_id", "image_token_index", "boi_token_index", "boi_token_id", "image_seq_token_id"),
    *("video_token_id", "video_token_index", "audio_token_id", "audio_token_index"),
)
"""What config.json calls the token that a template writes for an image, a video or a sound."""

WRITTEN_FOR_IMAGES = {"ovis2": ("<image>", "<IMG_ATOM>"), "qianfan_ocr": ("<image>", "<IMG_CONTEXT>")}
"""Of ``Ovis2Processor`` and ``QianfanOCRProcessor``: the first is an ordinary text, the other one of the special tokens
that are written for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTexts:
    """``tokenizer`` is the text of tokenizer.json. ``takes_parts``: a processor's template, which gets the parts of a
    turn one by one. ``placeholders`` are tokens that may stand for what is shown in what the template writes.
    ``image`` is what the template writes for an image, and a token that is written for it, where the former is no token
    of its own; ``images``: how the processor writes them into the text."""

    source: str
    tokenizer: str
    template: str | None
    special_tokens: Mapping[str, str]
    takes_parts: bool
    placeholders: tuple[int, ...]
    image: tuple[str, str] | None = None
    images: ImageTexts = ImageTexts.AS_THEY_STAND

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides how a text is counted."""
        parts = (self.tokenizer, str(self.template), str(sorted(self.special_tokens.items())), str(self.takes_parts))
        more = (str(self.placeholders), str(self.image), self.images.name)
        return hashlib.sha256("\0".join((*parts, *more)).encode()).hexdigest()


def model_texts(model: ModelFiles) -> ModelTexts | None:
    """The tokenizer of the model, with its template where it has one; None where no tokenizer.json is at hand.

    Raises InputError for files that cannot be read.
    """
    folder = _folder(model)
    if folder is None:
        return None
    tokenizer = _text(folder / TOKENIZER, MAX_TOKENIZER_BYTES)
    if tokenizer is None:
        return None
    settings = {name: _object(folder / name) for name in {*WITH_TEMPLATE, *SPECIAL_TOKENS}}
    return ModelTexts(
        source=str(folder / TOKENIZER),
        tokenizer=tokenizer,
        template=_text(folder / TEMPLATE) or _template(settings),
        special_tokens=_special_tokens(settings),
        takes_parts=model.model_type in IMAGE_MODEL_TYPES,
        placeholders=_placeholders(model),
        image=WRITTEN_FOR_IMAGES.get(model.model_type),
        images=IMAGE_TEXTS.get(model.model_type, ImageTexts.AS_THEY_STAND),
    )


def _placeholders(model: ModelFiles) -> tuple[int, ...]:
    """The placeholders by config.json, or its sections on what sees and hears (Phi-4-multimodal)."""
    sections = [model.config, *(model.config.get(name) for name in ("vision_config", "audio_config"))]
    named = [cast("Mapping[str, Any]", section) for section in sections if isinstance(section, Mapping)]
    values = [section.get(key) for section in named for key in PLACEHOLDER_KEYS]
    return tuple(dict.fromkeys(value for value in values if isinstance(value, int)))


def _folder(model: ModelFiles) -> Path | None:
    """The folder of the model's files on this machine; None where they are not here."""
    if model.hub_id is None:
        return None
    if Path(model.hub_id).is_absolute():
        path = Path(model.hub_id)
        return path if path.is_dir() else path.parent
    wanted = hub_id(model.hub_id)
    return None if wanted is None else cached_snapshot(wanted)


def _text(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> str | None:
    return text_if_there(path, name=str(path), most_bytes=most_bytes)


def _object(path: Path) -> JsonDict:
    text = _text(path)
    return {} if text is None else parse_json_object(text, source=str(path), constant=str, may_repeat=True)


def _template(settings: Mapping[str, JsonDict]) -> str | None:
    for name in WITH_TEMPLATE:
        found: Any = settings[name].get("chat_template")
        if isinstance(found, list):  # several with names
            named = [cast("dict[str, Any]", one) for one in cast("list[Any]", found) if isinstance(one, dict)]
            found = next((one.get("template") for one in named if one.get("name") == "default"), None)
        if isinstance(found, str) and found:
            return found
        if found not in (None, ""):
            raise InputError(f"{name}: chat_template is no text, nor a list of templates with names")
    return None


def _special_tokens(settings: Mapping[str, JsonDict]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        for key, value in settings[name].items():
            if isinstance(value, dict):  # an AddedToken
                value = cast("dict[str, Any]", value).get("content")
            if key.endswith("_token") and isinstance(value, str):
                found[key] = value
    return found
