"""Parameter counts of published checkpoints (tests/data/models_table.csv) against module trees. Needs no torch."""

import csv
import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Part
from vlmplan.model_types.thinkers import thinker_config

TABLE = Path(__file__).parent / "data" / "models_table.csv"


def packaged_config(alias: str, **changes: object) -> dict[str, Any]:
    """The packaged config.json of ``alias``, or its thinker's, with top-level keys changed."""
    text = files("vlmplan").joinpath("data", "models", alias, "config.json").read_text(encoding="utf-8")
    return {**thinker_config(json.loads(text), source=alias), **changes}


def assert_counts_match_the_table(alias: str) -> None:
    """All parameters, and those of text, vision and projector, are as many as the published checkpoint has."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["short_name"] == alias)
    counts: Counter[Part] = Counter()
    for entry in build_model(packaged_config(alias)).parameters():
        counts[entry.part] += entry.parameter.numel
    assert counts.total() == int(row["params_total"])
    assert counts[Part.VISION] == int(row["params_vision"])
    assert counts[Part.PROJECTOR] == int(row["params_projector"])
    assert counts[Part.LANGUAGE] == int(row["params_text"])
