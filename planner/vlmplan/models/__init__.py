"""Finding a model by what the user calls it: packaged alias, Hugging Face id, folder or config.json.

The packaged models (``data/models``) need neither network nor disk space for weights. Everything that has to be asked
for, of the Hub or of transformers, is asked here, so that whoever gets the ``ModelFiles`` can stay pure.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from vlmplan.architecture.config import Config
from vlmplan.architecture.families import FAMILIES
from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.errors import InputError, UnavailableError, UnknownNameError, nearest
from vlmplan.files import text_if_there
from vlmplan.json_reader import parse_json_object
from vlmplan.models.hub_names import CONFIG, FILE_NAMES, MAX_BYTES, PREPROCESSOR, PROCESSOR, HubId, hub_id
from vlmplan.models.tree import ProbedModelFiles, model_tree
from vlmplan.workload import ModelFiles

PACKAGED_MODELS = Path(__file__).parents[1] / "data" / "models"
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
"""What configurations call the longest sequence, the usual first."""
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """An entry of ``data/models/index.json``.

    ``hub_id`` is None where no checkpoint in transformers' layout is known. ``origin`` says of config.json whether it
    is the published file (``verbatim``), its values written anew (``values``), or put together from what is published
    about the model (``reconstructed``).
    """

    alias: str
    hub_id: str | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model's files and where they are from, as words for the user."""

    files: ModelFiles
    source: str


def find_model(name: str) -> ModelFiles:
    """The files of the model called ``name``.

    Raises UnknownNameError for a name that is nothing of all this, UnavailableError where files cannot be had,
    InputError where they make no sense, MissingPackageError where transformers is needed and not installed.
    """
    return found_model(name).files


def found_model(name: str) -> FoundModel:
    """``find_model``, and where the files are from.

    A path that says so (``./gpt2``, ``~/m``, ``x.json``) is one; else an alias goes before a folder of that name, a
    folder before a Hugging Face id, and a packaged id before the caches and the network.
    """
    name = name.strip()
    if not name:
        raise InputError("the model's name is empty; `vlmplan models` lists names")
    alias = name.casefold()
    if alias in packaged_models() and not _is_path(name):
        return packaged_model(alias)
    if _is_path(name) or _has_config(name):
        return _model_at(name)
    wanted = hub_id(name)
    if wanted is None:
        hint = "`vlmplan models` lists them; others by their Hugging Face id, org/name, or as a folder"
        raise UnknownNameError("model", name, packaged_models(), hint)
    packaged = _alias_of_hub_id().get(str(wanted).casefold())
    return packaged_model(packaged, name=name) if packaged else _model_on_hub(wanted)


def _is_path(name: str) -> bool:
    starts = (".", "~", os.sep, "/")
    return name.startswith(starts) or name.endswith(".json") or Path(name).is_absolute()


def _has_config(name: str) -> bool:
    try:
        return (Path(name) / CONFIG).is_file()
    except (OSError, ValueError):  # too long, or with characters that no path has
        return False


# -- packaged models -------------------------------------------------------------------------------------------------


@cache
def packaged_models() -> Mapping[str, PackagedModel]:
    """Every packaged model by alias."""
    entries = json.loads(_packaged_text("index.json") or "{}")
    return {
        alias: PackagedModel(alias=alias, hub_id=entry["hub_id"], origin=entry["config"])
        for alias, entry in entries.items()
    }


@cache
def _alias_of_hub_id() -> Mapping[str, str]:
    return {model.hub_id.casefold(): model.alias for model in packaged_models().values() if model.hub_id}


def packaged_model(alias: str, *, name: str | None = None) -> FoundModel:
    """A packaged model by its alias; ``name`` is what the user calls it. Raises InputError if it cannot be planned."""
    model = packaged_files(alias, name=name)
    if model.model_type not in FAMILIES and brings_own_code(model.config):
        raise InputError(f"{alias} cannot be planned: {why_unsupported(model)}")
    return FoundModel(files=_described(model), source=f"packaged with vlmplan ({packaged_models()[alias].origin})")


