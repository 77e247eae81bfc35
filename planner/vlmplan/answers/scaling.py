"""Speed and price by the number of machines: the part of an estimate's document, and tables."""

import click

from vlmplan.files.json_reader import JsonDict
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.scaling import Scaling, ScalingPoint, nodes_paying
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, is_or_are

LEAST_FIRST = ("batch", "network", "step", "efficiency")
TITLES = ("nodes", "GPUs", "batch", "step", "network", "samples/s", "efficiency", "run", "usd", "")
POINT_FIELDS = (
    *("num_nodes", "num_gpus", "micro_batch", "grad_accum", "samples_per_step", "verdict", "step_seconds"),
    *("communication_seconds", "samples_per_second", "efficiency"),
)


def document(found: Scaling | None) -> JsonDict | None:
    """The key ``scaling`` of an estimate; null where a speed is not known."""
    if found is None:
        return None
    return {
        "strong": [_point_json(point) for point in found.strong],
        "weak": [_point_json(point) for point in found.weak],
        "num_nodes_paying": {"strong": nodes_paying(found.strong), "weak": nodes_paying(found.weak)},
    }


def _point_json(point: ScalingPoint) -> JsonDict:
    values = {name: getattr(point, name) for name in POINT_FIELDS}
    return values | {"verdict": point.verdict.value, "hours": point.run_seconds / SECONDS_PER_HOUR, "usd": point.usd}


def print_scaling(found: Scaling | None) -> None:
    """Print both scans, and up to how many machines another one pays."""
    if found is None:
        say("scaling is not known, since a speed of the GPU or of a link is not")
        return
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
    if any(point.usd is not None for point in (*found.strong, *found.weak)):
        say("usd is of training alone: start-up, download and disk come on top, as recommend has them")


def paying_text(points: tuple[ScalingPoint, ...]) -> str:
    """The sentence on where another node stops paying."""
    most = nodes_paying(points)
    if len(points) == 1 and points[0].samples_per_step < points[0].num_gpus * (1 + 1 / points[0].num_nodes):
        samples = points[0].samples_per_step
        too_few = f"{counted(samples, 'sample')} a step {is_or_are(samples)} too few"
        return f"{too_few} for another node to have one on every GPU."
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
