"""The files of the page, as they are in ``static``: sources without a build step."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By the end of a name, what a file is."""


@cache
def page_files() -> Mapping[str, bytes]:
    """What each file holds, by its name: all are in one folder."""
    return {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in TYPES}


def type_of(name: str) -> str:
    """The media type of a file of the page."""
    return TYPES[Path(name).suffix]
