"""The keys that ``docs/tasks/json.md`` names of each schema."""

import re
from collections.abc import Iterator
from typing import Any

from tools.documents import DOCS

PAGE = DOCS / "tasks" / "json.md"
SHARED = "What several documents have"
NAMED_BY_OTHERS = frozenset(
    (
        *("recipe", "options", "settings", "ds_config", "environment", "to_fill_in", "said", "defaults", "default"),
        *("sources", "versions", "forms", "config", "preprocessor", "not_measured"),
    )
)
"""Keys of objects in which names are those of options, of keys of files, of packages: nothing in them is looked at."""
BY_NAME = frozenset(
    (
        *("trained_params_by_part", "num_params_by_part", "components_at_peak", "estimated_components_at_peak"),
        *("components", "estimated_components", "relative_error_by_component", "by_kind", "step_seconds_by_part"),
        *("gpu_seconds_by_work", "ways", "targets", "values", "percentiles"),
    )
)
"""Keys of objects that hold one value for each kind of memory, collective, part or method."""


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.read_text().partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]


def documented_keys(schema: str) -> set[str]:
    """The keys in the first column of the schema's first table."""
    table = section(schema).partition("|---|---|\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def undocumented(document: dict[str, Any]) -> set[str]:
    """The keys of a document, at any depth, that neither the section of its schema names nor that of what several
    have, as ``schema: a.b``."""
    return set(_undocumented(document, "", ""))


def _undocumented(value: object, schema: str, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _undocumented(one, schema, path)
    elif isinstance(value, dict):
        schema = value.get("schema", schema)
        own = path.rpartition(".")[2]
        named = set(re.findall(r"`(\w+)`", section(schema) + section(SHARED)))
        for key, inside in value.items():
            place = f"{path}.{key}" if path else key
            if own not in BY_NAME and key not in {"schema", *named}:
                yield f"{schema}: {place}"
            if key not in NAMED_BY_OTHERS:
                yield from _undocumented(inside, schema, place)
