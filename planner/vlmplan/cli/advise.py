"""``vlmplan advise``: what each single change of a plan would save or cost."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import CATALOG, JSON, RECIPE, WORKLOAD, options, today, words_of
from vlmplan.cli.recommend import EXIT_NOTHING_FITS, LIMITS, MACHINES, plan_json, recipe_essentials
from vlmplan.notes import caveats

if TYPE_CHECKING:
    from vlmplan.search.advice import Advice, Outcome

SCHEMA = "vlmplan.advice/1"


@click.command()
@options(WORKLOAD, MACHINES)
@click.option(
    "--objective", type=click.Choice(("cost", "time")), help="[default: time with --max-usd alone, else cost]"
)
@options(LIMITS, RECIPE, CATALOG, JSON)
def advise(*, as_json: bool, catalog_files: tuple[Path, ...], **given: Any) -> int:
    """Which single change of the best plan buys most: more GPUs or nodes, other GPUs, another method, shorter samples.

    The plan is that of recommend with the same options. --max-hours is a deadline: what meets it for least money;
    --max-usd a budget: what is fastest within it. What is not changed stays, but for micro batch, engine and
    checkpointing, which follow. Where nothing fits, it shows what makes it fit. Exit code 3 if nothing does.
    """
    from vlmplan.answers.to_fit import document as to_fit_json
    from vlmplan.catalog import load_catalog
    from vlmplan.cli.to_fit import command_text
    from vlmplan.models import find_model
    from vlmplan.search.advice import advice

    objective = given["objective"]
    if objective is None:
        has_budget_alone = given["max_usd"] is not None and given["max_hours"] is None
        given["objective"] = "time" if has_budget_alone else "cost"
    found = advice(given, load_catalog(catalog_files), find_model(given["model"]), today())
    whole = command_text(advise, catalog_files)

    def text(options: Mapping[str, Any]) -> str:
        """With the objective as it was given, or none."""
        return whole({**options, "objective": objective})

    if as_json:
        described = document(found) | to_fit_json(found.way_out, text, found.as_of)
        click.echo(json.dumps(described, indent=2))
    else:
        from vlmplan.answers.to_fit import print_way_out
        from vlmplan.render.advice import print_advice

        print_advice(found, words)
        print_way_out(found.way_out, text, found.as_of)
    return 0 if found.base is not None or found.best is not None else EXIT_NOTHING_FITS


def words(changed: Mapping[str, Any]) -> str:
    """Options as the words of a command line; those that are to be left out have a minus before them."""
    given = {name: value for name, value in changed.items() if value is not None}
    left_out = [f"without --{name.replace('_', '-')}" for name, value in changed.items() if value is None]
    return ", ".join([*([shlex.join(words_of(advise, given))] if given else []), *left_out])


def document(found: "Advice") -> dict[str, Any]:
    """Schema ``vlmplan.advice/1``."""
    from vlmplan.render.advice import sentence

    return {
        "schema": SCHEMA,
        "workload": found.workload.as_json(),
        "objective": found.objective.value,
        "date": found.as_of.isoformat(),
        "max_usd": found.limits.max_usd,
        "max_hours": found.limits.max_hours,
        "base": None if found.base is None else plan_json(1, found.base, found.as_of),
        "base_within_limits": found.base_is_within_limits,
        "reason": found.reason,
        "changes": [_outcome_json(found, outcome) for outcome in found.outcomes],
        "best": None if found.best is None else found.best.change.name,
        "advice": sentence(found, words),
        "caveats": caveats(found.notes),
        "notes": list(found.notes),
    }


def _outcome_json(found: "Advice", outcome: "Outcome") -> dict[str, Any]:
    """A change; what is null of one with which something fits is not known."""
    from vlmplan.answers.offers import offer_json

    plan, change = outcome.plan, outcome.change
    cluster = None if plan is None else plan.estimate.cluster
    offer = None if plan is None else plan.offer
    return {
        "change": change.name,
        "options": words(change.options),
        "keeps_results": change.keeps_results,
        "fits": plan is not None,
        "within_limits": outcome.is_within_limits,
        "gpu": None if cluster is None else cluster.node.gpu.id,
        "num_gpus": None if cluster is None else cluster.node.num_gpus,
        "num_nodes": None if cluster is None else cluster.num_nodes,
        "offer": None if offer is None else offer_json(offer, found.as_of),
        "recipe": None if plan is None else recipe_essentials(plan.estimate.recipe),
        "hours": None if plan is None else plan.hours,
        "usd": None if plan is None else plan.usd,
        "hours_change": outcome.hours_change,
        "usd_change": outcome.usd_change,
        "bound_by": outcome.binding,
        "reason": outcome.reason,
    }
