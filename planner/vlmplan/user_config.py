"""Where the user's own settings are: a catalog of their own, calibrations of their GPUs."""

import os
import sys
from pathlib import Path


def user_config_dir() -> Path | None:
    """The folder; None without a home."""
    config = os.environ.get("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    if Path(config).is_absolute():
        return Path(config) / "vlmplan"
    try:
        return Path.home() / ".config" / "vlmplan"
    except RuntimeError:
        return None
