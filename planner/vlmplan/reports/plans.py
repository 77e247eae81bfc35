"""Plans side by side: a table with a column for each, of which a script shows two and says how they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.tables import Table
from vlmplan.reports.elements import section, table
from vlmplan.reports.estimate import drawn_estimate
from vlmplan.search import RankedPlan
from vlmplan.units import SECONDS_PER_HOUR, duration_text, gib_text, usd_text

UNKNOWN = "-"
MOST = 12
"""Plans that a report holds: each has its charts in the file. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan and what it is called; ``hours`` and ``usd`` are of the run, None where they are not known."""

    name: str
    estimate: Estimate
    hours: float | None = None
    usd: float | None = None


def named_plan(name: str, plan: RankedPlan) -> NamedPlan:
    return NamedPlan(name=name, estimate=plan.estimate, hours=plan.hours, usd=plan.usd)


def drawn_plans(plans: Sequence[NamedPlan]) -> list[JsonDict]:
    """What a script draws of each."""
    return [{"name": plan.name, "estimate": drawn_estimate(plan.estimate, ())} for plan in plans[:MOST]]


def plans_section(plans: Sequence[NamedPlan]) -> str:
    """The table, and room for the charts of two; nothing where there is nothing to compare."""
    plans = plans[:MOST]
    if len(plans) < 2:
        return ""
    columns = [_column(plan) for plan in plans]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = [(key, *(column.get(key, UNKNOWN) for column in columns)) for key in keys]
    rows = [row for row in rows if set(row[1:]) != {UNKNOWN}]
    shown = Table(titles=("", *(plan.name for plan in plans)), rows=rows)
    return section(
        "plans", "Plans side by side", '<div id="plans"></div>', table(shown, "Plans", identifier="plans-table")
    )


def _column(plan: NamedPlan) -> Mapping[str, str]:
    """What is said of a plan, by the name of its row."""
    found = plan.estimate
    cluster, device, peak = found.cluster, found.device, found.timeline.peak_phase
    nodes = f"{cluster.num_nodes} nodes of " if cluster.num_nodes > 1 else ""
    step = UNKNOWN if found.step_seconds is None else duration_text(found.step_seconds)
    speed = UNKNOWN if found.samples_per_second is None else f"{found.samples_per_second:.3g} samples/s"
    sizes = {name.replace("_", " "): gib_text(one) for name, one in peak.peak.as_json().items()}
    recipe = {
        key.replace("_", " "): _text(value)
        for key, value in found.recipe.as_json().items()
        if not isinstance(value, dict)
    }
    return {
        "verdict": found.verdict.value.replace("_", " "),
        "GPUs": f"{nodes}{cluster.node.num_gpus} x {cluster.node.gpu.id}",
        "the run takes": UNKNOWN if plan.hours is None else duration_text(plan.hours * SECONDS_PER_HOUR),
        "the run costs": UNKNOWN if plan.usd is None else usd_text(plan.usd),
        "a step": step,
        "speed": speed,
        "device at its fullest": gib_text(device.device_bytes),
        "usable": gib_text(device.usable_bytes),
        "peak in": peak.name,
        **sizes,
        "host of each node": gib_text(found.host.peak_bytes),
        **recipe,
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)
