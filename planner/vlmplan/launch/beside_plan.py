"""The ds_config.json beside a plan: it is there to be looked at, and a run reads the plan's own."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from vlmplan.emit.write import DS_CONFIG_FILE, ds_config_text
from vlmplan.errors import VlmplanError
from vlmplan.files.json_reader import parse_json_object, read_json_object, shown
from vlmplan.plan import Plan

MISSING = "nothing"


def other_ds_config(plan: Plan, path: Path) -> list[str]:
    """A note where the ds_config.json beside the plan's ``path`` says something else than the plan: who edited it is
    told that no run reads it."""
    file = (path if path.is_dir() else path.parent) / DS_CONFIG_FILE
    if plan.ds_config is None or not file.is_file():
        return []
    try:
        values = read_json_object(file)
    except VlmplanError as error:
        return [f"{error}; a run is of the plan, which has its own"]
    written = parse_json_object(ds_config_text(plan.ds_config, plan.recipe), source=str(path))
    said, planned = (dict(_flat(one)) for one in (values, written))
    differing = [key for key in said.keys() | planned.keys() if said.get(key) != planned.get(key)]
    if not differing:
        return []
    key = min(differing)
    here, there = (shown(one[key]) if key in one else MISSING for one in (said, planned))
    more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
    return [
        f"{file} says {here} for {key} where the plan says {there}{more}: a run is of the plan, which has its own; "
        f"--model with --ds-config {file} plans with that file"
    ]


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path of keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(cast(Mapping[str, Any], value), f"{path}{key}.")
        else:
            yield f"{path}{key}", value
