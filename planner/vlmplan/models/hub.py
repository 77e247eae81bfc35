"""A model's configuration files by Hugging Face id: from the local caches if they are there, else from the Hub.

Only config.json and the settings of the processors of images and videos are looked at. In this order:

1. the Hugging Face cache (``HF_HUB_CACHE``, ``HF_HOME``), where transformers has put them;
2. vlmplan's own copy, if it is younger than a day or of one commit;
3. the Hub, unless ``HF_HUB_OFFLINE`` is set; what comes is kept;
4. vlmplan's own copy, however old, if the Hub cannot be reached.
"""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vlmplan.architecture.images.videos import VIDEO_MODEL_TYPES
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.files import text_if_there
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.model_types.thinkers import THINKERS
from vlmplan.models.description import parsed_config, parsed_settings
from vlmplan.models.hub_names import (
    CONFIG,
    FILE_NAMES,
    MAX_BYTES,
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    HubId,
    is_commit,
    is_revision,
)
from vlmplan.models.hub_network import Fetched, UnreachableError, endpoint, fetched_file, within_deadline
from vlmplan.units import counted

KEPT_SCHEMA = 2
FRESH_SECONDS = 24 * 3600.0
"""How long a copy of a branch is used without asking again: configurations of published models hardly ever change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFiles:
    """The texts of the files that there are, by name, and where they are from, as words for the user."""

    texts: Mapping[str, str] = field(hash=False)
    source: str
    notes: tuple[str, ...] = ()


class UncachedError(UnavailableError):
    """What is in no cache and cannot be fetched now, whether or not the Hub has it."""


def hub_files(wanted: HubId) -> HubFiles:
    """The configuration files of ``wanted``. Raises UnavailableError, in one sentence, where they cannot be had."""
    cached = cached_files(wanted)
    if cached is not None:
        return cached
    kept = _kept(wanted)
    if kept is not None and (wanted.is_of_one_commit or kept.age_seconds < FRESH_SECONDS):
        return kept.files
    if is_offline():
        if kept is not None:
            return kept.files
        raise UncachedError(f"{wanted} is in no cache of this machine, and HF_HUB_OFFLINE forbids to fetch it")
    try:
        files = within_deadline(lambda: _fetched(wanted))
    except UnreachableError as error:
        if kept is None:
            raise UncachedError(f"{wanted} is in no cache of this machine, and {error}") from None
        days = kept.age_seconds / 86400
        note = f"The configuration of {wanted} is a copy of {counted(round(days), 'day')} ago, because {error}."
        return HubFiles(texts=kept.files.texts, source=kept.files.source, notes=(note,))
    _keep(wanted, files)
    return files


def is_on_this_machine(wanted: HubId) -> bool:
    """Whether the files can be had without the network."""
    return cached_files(wanted) is not None or _kept(wanted) is not None


def is_offline() -> bool:
    """Whether the user forbids the network. Source: ``huggingface_hub.constants``."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


# -- the Hugging Face cache ------------------------------------------------------------------------------------------


def hugging_face_cache() -> Path:
    """The folder of the Hub's client. Source: ``huggingface_hub.constants``."""
    environ = os.environ
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(cache)))


def cached_files(wanted: HubId) -> HubFiles | None:
    """The files of the snapshot that the revision names in the Hugging Face cache; None without a config.json."""
    snapshot = cached_snapshot(wanted)
    if snapshot is None:
        return None
    texts = {name: _small_text(snapshot / name) for name in FILE_NAMES}
    found = {name: text for name, text in texts.items() if text is not None}
    if CONFIG not in found:
        return None
    return HubFiles(texts=found, source=f"the Hugging Face cache, commit {snapshot.name[:12]}")


def cached_snapshot(wanted: HubId) -> Path | None:
    """The folder of the Hugging Face cache for the files of this revision, which may not be there; None where the name
    of its commit makes no sense."""
    repo = hugging_face_cache() / f"models--{wanted.repo.replace('/', '--')}"
    reference = _small_text(repo / "refs" / wanted.revision)
    commit = wanted.revision if reference is None else reference.strip()
    return repo / "snapshots" / commit if is_revision(commit) and "/" not in commit else None


