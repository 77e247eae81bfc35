"""What vlmplan keeps between runs: model files from the Hub, layouts of models it has no family for, fetched prices.

It is safe to delete.
"""

import sys
from pathlib import Path

from vlmplan.errors import VlmplanError
from vlmplan.files.read_write import text_if_there, write_atomically
from vlmplan.files.user_config import user_dir


def user_cache_dir() -> Path | None:
    """The folder for kept files; None without a home."""
    return user_dir("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", in_home=".cache")


def kept_text(*parts: str) -> str | None:
    """The text kept under this name; None where there is none or it cannot be read."""
    folder = user_cache_dir()
    if folder is None:
        return None
    try:
        return text_if_there(folder.joinpath(*parts), name="the kept copy")
    except VlmplanError:
        return None


def keep_text(text: str, *parts: str) -> None:
    """Keep ``text`` under this name, whole or not at all. Where nothing can be written, nothing is kept."""
    folder = user_cache_dir()
    if folder is None:
        return
    try:
        write_atomically(folder.joinpath(*parts), text, force=True)
    except VlmplanError:
        return
