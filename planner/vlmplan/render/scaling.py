"""Speed and price by the number of machines, as tables."""

import click

from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.scaling import Scaling, ScalingPoint, nodes_paying
from vlmplan.units import duration_text

LEAST_FIRST = ("batch", "network", "step", "efficiency")
TITLES = ("nodes", "GPUs", "batch", "step", "network", "samples/s", "efficiency", "run", "usd", "")


def print_scaling(found: Scaling) -> None:
    """Both scans, and up to how many machines another one pays."""
    for title, points in (
        ("The same samples a step (strong scaling):", found.strong),
        ("The same samples a GPU and step (weak scaling):", found.weak),
    ):
        if not points:
            continue
        click.echo()
        say(title)
        numbers = frozenset(title for title in TITLES if title)
        rows = [_row(point) for point in points]
        print_table(Table(titles=TITLES, rows=rows, number_columns=numbers, least_first=LEAST_FIRST))
        say(paying_text(points))


def paying_text(points: tuple[ScalingPoint, ...]) -> str:
    """Where another node stops paying, in a sentence."""
    most = nodes_paying(points)
    if most == points[-1].num_nodes:
        return f"Another node pays up to the {most} looked at."
    return f"Beyond {most} node{'s' if most != 1 else ''} another one brings less than half of what it adds in GPUs."


def _row(point: ScalingPoint) -> list[str]:
    return [
        str(point.num_nodes),
        f"{point.num_gpus:,}",
        f"{point.samples_per_step:,}",
        duration_text(point.step_seconds),
        f"{point.communication_seconds / point.step_seconds:.0%}",
        f"{point.samples_per_second:,.3g}" if point.samples_per_second < 1000 else f"{point.samples_per_second:,.0f}",
        f"{point.efficiency:.0%}",
        duration_text(point.run_seconds),
        "" if point.usd is None else f"{point.usd:,.2f}",
        "" if point.verdict.value == "fits" else point.verdict.value.replace("_", " "),
    ]
