"""``vlmplan estimate --compare``: variants of one setup side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vlmplan.memory.device import Verdict
from vlmplan.search.comparison import comparison


def run_comparison(name: str, given: Mapping[str, Any], catalog_files: tuple[Path, ...], *, as_json: bool) -> bool:
    """Print the comparison; whether any variant fits or is tight."""
    from vlmplan.answers.comparison import document, print_comparison
    from vlmplan.catalog import load_catalog
    from vlmplan.models import find_model
    from vlmplan.request import ds_config_of, requested_cluster, requested_setup

    catalog, model = load_catalog(catalog_files), find_model(given["model"])
    variants = comparison(name, given, catalog, model)
    known = [variant.estimate for variant in variants if variant.estimate is not None]
    if not known:  # a mistake that no variant mends; raises InputError
        requested_setup(given, requested_cluster(given, catalog), model, ds_config_of(given))
    if as_json:
        click.echo(json.dumps(document(name, variants), indent=2))
    else:
        print_comparison(variants)
    return any(found.verdict is not Verdict.DOES_NOT_FIT for found in known)
