"""``vlmplan estimate --compare``: variants of one setup side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vlmplan.memory.device import Verdict
from vlmplan.search.comparison import Variant, comparison

SCHEMA = "vlmplan.comparison/1"


def run_comparison(name: str, given: Mapping[str, Any], catalog_files: tuple[Path, ...], *, as_json: bool) -> bool:
    """Print the comparison; whether any variant fits or is tight."""
    from vlmplan.catalog import load_catalog
    from vlmplan.models import find_model
    from vlmplan.render.comparison import print_comparison
    from vlmplan.render.estimate import hardware_text, setup_text, workload_text
    from vlmplan.request import ds_config_of, requested_cluster, requested_setup

    catalog, model = load_catalog(catalog_files), find_model(given["model"])
    variants = comparison(name, given, catalog, model)
    known = [variant.estimate for variant in variants if variant.estimate is not None]
    if not known:  # a mistake that no variant mends; raises InputError
        requested_setup(given, requested_cluster(given, catalog), model, ds_config_of(given))
    if as_json:
        click.echo(json.dumps(document(name, variants), indent=2))
    else:
        first = next((one.estimate for one in variants if one.is_present and one.estimate is not None), known[0])
        title = f"{model.id}; {setup_text(first)}; {hardware_text(first)}; {workload_text(first)}"
        print_comparison(title, variants)
    return any(found.verdict is not Verdict.DOES_NOT_FIT for found in known)


def document(name: str, variants: list[Variant]) -> dict[str, Any]:
    """Schema ``vlmplan.comparison/1``: each variant with its whole estimate, null where it is refused."""
    return {
        "schema": SCHEMA,
        "compare": name,
        "variants": [
            {
                "name": variant.name,
                "options": dict(variant.options),
                "is_present": variant.is_present,
                "verdict": "refused" if variant.estimate is None else variant.estimate.verdict.value,
                "reason": variant.reason,
                "estimate": None if variant.estimate is None else variant.estimate.as_json(),
            }
            for variant in variants
        ],
    }
