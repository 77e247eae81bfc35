"""Adapters that a run goes on with: how large they are stands beside them, in the file that peft writes.

Source: peft 0.21 ``PeftModel.from_pretrained``, which takes all of ``adapter_config.json`` and nothing of a trainer's
own keys, and makes their weights float32 beside 16-bit ones as those of new adapters (``autocast_adapter_dtype``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from vlmplan.errors import VlmplanError
from vlmplan.files import text_of
from vlmplan.files.json_reader import parse_json_object
from vlmplan.notes import listed
from vlmplan.other_trainers.hugging_face import NOT_PLANNED
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file
from vlmplan.other_trainers.settings import Settings
from vlmplan.run.adapter_keys import OTHERS, is_there
from vlmplan.run.training import ADAPTER_CONFIG

TARGETS: Final = "target_modules"
SIZES: Final = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", TARGETS, "modules_to_save")
PEFTS_OWN: Final[Mapping[str, Any]] = {
    "r": 8,
    "lora_alpha": 8,
    "lora_dropout": 0.0,
    "use_rslora": False,
    "use_dora": False,
}
"""``LoraConfig``'s defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKeys:
    """What a trainer calls the keys of peft, and how its key of modules says a regular expression of whole names."""

    names: Mapping[str, str]
    pattern: Callable[[str], object] = str


def take_loaded_adapter(settings: Settings, key: str, folder: Path | None, keys: AdapterKeys) -> bool:
    """Take the sizes of the adapter that ``key`` names, the last of several, in place of the file's own; False where it
    is not here."""
    name = (settings.names(key) or [""])[-1]
    found = _file_of(name, folder, settings, key) if name else None
    if found is None:
        return False
    values = _values(found, settings)
    for own in SIZES:
        value = values.get(own, PEFTS_OWN.get(own))
        is_pattern = own == TARGETS and isinstance(value, str)
        settings.make(keys.names.get(own, own), keys.pattern(cast(str, value)) if is_pattern else value)
    settings.note(f"{key}: adapters are those of {found}, whatever else the file says of them")
    return True


def take_loaded_or_written(settings: Settings, key: str, folder: Path | None, keys: AdapterKeys) -> bool:
    """The same of a trainer whose files have keys for new adapters beside it: where it is not on this machine these are
    taken."""
    is_here = settings.is_on(key) and take_loaded_adapter(settings, key, folder, keys)
    if settings.is_on(key) and not is_here:
        own = listed([keys.names.get(name, name) for name in ("r", TARGETS)])
        settings.note(
            f"{key} is not on this machine: its adapters are taken to be as {own} of the file say, where its own "
            f"{ADAPTER_CONFIG} decides; --lora-rank and --lora-targets say it otherwise"
        )
    settings.ignore((key,))
    return is_here


def _file_of(name: str, folder: Path | None, settings: Settings, key: str) -> Path | None:
    """``adapter_config.json`` of the folder of this name; None where it is not here."""
    try:
        return found_file(str(Path(name) / ADAPTER_CONFIG), folder, settings.source, key, [])
    except VlmplanError:
        return None


def _values(path: Path, settings: Settings) -> Mapping[str, Any]:
    with settings.kept():
        values = parse_json_object(text_of(path, name=str(path), most_bytes=MAX_BYTES), source=str(path))
        if values.get("peft_type") not in (None, "LORA"):
            settings.refuse_whole(f"{path}: peft_type is {values['peft_type']}; {NOT_PLANNED}, LORA is")
        if values.get("bias") not in (None, "none"):
            settings.refuse_whole(f"{path}: biases that are trained: {NOT_PLANNED}")
        others = [name for name in OTHERS if is_there(name, values.get(name))]
        if others:
            settings.refuse_whole(f"{path}: {listed(others)}: {NOT_PLANNED}")
        return values
    return {}
