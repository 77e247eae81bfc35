"""What can be trained on given cards: the document, a row for each model, and those that cannot be."""

from collections.abc import Sequence

import click

from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster, cluster_text
from vlmplan.models.facts import ModelFacts
from vlmplan.proposals.trainable import FastestSetup, TrainableModel
from vlmplan.recipe import Recipe, engine_name
from vlmplan.recipe.choices import Offload
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import GIB, SECONDS_PER_HOUR, count_text, counted, duration_text, gib_text
from vlmplan.workload import DEFAULT_GLOBAL_BATCH

SCHEMA = "vlmplan.trainable/1"
TITLES = ("model", "params", "method", "engine", "GiB", "host", "time", "also")
NUMBERS = frozenset(("params", "GiB", "host", "time"))
UNKNOWN = "-"
MAX_REASONS = 3
"""Models whose reason is shown; the others are named. A choice."""


def document(rows: Sequence[TrainableModel], facts: Sequence[ModelFacts], cluster: Cluster) -> JsonDict:
    """Schema ``vlmplan.trainable/1``; ``best`` is the method that trains most of those that fit."""
    return {
        "schema": SCHEMA,
        "gpu": {
            "id": cluster.node.gpu.id,
            "count": cluster.node.num_gpus,
            "num_nodes": cluster.num_nodes,
            "usable_bytes": cluster.node.gpu.usable_bytes,
            "host_ram_bytes": cluster.node.host_ram_bytes,
        },
        "models": [
            {
                "id": row.model_id,
                "num_params": fact.num_params,
                "best": None if row.best is None else row.best.recipe.method.value,
                "ways": {method.value: _way_json(way) for method, way in row.ways.items()},
                "reason": row.reason,
                "notes": list(fact.model.notes),
            }
            for row, fact in zip(rows, facts, strict=True)
        ],
    }


def _way_json(way: FastestSetup) -> JsonDict:
    return {
        "recipe": way.recipe.as_json(),
        "seq_len": way.seq_len,
        "num_samples": way.num_samples,
        "device_bytes": way.device_bytes,
        "usable_bytes": way.usable_bytes,
        "host_bytes_per_node": way.host_bytes,
        "step_seconds": way.step_seconds,
        "hours": way.hours,
    }


def print_trainable(
    rows: Sequence[TrainableModel], facts: Sequence[ModelFacts], cluster: Cluster, *, is_host_assumed: bool
) -> None:
    """Print the table, its assumptions, and models of which nothing fits; of one alone what is known of it."""
    num_params = {fact.model.id: fact.num_params for fact in facts}
    fitting = [row for row in rows if row.best is not None]
    say(f"{cluster_text(cluster)}: {len(fitting)} of {counted(len(rows), 'model')} can be trained")
    click.echo()
    if fitting:
        cells = [
            _cells(row, row.best, num_params[row.model_id], cluster.num_gpus) for row in fitting if row.best is not None
        ]
        print_table(Table(titles=TITLES, rows=cells, number_columns=NUMBERS, least_first=("also", "host")))
        click.echo()
    say(*_legend(fitting, cluster, is_host_assumed=is_host_assumed))
    left = [row for row in rows if row.best is None]
    if left:
        say(f"nothing fits of: {', '.join(row.model_id for row in left)}")
        say(*(f"  {row.model_id}: {row.reason}" for row in left[:MAX_REASONS]))
    if len(facts) == 1:
        say(*(f"note: {note}" for note in facts[0].model.notes))


def _cells(row: TrainableModel, best: FastestSetup, num_params: int, num_gpus: int) -> tuple[str, ...]:
    also = [f"{method.value} {_time(way)}" for method, way in row.ways.items() if method is not best.recipe.method]
    return (
        row.model_id,
        count_text(num_params),
        best.recipe.method.value,
        _engine(best.recipe, num_gpus),
        f"{best.device_bytes / GIB:.1f}",
        f"{best.host_bytes / GIB:.0f}",
        _time(best),
        ", ".join(sorted(also)),
    )


def _time(way: FastestSetup) -> str:
    return UNKNOWN if way.hours is None else duration_text(way.hours * SECONDS_PER_HOUR)


def _engine(recipe: Recipe, num_gpus: int) -> str:
    offloads = (recipe.offload_optimizer, recipe.offload_params) != (Offload.NONE, Offload.NONE)
    name = engine_name(recipe, num_gpus).removeprefix("plain ")
    return f"{name}{' + host' if offloads else ''}"


def _legend(fitting: Sequence[TrainableModel], cluster: Cluster, *, is_host_assumed: bool) -> list[str]:
    lines: list[str] = []
    lengths = {way.seq_len for row in fitting for way in row.ways.values()}
    if lengths:
        lines.append(
            "the fastest setup of the method that trains most; GiB on each GPU, of host RAM, time of the whole run"
        )
        samples = next(way.num_samples for row in fitting for way in row.ways.values())
        most = f" to {max(lengths):,}" if len(lengths) > 1 else ""
        lines.append(
            f"assumed: {counted(samples, 'sample')} of {min(lengths):,}{most} tokens, with an image where the model "
            f"sees, {DEFAULT_GLOBAL_BATCH} samples a step"
        )
    ram = cluster.node.host_ram_bytes
    if is_host_assumed and ram is not None:
        lines.append(f"the host is taken to have {gib_text(ram)}, since nobody says what it has; --host-ram says it")
    return lines
