"""How models are called on the Hugging Face Hub, and which of their files describe them. A leaf."""

import re
from typing import NamedTuple

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
VIDEO_PREPROCESSOR = "video_preprocessor_config.json"
FILE_NAMES = (CONFIG, PREPROCESSOR, PROCESSOR, VIDEO_PREPROCESSOR)
MAX_BYTES = 4 * 2**20
"""Largest file taken: configurations with label lists reach some hundred KiB."""
DEFAULT_REVISION = "main"

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,255}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubId(NamedTuple):
    """``repo`` is ``org/name``; ``revision`` a branch, a tag or a commit."""

    repo: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return self.repo if self.revision == DEFAULT_REVISION else f"{self.repo}@{self.revision}"

    @property
    def is_of_one_commit(self) -> bool:
        return is_commit(self.revision)


def hub_id(text: str) -> HubId | None:
    """``org/name`` or ``org/name@revision``; None if ``text`` is neither."""
    repo, at, revision = text.partition("@")
    if not at:
        revision = DEFAULT_REVISION
    is_id = _ID.fullmatch(repo) and "--" not in repo and ".." not in repo
    return HubId(repo=repo, revision=revision) if is_id and is_revision(revision) else None


def is_revision(text: str) -> bool:
    return _REVISION.fullmatch(text) is not None and ".." not in text and not text.endswith("/")


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None
