"""The shipped catalog's YAML documents as JSON, a line each, which takes a thirtieth of the time to read.

A wheel holds them: ``hatch_build.py`` makes the file while it is built. A checkout keeps them in the user's cache, made
at the first use after a change of gpu_catalog.yaml. Either is taken only for exactly the text that it was made from.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

COMPILED_CATALOG = Path(__file__).parent / "data" / "gpu_catalog.jsonl"
KEPT = ("catalog", COMPILED_CATALOG.name)
"""Its place in the user's cache."""


def fingerprint(text: str) -> dict[str, int]:
    """What tells whether a text is the one that was compiled."""
    return {"characters": len(text), "crc32": zlib.crc32(text.encode())}


def compiled(text: str, documents: Iterable[object]) -> str:
    """The file's content: the fingerprint of ``text``, then its YAML ``documents``; dates become ISO text."""
    return "".join(json.dumps(item, default=str) + "\n" for item in (fingerprint(text), *documents))


def compiled_text(text: str) -> str:
    """``text``, the catalog of this installation, compiled: as it came with it or was kept, else made and kept."""
    from vlmplan.files.user_cache import keep_text, kept_text

    try:
        shipped = COMPILED_CATALOG.read_text(encoding="ascii")
    except (OSError, ValueError):
        shipped = ""
    for content in (shipped, kept_text(*KEPT) or ""):
        if _is_of(text, content):
            return content
    from vlmplan.files.yaml_reader import yaml_documents

    made = compiled(text, yaml_documents("the catalog of this installation", text))
    keep_text(made, *KEPT)
    return made


def compiled_documents(text: str) -> Iterator[object]:
    """The documents of ``text``, the catalog of this installation, each parsed when it is asked for."""
    return map(json.loads, compiled_text(text).splitlines()[1:])


def _is_of(text: str, content: str) -> bool:
    try:
        return json.loads(content.partition("\n")[0]) == fingerprint(text)
    except ValueError:
        return False
