"""Files of settings that a program loads by itself: YAML and JSON, read where they are here."""

from pathlib import Path
from typing import Any

from vlmplan.errors import InputError, VlmplanError
from vlmplan.files import text_of
from vlmplan.files.json_reader import parse_json_object
from vlmplan.other_trainers.named_files import MAX_BYTES, found_file

SUFFIXES = (".yaml", ".yml", ".json")


class SettingsFiles:
    """The files that one program names, looked for from its own ``folder``; None where none is opened."""

    def __init__(self, source: str, folder: Path | None) -> None:
        self._source, self._folder = source, folder
        self.notes: list[str] = []
        self._known: dict[str, Any] = {}

    def values_of(self, name: str) -> Any:
        """The values of a file; None where it is not here, or holds none."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Any:
        if self._folder is None or Path(name).suffix not in SUFFIXES:
            return None
        try:
            path = found_file(name, self._folder, self._source, "a file of settings", self.notes)
            values = _values(text_of(path, name=str(path), most_bytes=MAX_BYTES), str(path))
        except VlmplanError:
            return None
        self.notes.append(f"{self._source} loads {path}: its values are taken from there")
        return values


def _values(text: str, source: str) -> Any:
    if text.lstrip().startswith("{"):
        return parse_json_object(text, source=source)
    from vlmplan.files.yaml_reader import parse_yaml

    documents = parse_yaml(text, source=source)
    if len(documents) != 1:
        raise InputError(f"{source} has {len(documents)} YAML documents; one is needed")
    return documents[0]
