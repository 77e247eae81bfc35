"""Where catalog files are looked for."""

from pathlib import Path

from vlmplan.catalog.file import REFRESHED_FILE_NAME
from vlmplan.files import SHIPPED_CATALOG
from vlmplan.files.user_cache import user_cache_dir
from vlmplan.files.user_config import user_config_dir

PROJECT_FILE_NAME = "vlmplan_catalog.yaml"


def user_catalog_path() -> Path | None:
    """The file in which the user's own catalog is looked for; ``None`` without a home."""
    folder = user_config_dir()
    return None if folder is None else folder / SHIPPED_CATALOG


def refreshed_catalog_path() -> Path | None:
    """The file in which fetched prices are kept, in the user's cache; ``None`` without a home."""
    folder = user_cache_dir()
    return None if folder is None else folder / "prices" / REFRESHED_FILE_NAME
