"""Variants of one setup side by side, for people."""

from collections.abc import Sequence

import click

from vlmplan.memory.device import Verdict
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.search.comparison import Variant
from vlmplan.units import GIB, duration_text

TITLES = ("variant", "device", "weights", "grads", "states", "rest", "host", "step", "fits")
NUMBERS = frozenset(TITLES[1:-1])
FITS = {Verdict.FITS: "yes", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}
UNKNOWN = "-"
LEGEND = (
    "GiB; device: of each GPU in all, beside it its tensors at their peak by kind; host: RAM of each node; "
    "off: on the host; *: as asked for"
)


def print_comparison(title: str, variants: Sequence[Variant]) -> None:
    """Print one row for each variant, GiB of the fullest GPU at its peak, and why some cannot be trained."""
    say(title)
    click.echo()
    rows = [_row(variant) for variant in variants]
    print_table(Table(titles=TITLES, rows=rows, number_columns=NUMBERS, least_first=("rest", "states", "grads")))
    say(
        "",
        "GiB; device: of each GPU in all, its tensors at their peak by kind; host: RAM of each node; *: as asked for",
    )
    for variant in variants:
        if variant.reason is not None:
            say(f"{_name(variant)}: {variant.reason}")


def _name(variant: Variant) -> str:
    text = variant.name.replace(", optimizer and weights on the host", " all off")
    text = text.replace(", optimizer on the host", " optim. off").replace("plain PyTorch", "PyTorch")
    return f"{text} *" if variant.is_present else text


def _row(variant: Variant) -> tuple[str, ...]:
    found = variant.estimate
    if found is None:
        return (_name(variant), *(UNKNOWN for _ in TITLES[1:-1]), "refused")
    peak = found.timeline.peak_phase.peak
    rest = peak.total - peak.weights - peak.gradients - peak.optimizer_states
    sizes = (found.device.device_bytes, peak.weights, peak.gradients, peak.optimizer_states, rest)
    seconds = UNKNOWN if found.step_seconds is None else duration_text(found.step_seconds)
    numbers = [f"{size / GIB:.1f}" for size in (*sizes, found.host.peak_bytes)]
    return (_name(variant), *numbers, seconds, FITS[found.verdict])
