"""Finding a model by what the user calls it: packaged alias, Hugging Face id, folder or config.json."""

import os
from dataclasses import replace
from pathlib import Path, PurePath

from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files import text_if_there
from vlmplan.model_types.language_parts import SUFFIX, language_config, language_note
from vlmplan.models.description import FoundModel, files_of_texts, with_layout
from vlmplan.models.folder import NEEDED, why_no_model
from vlmplan.models.hub_names import CONFIG, FILE_NAMES, MAX_BYTES, HubId, hub_id
from vlmplan.models.packaged import (
    WAYS_TO_NAME,
    alias_by_hub_id,
    alias_by_repo_name,
    copy_of_packaged,
    nearest_aliases,
    packaged_model,
    packaged_models,
    plannable_models,
)
from vlmplan.models.stored_weights import notes_on_folder
from vlmplan.workload import ModelFiles

CACHED = "models--"
"""How the Hub's caches begin the names of folders."""
HUB_ADDRESS = "https://huggingface.co/"
"""Before a model's id where its address was copied."""


def find_model(name: str) -> ModelFiles:
    """The files of the model called ``name``.

    Raises UnknownNameError for a name that is nothing of all this, UnavailableError where files cannot be had,
    InputError where they make no sense, MissingPackageError where transformers is needed and not installed.
    """
    return found_model(name).files


def found_model(name: str) -> FoundModel:
    """``find_model``, and where the files are from.

    A path that says so (``./gpt2``, ``~/m``, ``x.json``) is one; else an alias goes before a folder of that name, a
    folder before a Hugging Face id or what comes after its organisation, and a packaged id before the caches and the
    network. With ``:text`` behind it, the language model alone of a vision-language model.
    """
    name = name.strip()
    if name.endswith(SUFFIX) and not os.path.lexists(name):
        return _language_part(found_model(name.removesuffix(SUFFIX)), name)
    if not name:
        raise InputError("the model's name is empty; `vlmplan models` lists names")
    alias = name.casefold()
    if alias in packaged_models() and not _is_path(name):
        return packaged_model(alias)
    if _is_path(name) or _has_config(name):
        return _model_at(name)
    if alias in alias_by_repo_name():
        return packaged_model(alias_by_repo_name()[alias])
    name = name.removeprefix(HUB_ADDRESS).rstrip("/")
    wanted = hub_id(name)
    if wanted is None and os.path.isdir(name):
        return _model_at(name)
    if wanted is None:
        raise UnknownNameError("model", name, packaged_models(), WAYS_TO_NAME, num_known=len(plannable_models()))
    packaged = alias_by_hub_id().get(str(wanted).casefold())
    return packaged_model(packaged, name=name) if packaged else _model_on_hub(wanted)


def _language_part(whole: FoundModel, name: str) -> FoundModel:
    files = whole.files
    config = language_config(files.config, name=files.id)
    notes = (*files.notes, language_note(files.id, files.model_type))
    part = ModelFiles(id=name, config=config, hub_id=files.hub_id, notes=notes)
    return FoundModel(files=with_layout(part), source=whole.source)


def _is_path(name: str) -> bool:
    starts = (".", "~", os.sep, "/")
    return name.startswith(starts) or name.endswith(".json") or Path(name).is_absolute()


def alias_of_absent(name: str) -> str | None:
    """The packaged model that a folder is called after which is not there: by the last part of its path, as the Hub's
    caches and ModelScope write it too.

    >>> alias_of_absent("/data/models/Qwen2.5-VL-7B-Instruct"), alias_of_absent("./checkpoint-300")
    ('qwen2.5-vl-7b', None)
    >>> alias_of_absent("~/hub/models--Qwen--Qwen3-4B/snapshots/a1/"), alias_of_absent("/m/Qwen2___5-3B-Instruct")
    ('qwen3-4b', 'qwen2.5-3b-instruct')
    """
    if not _is_path(name) or os.path.lexists(os.path.expanduser(name)):
        return None
    parts = [part for part in PurePath(name).parts if part.startswith(CACHED)] or [PurePath(name).name]
    last = parts[-1].rpartition("--")[2].replace("___", ".").casefold()
    return last if last in packaged_models() else alias_by_repo_name().get(last)


def _has_config(name: str) -> bool:
    try:
        return (Path(name) / CONFIG).is_file()
    except (OSError, ValueError):  # too long, or with characters that no path has
        return False


def _model_at(name: str) -> FoundModel:
    """The model in a folder, or the one whose config.json is at this path."""
    try:
        path = Path(name).expanduser()
        is_folder = path.is_dir()
    except (OSError, ValueError, RuntimeError):
        raise UnavailableError(f"{name!r} is no path of this machine; a folder or a config.json is needed") from None
    folder = path if is_folder else path.parent
    config_path = path / CONFIG if is_folder else path
    texts = {file: _text_at(folder / file) for file in FILE_NAMES if file != CONFIG}
    config = _text_at(config_path)
    if config is None:
        raise UnavailableError(why_no_model(path) if is_folder else f"{path} does not exist; {NEEDED}")
    found = {CONFIG: config, **{file: text for file, text in texts.items() if text is not None}}
    where = str(folder.resolve())
    files = with_layout(files_of_texts(name, found, source=str(config_path), hub_id=where))
    files = replace(files, notes=(*files.notes, *notes_on_folder(files, folder.resolve())))
    return FoundModel(files=files, source=f"the file {config_path}")


def _text_at(path: Path) -> str | None:
    """The text of a file; None where there is none. Raises UnavailableError or InputError if it is no small text."""
    return text_if_there(path, name=str(path), otherwise=", so it is no configuration", most_bytes=MAX_BYTES)


def _model_on_hub(wanted: HubId) -> FoundModel:
    from vlmplan.models.hub import UncachedError, hub_files

    try:
        found = hub_files(wanted)
    except UnavailableError as error:
        copied = copy_of_packaged(wanted) if isinstance(error, UncachedError) else None
        if copied is not None:
            return copied
        aliases = nearest_aliases(wanted)
        packaged = f"name {' or '.join(map(repr, aliases))}" if aliases else "name one of `vlmplan models`"
        raise UnavailableError(f"{error}; {packaged}, or a folder with its config.json") from None
    source = f"config.json of {wanted}"
    model = files_of_texts(str(wanted), found.texts, source=source, hub_id=str(wanted), notes=found.notes)
    return FoundModel(files=with_layout(model), source=found.source)
