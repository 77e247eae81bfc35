"""The models that come with vlmplan: their small files, which need neither network nor disk space for weights."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from vlmplan.architecture.families import FAMILIES
from vlmplan.errors import InputError, nearest
from vlmplan.models.description import FoundModel, brings_own_code, files_of_texts, why_unsupported, with_layout
from vlmplan.models.hub_names import CONFIG, FILE_NAMES, HubId, hub_id
from vlmplan.workload import ModelFiles

PACKAGED_MODELS = Path(__file__).parents[1] / "data" / "models"
WAYS_TO_NAME = "`vlmplan models` lists them; others by their Hugging Face id, org/name, or as a folder"
"""What is said beside an unknown name."""


class PackagedModel(NamedTuple):
    """An entry of ``data/models/index.json``: a checkpoint, and the files that say its sizes.

    ``hub_id`` is None where no checkpoint in transformers' layout is known. ``origin`` says of config.json whether it
    is the published file (``verbatim``), its values written anew (``values``), or put together from what is published
    about the model (``reconstructed``). ``folder`` is another alias where the checkpoint has the sizes of that one, as
    the fine-tuned models of a base have; ``changes`` (a JSON merge patch, RFC 7396) then say what its config.json has
    otherwise, and the folder's SOURCE.txt where that was read.
    """

    alias: str
    hub_id: str | None
    origin: str
    folder: str
    changes: Mapping[str, Any]

    @property
    def is_sibling(self) -> bool:
        return self.folder != self.alias


@cache
def packaged_models() -> Mapping[str, PackagedModel]:
    """Every packaged model by alias."""
    entries = json.loads(_packaged_text("index.json") or "{}")
    return {alias: _packaged_model(alias, entry, entries) for alias, entry in entries.items()}


def _packaged_model(alias: str, entry: Mapping[str, Any], entries: Mapping[str, Any]) -> PackagedModel:
    folder = entry.get("files_of", alias)
    origin = entries[folder]["config"]
    if folder != alias and origin == "verbatim":
        origin = "values"
    return PackagedModel(
        alias=alias, hub_id=entry["hub_id"], origin=origin, folder=folder, changes=entry.get("changes", {})
    )


@cache
def alias_by_hub_id() -> Mapping[str, str]:
    return {model.hub_id.casefold(): model.alias for model in packaged_models().values() if model.hub_id}


@cache
def alias_by_repo_name() -> Mapping[str, str]:
    """Aliases by what comes after the organisation in the Hugging Face id, where that names one model alone."""
    ids = {model.alias: hub_id(model.hub_id) for model in packaged_models().values() if model.hub_id}
    names = {
        alias: wanted.repo.partition("/")[2].casefold()
        for alias, wanted in ids.items()
        if wanted is not None and str(wanted) == wanted.repo
    }
    count = Counter(names.values())
    return {name: alias for alias, name in names.items() if count[name] == 1 and name not in packaged_models()}


@cache
def hub_id_by_repo_name() -> Mapping[str, str]:
    """Hugging Face ids by what comes after the organisation, where one packaged model alone is called so."""
    found: dict[str, set[str]] = {}
    for model in packaged_models().values():
        if model.hub_id:
            found.setdefault(model.hub_id.partition("/")[2].casefold(), set()).add(model.hub_id)
    return {name: ids.pop() for name, ids in found.items() if len(ids) == 1}


def copy_of_packaged(wanted: HubId) -> FoundModel | None:
    """The packaged model of which ``unsloth/NAME`` is a copy; None for any other id.

    Unsloth calls its copies as their makers call the models: of the 357 names of its own table
    (``unsloth/models/mapper.py`` of unsloth 2026.10.9) that are a packaged model's, all are of that model.
    """
    organisation, _, name = str(wanted).casefold().partition("/")
    original = hub_id_by_repo_name().get(name) if organisation == "unsloth" else None
    if original is None:
        return None
    found = packaged_model(alias_by_hub_id()[original.casefold()], name=str(wanted))
    note = f"{wanted} cannot be fetched now: its configuration is taken to be that of {original}, whose name it has."
    files = replace(found.files, hub_id=str(wanted), notes=(*found.files.notes, note))
    return FoundModel(files=files, source=f"that of {original}, {found.source}")


def plannable_models() -> list[str]:
    """The aliases that vlmplan can plan, as ``vlmplan models`` counts them."""
    return [alias for alias in packaged_models() if packaged_files(alias).model_type in FAMILIES]


def packaged_model(alias: str, *, name: str | None = None) -> FoundModel:
    """A packaged model by its alias; ``name`` is what the user calls it. Raises InputError if it cannot be planned."""
    model = packaged_files(alias, name=name)
    if model.model_type not in FAMILIES and brings_own_code(model.config):
        raise InputError(f"{alias} cannot be planned: {why_unsupported(model)}")
    return FoundModel(files=with_layout(model), source=f"packaged with vlmplan ({packaged_models()[alias].origin})")


def packaged_files(alias: str, *, name: str | None = None) -> ModelFiles:
    """The files of a packaged model, whether or not vlmplan can plan it."""
    packaged = packaged_models()[alias]
    texts = {file: _packaged_text(packaged.folder, file) for file in FILE_NAMES}
    found = {file: text for file, text in texts.items() if text is not None}
    if packaged.changes:
        found[CONFIG] = json.dumps(_patched(json.loads(found[CONFIG]), packaged.changes))
    notes: list[str] = []
    if packaged.origin == "reconstructed":
        published = f"; {packaged.hub_id}@main is the published one" if packaged.hub_id else ""
        notes.append(f"The config.json of {alias} is put together from what is published about it{published}.")
    if packaged.hub_id is None:
        notes.append(f"No checkpoint of {alias} in transformers' layout is known; to train it, name a folder with one.")
    source = f"{packaged.folder}/{CONFIG}"
    return files_of_texts(name or alias, found, source=source, hub_id=packaged.hub_id, notes=notes)


def _patched(value: Any, patch: Any) -> Any:
    """``value`` with a JSON merge patch applied: objects are merged, null takes a key out, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    changes = cast(Mapping[str, Any], patch)
    merged = dict(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else {}
    merged |= {key: _patched(merged.get(key), change) for key, change in changes.items()}
    return {key: value for key, value in merged.items() if key not in changes or changes[key] is not None}


def _packaged_text(*parts: str) -> str | None:
    path = PACKAGED_MODELS.joinpath(*parts)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def nearest_aliases(wanted: HubId) -> list[str]:
    """The packaged models that a Hugging Face id most likely resembles."""
    name = wanted.repo.partition("/")[2]
    by_name = {alias: alias for alias in packaged_models()}
    by_name |= {hub_name.partition("/")[2]: alias for hub_name, alias in alias_by_hub_id().items()}
    return list(dict.fromkeys(by_name[match] for match in nearest(name, by_name)))