def packaged_files(alias: str, *, name: str | None = None) -> ModelFiles:
    """The files of a packaged model, whether or not vlmplan can plan it."""
    packaged = packaged_models()[alias]
    texts = {file: _packaged_text(alias, file) for file in FILE_NAMES}
    found = {file: text for file, text in texts.items() if text is not None}
    notes: list[str] = []
    if packaged.origin == "reconstructed":
        published = f"; {packaged.hub_id}@main is the published one" if packaged.hub_id else ""
        notes.append(f"The config.json of {alias} is put together from what is published about it{published}.")
    if packaged.hub_id is None:
        notes.append(f"No checkpoint of {alias} in transformers' layout is known; to train it, name a folder with one.")
    return _read(name or alias, found, source=f"{alias}/{CONFIG}", hub_id=packaged.hub_id, notes=notes)


def _packaged_text(*parts: str) -> str | None:
    path = PACKAGED_MODELS.joinpath(*parts)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def nearest_aliases(wanted: HubId) -> list[str]:
    """The packaged models that a Hugging Face id most likely resembles."""
    name = wanted.repo.partition("/")[2]
    by_name = {alias: alias for alias in packaged_models()}
    by_name |= {hub_name.partition("/")[2]: alias for hub_name, alias in _alias_of_hub_id().items()}
    return list(dict.fromkeys(by_name[match] for match in nearest(name, by_name)))


# -- files, the Hub --------------------------------------------------------------------------------------------------


def _model_at(name: str) -> FoundModel:
    """The model in a folder, or the one whose config.json is at this path."""
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, ValueError, RuntimeError):
        raise UnavailableError(f"{name!r} is no path of this machine; a folder or a config.json is needed") from None
    folder = path if is_folder else path.parent
    config_path = path / CONFIG if is_folder else path
    texts = {PREPROCESSOR: _text_at(folder / PREPROCESSOR), PROCESSOR: _text_at(folder / PROCESSOR)}
    config = _text_at(config_path)
    if config is None:
        what = f"{path} has no config.json" if is_folder else f"{path} does not exist"
        raise UnavailableError(f"{what}; a Hugging Face config.json or the folder with it is needed")
    found = {CONFIG: config, **{file: text for file, text in texts.items() if text is not None}}
    where = str(folder.resolve())
    return FoundModel(
        files=_described(_read(name, found, source=str(config_path), hub_id=where)), source=f"the file {config_path}"
    )


def _text_at(path: Path) -> str | None:
    """The text of a file; None where there is none. Raises UnavailableError or InputError if it is no small text."""
    return text_if_there(path, name=str(path), otherwise=", so it is no configuration", most_bytes=MAX_BYTES)


def _model_on_hub(wanted: HubId) -> FoundModel:
    from vlmplan.models.hub import hub_files

    try:
        found = hub_files(wanted)
    except UnavailableError as error:
        aliases = nearest_aliases(wanted)
        packaged = f"name {' or '.join(map(repr, aliases))}" if aliases else "name one of `vlmplan models`"
        raise UnavailableError(f"{error}; {packaged}, or a folder with its config.json") from None
    source = f"config.json of {wanted}"
    model = _read(str(wanted), found.texts, source=source, hub_id=str(wanted), notes=found.notes)
    return FoundModel(files=_described(model), source=found.source)


# -- from texts to a description -------------------------------------------------------------------------------------


def _read(
    name: str, texts: Mapping[str, str], *, source: str, hub_id: str | None, notes: Sequence[str] = ()
) -> ModelFiles:
    """What the texts of the files say; ``source`` names config.json in errors."""
    config = parsed_config(texts[CONFIG], source=source)
    preprocessor = _image_settings(texts, source)
    notes = list(notes)
    if preprocessor is None and config["model_type"] in IMAGE_MODEL_TYPES:
        notes.append(
            f"There is no preprocessor_config.json of {name}, so image sizes are the defaults of its processor."
        )
    return ModelFiles(id=name, config=config, preprocessor=preprocessor, hub_id=hub_id, notes=tuple(notes))