def _small_text(path: Path) -> str | None:
    """The text of a file of at most ``MAX_BYTES``; None where there is none."""
    try:
        return text_if_there(path, name=str(path), most_bytes=MAX_BYTES)
    except VlmplanError:
        return None


# -- vlmplan's own copies --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    files: HubFiles
    age_seconds: float


def _place(wanted: HubId) -> tuple[str, ...]:
    """The name under which a copy is kept: apart for each server, so that none can speak for another."""
    server = hashlib.sha256(endpoint().encode()).hexdigest()[:12]
    folder = f"models--{wanted.repo.replace('/', '--')}"
    return ("hub", server, folder, f"{quote(wanted.revision, safe='')}.json")


def _kept(wanted: HubId) -> _Kept | None:
    """The cached copy; None where there is none, or it is damaged."""
    text = kept_text(*_place(wanted))
    try:
        values: Any = json.loads(text or "null")
        if values["schema"] != KEPT_SCHEMA:
            return None
        texts = {str(name): str(content) for name, content in values["texts"].items() if name in FILE_NAMES}
        age = max(0.0, time.time() - float(values["fetched_at"]))
        source = str(values["source"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    try:
        parsed_config(texts.get(CONFIG, ""), source=CONFIG)
    except InputError:
        return None
    return _Kept(files=HubFiles(texts=texts, source=f"{source} (kept copy)"), age_seconds=age)


# -- the Hub ---------------------------------------------------------------------------------------------------------


def _fetched(wanted: HubId) -> HubFiles:
    """The files from the Hub, all of one commit."""
    config = fetched_file(wanted.repo, wanted.revision, CONFIG)
    if config is None:
        raise UnavailableError(
            f"{wanted} has no config.json, so it is no transformers model (an adapter, GGUF or original weights?)"
        )
    texts = {CONFIG: config.text}
    _check(texts, wanted)
    revision = _commit(config) or wanted.revision
    preprocessor = fetched_file(wanted.repo, revision, PREPROCESSOR)
    name, settings = PREPROCESSOR, preprocessor
    if settings is None:
        name, settings = PROCESSOR, fetched_file(wanted.repo, revision, PROCESSOR)
    if settings is not None:
        texts[name] = settings.text
    model_type = str(parsed_config(config.text, source=CONFIG)["model_type"])
    if (THINKERS[model_type].model_type if model_type in THINKERS else model_type) in VIDEO_MODEL_TYPES:
        video = fetched_file(wanted.repo, revision, VIDEO_PREPROCESSOR)
        texts |= {} if video is None else {VIDEO_PREPROCESSOR: video.text}
    _check(texts, wanted)
    commit = _commit(config)
    source = urlsplit(endpoint()).netloc + (f", commit {commit[:12]}" if commit else "")
    return HubFiles(texts=texts, source=source)


def _keep(wanted: HubId, files: HubFiles) -> None:
    """Keep the files for the next time; not by the thread that asks, which may have been given up on."""
    kept = {"schema": KEPT_SCHEMA, "fetched_at": time.time(), "source": files.source, "texts": dict(files.texts)}
    keep_text(json.dumps(kept), *_place(wanted))


def _check(texts: Mapping[str, str], wanted: HubId) -> None:
    """Raise UnreachableError for what is no configuration, before it is kept: the sign-in page of a network, say, which
    answers for every server."""
    try:
        for name, text in texts.items():
            (parsed_config if name == CONFIG else parsed_settings)(text, source=f"{name} of {wanted}")
    except InputError as error:
        server = urlsplit(endpoint()).netloc
        raise UnreachableError(f"{server} answers with what is no configuration ({error})") from None


def _commit(fetched: Fetched) -> str | None:
    return fetched.commit if fetched.commit and is_commit(fetched.commit) else None
