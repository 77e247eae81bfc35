"""A recommendation: its document, and for people the winner, the best of each method, and what does not fit and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from math import inf
from typing import TYPE_CHECKING

import click

from vlmplan.answers import estimate as estimates
from vlmplan.answers.estimate import (
    calibration_lines,
    caveat_lines,
    print_memory,
    setup_text,
    verdict_line,
    workload_text,
)
from vlmplan.answers.front import point_json, print_pareto, summary_line, wins_by
from vlmplan.answers.host_and_disk import host_line, resume_line
from vlmplan.answers.offers import age_text, cost_lines, machine_json, money_line, price_json, range_lines
from vlmplan.answers.setups import engine_text
from vlmplan.catalog.price_lists import Spread
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Pricing
from vlmplan.notes import caveats, footnotes
from vlmplan.recipe.choices import Method
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.search import RankedPlan, Recommendation, Rejection
from vlmplan.search.explanation import explanation
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, gib_text

if TYPE_CHECKING:
    from vlmplan.rehearsal import Comparison

SCHEMA = "vlmplan.recommendation/1"
SHOWN_REJECTIONS = 6
UNKNOWN = "-"
TITLES = ("", "method", "GPUs", "offer", "usd/h", "engine", "batch", "ckpt", "GiB", "of", "time", "usd", "age")
NUMBERS = frozenset(("usd/h", "GiB", "of", "time", "usd", "age"))
LEAST_FIRST = ("of", "age", "ckpt", "GiB", "usd/h", "engine", "batch", "offer", "")
CUT = frozenset(("offer", "engine"))


def document(found: Recommendation, rehearsal: "Comparison | None" = None) -> JsonDict:
    """Schema ``vlmplan.recommendation/1``; ``rehearsal`` is that of the first plan."""
    plans = [plan_json(rank, plan, found.as_of, found.spreads) for rank, plan in enumerate(found.plans, start=1)]
    if rehearsal is not None:
        from vlmplan.answers.rehearsal import confirmation_json

        plans[0]["rehearsal"] = confirmation_json(rehearsal)
    return {
        "schema": SCHEMA,
        "workload": found.workload.as_json(),
        "objective": found.objective.value,
        "date": found.as_of.isoformat(),
        "num_setups_considered": found.num_considered,
        "plans": plans,
        "explanation": explanation(found.plans, found.objective),
        "pareto": [point_json(point, found.as_of) for point in found.pareto],
        "rejected": [rejection_json(rejection) for rejection in found.rejected],
        "caveats": caveats(found.notes),
        "notes": list(found.notes),
    }


def plan_json(rank: int, plan: RankedPlan, on: date, spreads: Mapping[str, Spread]) -> JsonDict:
    """A plan with its whole estimate; ``spreads``: by GPU what it costs elsewhere."""
    estimate = estimates.document(plan.estimate)
    return {
        "rank": rank,
        **machine_json(plan.estimate.cluster, plan.offer, on),
        "recipe": estimate["recipe"],
        "estimate": estimate,
        "price": None if plan.offer is None else price_json(plan.offer, spreads, on),
        "hours": plan.hours,
        "hours_range": None if plan.hours_range is None else list(plan.hours_range),
        "usd": plan.usd,
        "usd_range": None if plan.usd_range is None else list(plan.usd_range),
        "usd_per_hour": plan.usd_per_hour,
        "billed_hours": plan.billed_hours,
        "cost": None if plan.cost is None else asdict(plan.cost) | {"save_every_steps": plan.save_every_steps},
    }


def rejection_json(rejection: Rejection) -> JsonDict:
    """A cluster on which nothing fits, and why."""
    return {
        "gpu": rejection.cluster.node.gpu.id,
        "num_gpus": rejection.cluster.node.num_gpus,
        "num_nodes": rejection.cluster.num_nodes,
        "reason": rejection.reason,
        "smallest_change": rejection.smallest_change,
    }


def print_recommendation(
    found: Recommendation,
    rehearsal: "Comparison | None" = None,
    *,
    shows_pareto: bool = False,
    hints: Sequence[str] = (),
) -> None:
    """Print the answer to standard output; ``rehearsal`` is what confirmed the winner; ``shows_pareto``: cost against
    time of every setup as well; ``hints``: what other options would bring."""
    say(
        f"{found.workload.model.id}: {counted(found.num_clusters, 'machine')}, "
        f"{counted(found.num_considered, 'setup')} considered, "
        f"{counted(len({rejection.label for rejection in found.rejected}), 'machine')} rejected"
    )
    winner = found.plans[0]
    click.echo()
    say(click.style(f"{wins_by(found)}: ", bold=True) + money_line(winner, found.as_of))
    say(f"  {setup_text(winner.estimate)}", f"  {verdict_line(winner.estimate)}")
    hinted = [f"hint: {hint}" for hint in hints]
    for line in (*winner_lines(found), *_confirmation(rehearsal), *_beside_others(found, shows_pareto), *hinted):
        say(f"  {line}")
    click.echo()
    print_memory(winner.estimate)
    click.echo()
    print_table(plans_table(found))
    if shows_pareto:
        click.echo()
        print_pareto(found)
    for line in (*rejection_lines(found.rejected), "", *assumed_lines(found)):
        say(line)


def winner_lines(found: Recommendation) -> Iterator[str]:
    """What stands below the first plan's verdict: what its numbers rest on, its hosts, and its money."""
    winner = found.plans[0]
    yield from (*calibration_lines(winner.estimate), *caveat_lines(found.notes), host_line(winner.estimate))
    if winner.offer is not None and winner.offer.pricing is Pricing.INTERRUPTIBLE:
        yield resume_line(winner.estimate)
    yield from (*cost_lines(winner), *range_lines(winner))