def _described(model: ModelFiles) -> ModelFiles:
    """The files of a model without a family, with what transformers says about it; others as they are."""
    if model.model_type in FAMILIES:
        return model
    from vlmplan.architecture.generic import generic_notes
    from vlmplan.architecture.layout import inputs_beside_text
    from vlmplan.models.probe import probed_layout

    layout = probed_layout(model.config, brings_own_code=brings_own_code(model.config))
    return ProbedModelFiles(
        id=model.id,
        config=model.config,
        preprocessor=model.preprocessor,
        hub_id=model.hub_id,
        notes=(*model.notes, *generic_notes(layout, model.model_type)),
        not_counted=inputs_beside_text(layout),
        layout=layout,
    )


def described(model: ModelFiles, config: Mapping[str, Any]) -> ModelFiles:
    """``model`` with another config.json; of one without a family, looked up anew."""
    return _described(ModelFiles(id=model.id, config=config, preprocessor=model.preprocessor, hub_id=model.hub_id))


def brings_own_code(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has classes of its own, for all of the model or a part (``auto_map``)."""
    sections = [cast(Mapping[str, Any], value) for value in config.values() if isinstance(value, Mapping)]
    return any("auto_map" in section for section in (config, *sections))


def why_unsupported(model: ModelFiles) -> str:
    """Why a packaged model has no tree without asking transformers."""
    if brings_own_code(model.config):
        return f"the classes of {model.model_type} come with the checkpoint, as code that vlmplan does not run"
    return f"vlmplan does not describe the model_type {model.model_type!r}"


def _image_settings(texts: Mapping[str, str], source: str) -> dict[str, Any] | None:
    """The settings of the image processor; newer checkpoints keep them in processor_config.json."""
    if PREPROCESSOR in texts:
        return _json_object(texts[PREPROCESSOR], source=source.replace(CONFIG, PREPROCESSOR))
    if PROCESSOR in texts:
        settings = _json_object(texts[PROCESSOR], source=source.replace(CONFIG, PROCESSOR)).get("image_processor")
        if isinstance(settings, dict):
            return cast(dict[str, Any], settings)
    return None


def parsed_config(text: str, *, source: str) -> dict[str, Any]:
    """The object in a config.json. Raises InputError if it is none, or says no model_type."""
    config = _json_object(text, source=source)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"{source} has no model_type, so it does not describe a Hugging Face model")
    return config


def _json_object(text: str, *, source: str) -> dict[str, Any]:
    """As transformers reads JSON: repeated keys are allowed, and Infinity, which becomes ``{"__float__": ...}``."""
    return parse_json_object(text, source=source, constant=lambda name: {"__float__": name}, may_repeat=True)


def takes_images(model: ModelFiles) -> bool:
    """Whether vlmplan can estimate samples with images of it."""
    return model.model_type in IMAGE_MODEL_TYPES and model.model_type in FAMILIES


def context_length(model: ModelFiles) -> int | None:
    """The longest sequence that the language model is configured for; None where that is not known."""
    if isinstance(model, ProbedModelFiles):
        return model.layout.integer("max_position_embeddings")
    config = Config(model.config)
    sections = [config.section(name) for name in TEXT_SECTIONS if name in model.config or name == "text_config"]
    for section in (*sections, config):
        for key in CONTEXT_KEYS:
            value = section.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return None


__all__ = [
    "FoundModel",
    "PackagedModel",
    "brings_own_code",
    "context_length",
    "find_model",
    "found_model",
    "model_tree",
    "nearest_aliases",
    "packaged_files",
    "packaged_model",
    "packaged_models",
    "parsed_config",
    "takes_images",
    "why_unsupported",
]
