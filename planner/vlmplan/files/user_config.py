"""Where the user's own settings are: a catalog of their own, calibrations of their GPUs."""

import os
import sys
from pathlib import Path


def user_config_dir() -> Path | None:
    """The folder; None without a home."""
    return user_dir("APPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME", in_home=".config")


def user_dir(variable: str, *, in_home: str) -> Path | None:
    """vlmplan's folder in the one that a variable of the environment names, or that is in the home."""
    named = Path(os.environ.get(variable, ""))
    if named.is_absolute():  # the XDG base directory specification: a relative path is to be ignored
        return named / "vlmplan"
    try:
        return Path.home() / in_home / "vlmplan"
    except RuntimeError:
        return None