def _confirmation(rehearsal: "Comparison | None") -> list[str]:
    if rehearsal is None:
        return []
    from vlmplan.answers.rehearsal import confirmation_lines

    return confirmation_lines(rehearsal)


def _beside_others(found: Recommendation, shows_pareto: bool) -> Iterator[str]:
    """Why the winner is before the next plan, and what the front has instead of it."""
    why = explanation(found.plans, found.objective)
    if why is not None:
        yield why
    summary = None if shows_pareto else summary_line(found)
    if summary is not None:
        yield summary


def print_nothing_fits(found: Recommendation) -> None:
    """Print why no plan is left."""
    is_over_limits = any(rejection.share_of_limit is not None for rejection in found.rejected)
    missing = "nothing within the limits" if is_over_limits else "nothing fits"
    say(f"{found.workload.model.id}: {missing} on {counted(found.num_clusters, 'machine')}")
    for line in rejection_lines(found.rejected):
        say(line)


def plans_table(found: Recommendation) -> Table:
    """All plans, the best of each method first."""
    best = {method: found.best_of(method) for method in Method}
    shown = [plan for plan in best.values() if plan is not None]
    shown.sort(key=found.plans.index)
    rest = [plan for plan in found.plans if plan not in shown]
    rows = [_cells("best", plan, found.as_of) for plan in shown] + [_cells("", plan, found.as_of) for plan in rest]
    return Table(titles=TITLES, rows=rows, number_columns=NUMBERS, least_first=LEAST_FIRST, cut_columns=CUT)


def _cells(mark: str, plan: RankedPlan, on: date) -> tuple[str, ...]:
    estimate, recipe = plan.estimate, plan.estimate.recipe
    gib = 2**30
    return (
        mark,
        recipe.method.value,
        f"{estimate.cluster.num_gpus} x {estimate.cluster.node.gpu.id}",
        UNKNOWN if plan.offer is None else plan.offer.provider,
        UNKNOWN if plan.usd_per_hour is None else f"{plan.usd_per_hour:.2f}",
        engine_text(recipe, estimate.cluster.num_gpus),
        f"{recipe.micro_batch} x {recipe.grad_accum}",
        "yes" if recipe.activation_checkpointing else "no",
        f"{estimate.device.device_bytes / gib:.1f}",
        f"{estimate.device.usable_bytes / gib:.1f}",
        UNKNOWN if plan.hours is None else duration_text(plan.hours * SECONDS_PER_HOUR),
        UNKNOWN if plan.usd is None else f"{plan.usd:.2f}" if plan.usd >= 0.1 else f"{plan.usd:.3f}",
        UNKNOWN if plan.offer is None else age_text(plan.offer, on),
    )


def rejection_lines(rejected: Sequence[Rejection]) -> Iterator[str]:
    """One line per machine: what comes nearest to the limits first, then the largest machines, because what they lack
    is least."""
    ordered = sorted({rejection.label: rejection for rejection in rejected}.values(), key=_rejection_key)
    if ordered:
        yield ""
        yield "not possible:"
    for rejection in ordered[:SHOWN_REJECTIONS]:
        change = f"; try {rejection.smallest_change}" if rejection.smallest_change else ""
        yield f"  {rejection.label}: {rejection.reason}{change}"
    if len(ordered) > SHOWN_REJECTIONS:
        others = "smaller machine" if ordered[0].share_of_limit is None else "other machine"
        yield f"  and {counted(len(ordered) - SHOWN_REJECTIONS, others)}"


def _rejection_key(rejection: Rejection) -> tuple[float, float]:
    share, cluster = rejection.share_of_limit, rejection.cluster
    return inf if share is None else share, -cluster.node.gpu.usable_bytes * cluster.num_gpus


def assumed_lines(found: Recommendation) -> Iterator[str]:
    """What the numbers are of, how old prices are, and notes."""
    winner = found.plans[0].estimate
    yield f"assumed: {workload_text(winner)}"
    yield f"'fits' keeps {gib_text(winner.device.reserve_bytes)} of this GPU free; 'tight' plans are not shown"
    ages = [
        age for plan in found.plans if plan.offer is not None and (age := plan.offer.age_days(found.as_of)) is not None
    ]
    if ages:
        first = f"{min(ages)} to " if max(ages) > min(ages) else ""
        yield f"prices: {first}{counted(max(ages), 'day')} old on {found.as_of.isoformat()}; whole machines, all told"
    for note in footnotes(found.notes):
        yield f"note: {note}"
