"""The shipped catalog's YAML documents as JSON, a line each, which takes a thirtieth of the time to read.

``tests/tools/compile_catalog.py`` writes the file. It is taken only for exactly the text that it was made from, so an
edited gpu_catalog.yaml is read as YAML.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

COMPILED_CATALOG = Path(__file__).parents[1] / "data" / "gpu_catalog.jsonl"


def fingerprint(text: str) -> dict[str, int]:
    """What tells whether a text is the one that was compiled."""
    return {"characters": len(text), "crc32": zlib.crc32(text.encode())}


def compiled(text: str, documents: Iterable[object]) -> str:
    """The file's content: the fingerprint of ``text``, then its YAML ``documents``; dates become ISO text."""
    return "".join(json.dumps(item, default=str) + "\n" for item in (fingerprint(text), *documents))


def compiled_documents(text: str, file: Path = COMPILED_CATALOG) -> Iterator[object] | None:
    """The documents of ``text``, each parsed when it is asked for; None if the file is not of this text."""
    try:
        header, *lines = file.read_text(encoding="ascii").splitlines()
        is_of_text = json.loads(header) == fingerprint(text)
    except (OSError, ValueError):
        return None
    return map(json.loads, lines) if is_of_text else None
