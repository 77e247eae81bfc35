"""The document of an answer as JSON text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast


def document_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, in which what is infinite is null."""
    import json

    try:
        return json.dumps(document, indent=2, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), indent=2)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in cast(Mapping[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(Sequence[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
