"""Where catalog files are looked for."""

import os
import sys
from pathlib import Path

from vlmplan.catalog.file import REFRESHED_FILE_NAME
from vlmplan.files import SHIPPED_CATALOG

PROJECT_FILE_NAME = "vlmplan_catalog.yaml"


def user_catalog_path() -> Path | None:
    """Where the user's own catalog is looked for; ``None`` without a home."""
    if sys.platform == "win32":
        config = os.environ.get("APPDATA", "")
    else:
        config = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    if Path(config).is_absolute():
        return Path(config) / "vlmplan" / SHIPPED_CATALOG
    try:
        return Path.home() / ".config" / "vlmplan" / SHIPPED_CATALOG
    except RuntimeError:
        return None


def refreshed_catalog_path() -> Path | None:
    """Where fetched prices are kept, beside the user's own catalog; ``None`` without a home."""
    path = user_catalog_path()
    return None if path is None else path.with_name(REFRESHED_FILE_NAME)
