"""The front of cost against time: its members in JSON, and for people a line, or a plot of all setups and a table."""

from collections.abc import Sequence
from datetime import date

import click

from vlmplan.answers.offers import machine_json
from vlmplan.answers.setups import engine_text
from vlmplan.files.json_reader import JsonDict
from vlmplan.recipe import Recipe
from vlmplan.render.lines import picture_width, say
from vlmplan.render.scatter import MARKS, PLAIN_MARKS, scatter_lines
from vlmplan.render.tables import Table, can_show, print_table
from vlmplan.search import Objective, RankedPlan, Recommendation
from vlmplan.search.explanation import machine_label
from vlmplan.search.pareto import Point
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, usd_text

TITLES = ("", "time", "usd", "usd/h", "GPUs", "offer", "method", "engine", "batch", "ckpt")
NUMBERS = frozenset(("time", "usd", "usd/h"))
LEAST_FIRST = ("ckpt", "batch", "usd/h", "engine", "method", "offer", "")
CUT = frozenset(("offer", "engine"))
ESSENTIALS = (
    *("method", "precision", "optimizer", "zero_stage", "offload_optimizer", "offload_params"),
    *("micro_batch", "grad_accum", "activation_checkpointing", "vision_activation_checkpointing", "attention"),
)
"""What is said of a recipe where many plans are listed."""
WINS_BY = {Objective.COST: "Cheapest", Objective.TIME: "Fastest", Objective.VRAM: "Least memory"}
WINNER, NOT_EXACT = "first", "~"
UNKNOWN = "-"


def wins_by(found: Recommendation) -> str:
    """What the first plan has most or least of; without prices the search goes by GPU hours."""
    has_price = found.plans[0].usd is not None
    return WINS_BY[found.objective] if has_price or found.objective is not Objective.COST else "Fewest GPU hours"


def point_json(point: Point, on: date) -> JsonDict:
    """A member of the front; ``exact``: by its whole estimate, else by bounds and secants."""
    return {
        **machine_json(point.cluster, point.offer, on),
        "recipe": recipe_essentials(point.recipe),
        "hours": point.hours,
        "usd": point.usd,
        "exact": point.is_exact,
    }


def drawn_point(point: Point, is_front: bool) -> JsonDict:
    """A setup that fits some offer; ``is_front``: nothing is both faster and cheaper."""
    cluster, offer = point.cluster, point.offer
    return {
        "label": machine_label(cluster, point.recipe.method),
        "gpu": f"{cluster.node.gpu.id}:{cluster.node.num_gpus}",
        "num_nodes": cluster.num_nodes,
        "provider": None if offer is None else offer.provider,
        "hours": point.hours,
        "usd": point.usd,
        "is_front": is_front,
        "recipe": recipe_essentials(point.recipe),
    }


def drawn_points(scored: Sequence[Point], pareto: Sequence[Point]) -> list[JsonDict]:
    """Every setup that fits; of the front also those that were computed anew and so are none of ``scored``."""
    front, known = set(map(id, pareto)), set(map(id, scored))
    every = [*scored, *(point for point in pareto if id(point) not in known)]
    return [drawn_point(point, id(point) in front) for point in every]


def recipe_essentials(recipe: Recipe) -> JsonDict:
    """What tells one plan's recipe from another's."""
    values = recipe.as_json()
    return {name: values[name] for name in ESSENTIALS}


def summary_line(found: Recommendation) -> str | None:
    """What else the front has: faster for more money, or cheaper for more time; None where there is no front."""
    winner = found.plans[0]
    if not found.pareto or winner.hours is None or winner.usd is None:
        return None
    if found.objective is Objective.TIME:
        what, nothing = "cheaper for more time", "nothing else that was tried is cheaper, however long it takes"
        others = [point for point in found.pareto if point.usd < winner.usd]
    else:
        what = "faster for more money" if found.objective is Objective.COST else "faster with more memory"
        nothing = "nothing else that was tried is faster, whatever it costs"
        others = [point for point in reversed(found.pareto) if point.hours < winner.hours]
    if not others:
        has_other_engine = winner.estimate.cluster.num_gpus > 1 and not winner.estimate.recipe.fsdp
        return nothing + ("; --fsdp tries FSDP2" if has_other_engine else "")
    shown = [others[place] for place in sorted({0, len(others) // 2, len(others) - 1})]
    parts = [_in_words(point) for point in shown]
    more = f"; --pareto shows all {len(found.pareto)}" if len(others) > len(shown) else ""
    return f"{what}: {'; '.join(parts)}{more}"


def _in_words(point: Point) -> str:
    where = machine_label(point.cluster, point.recipe.method)
    return f"{duration_text(point.hours * SECONDS_PER_HOUR)} for {usd_text(point.usd)} on {where}"


def print_pareto(found: Recommendation) -> None:
    """Print the plot and the front as a table."""
    winner = found.plans[0]
    if not found.pareto or winner.hours is None or winner.usd is None:
        say("cost against time: no price or no speed is known of anything that fits")
        return
    marks = MARKS if can_show(MARKS) else PLAIN_MARKS
    machines = {(one.cluster.node.gpu.id, one.cluster.num_gpus, one.cluster.num_nodes) for one in found.scored}
    say(f"cost against time on {counted(len(machines), 'machine')}; both axes are logarithmic")
    width = picture_width()
    for line in scatter_lines(found.scored, found.pareto, (winner.hours, winner.usd), width=width, marks=marks):
        click.echo(line)
    say(f"{' ' * 10}{marks[2]} first plan   {marks[1]} nothing is both faster and cheaper   {marks[0]} others")
    click.echo()
    print_table(front_table(found))
    if not all(point.is_exact for point in found.pareto):
        say(f"{NOT_EXACT} by its bounds, not computed exactly")


def front_table(found: Recommendation) -> Table:
    """The front, fastest first."""
    rows = [cells(point, found.plans[0]) for point in found.pareto]
    return Table(titles=TITLES, rows=rows, number_columns=NUMBERS, least_first=LEAST_FIRST, cut_columns=CUT)


def cells(point: Point, winner: RankedPlan) -> tuple[str, ...]:
    """One member of the front as a row of ``TITLES``."""
    recipe, cluster, offer = point.recipe, point.cluster, point.offer
    rate = None if offer is None else offer.usd_per_hour * cluster.num_nodes
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    return (
        WINNER if is_winner(point, winner) else "" if point.is_exact else NOT_EXACT,
        duration_text(point.hours * SECONDS_PER_HOUR),
        f"{point.usd:.2f}" if point.usd >= 0.1 else f"{point.usd:.3f}",
        UNKNOWN if rate is None else f"{rate:.2f}",
        f"{nodes}{cluster.node.num_gpus} x {cluster.node.gpu.id}",
        UNKNOWN if offer is None else offer.provider,
        recipe.method.value,
        engine_text(recipe, cluster.num_gpus),
        f"{recipe.micro_batch} x {recipe.grad_accum}",
        "yes" if recipe.activation_checkpointing else "no",
    )


def is_winner(point: Point, winner: RankedPlan) -> bool:
    return (point.cluster, point.recipe) == (winner.estimate.cluster, winner.estimate.recipe)
