"""Variants of one setup side by side: the document and a table."""

from collections.abc import Iterator, Sequence

import click

from vlmplan.answers import estimate as estimates
from vlmplan.answers.estimate import hardware_text, setup_text, workload_text
from vlmplan.files.json_reader import JsonDict
from vlmplan.memory.device import Verdict
from vlmplan.notes import Caveat, listed
from vlmplan.proposals.comparison import Variant
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import GIB, duration_text

SCHEMA = "vlmplan.comparison/1"
TITLES = ("variant", "device", "weights", "grads", "states", "rest", "host", "step", "fits")
RUN = "run"
"""The column for steps and evaluations together, where there are any."""
NUMBERS = frozenset({*TITLES[1:-1], RUN})
FITS = {Verdict.FITS: "yes", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}
UNKNOWN = "-"
SHORTER = {
    "plain PyTorch": "PyTorch",
    ", optimizer and weights on the host": " all off",
    ", optimizer and weights on a drive": " all on drive",
    ", optimizer on the host": " optim. off",
    ", optimizer on a drive": " optim. on drive",
    ", weights on the host": " weights off",
    ", weights on a drive": " weights on drive",
}
"""Words of a variant's name, and what the table has for them."""


def document(name: str, variants: Sequence[Variant]) -> JsonDict:
    """Schema ``vlmplan.comparison/1``: each variant with its whole estimate, null where it is refused."""
    return {"schema": SCHEMA, "compare": name, "variants": [_variant_json(variant) for variant in variants]}


def _variant_json(variant: Variant) -> JsonDict:
    found = variant.estimate
    return {
        "name": variant.name,
        "options": dict(variant.options),
        "is_present": variant.is_present,
        "verdict": "refused" if found is None else found.verdict.value,
        "reason": variant.reason,
        "estimate": None if found is None else estimates.document(found, variant.notes),
    }


def print_comparison(variants: Sequence[Variant]) -> None:
    """Print one row for each variant, GiB of the fullest GPU at its peak, and why some cannot be trained.

    At least one of them has an estimate.
    """
    say(heading(variants))
    click.echo()
    print_table(table(variants))
    say("", *footnotes(variants))


def heading(variants: Sequence[Variant]) -> str:
    """The setup as it was asked for, or the first that can be trained."""
    known = [(variant.is_present, variant.estimate) for variant in variants if variant.estimate is not None]
    first = next((found for is_present, found in known if is_present), known[0][1])
    return f"{first.workload.model.id}; {setup_text(first)}; {hardware_text(first)}; {workload_text(first)}"


def table(variants: Sequence[Variant]) -> Table:
    """A row for each variant."""
    rows, titles = [_row(variant) for variant in variants], TITLES
    if _evaluate(variants):
        *most, last = TITLES
        titles = (*most, RUN, last)
        rows = [(*row[:-1], _run_text(variant), row[-1]) for row, variant in zip(rows, variants, strict=True)]
    return Table(titles=titles, rows=rows, number_columns=NUMBERS, least_first=("rest", "states", "grads"))


def footnotes(variants: Sequence[Variant]) -> list[str]:
    """What the columns are, why some variants cannot be trained, and the notes of the others."""
    return [
        "GiB; device: of each GPU in all, its tensors at their peak by kind; host: RAM of each node; *: as asked for",
        *(["step: of the optimizer; run: all steps and evaluations"] if _evaluate(variants) else []),
        *(f"{_name(variant)}: {variant.reason}" for variant in variants if variant.reason is not None),
        *estimates.calibration_lines(next(one.estimate for one in variants if one.estimate is not None)),
        *_note_lines(variants),
    ]


def _note_lines(variants: Sequence[Variant]) -> Iterator[str]:
    """The notes of all variants, each once, cautions first; one that not all have names those that do."""
    notes = {variant.name: estimates.notes_of(one, variant.notes) for variant in variants if (one := variant.estimate)}
    every = list(dict.fromkeys(note for own in notes.values() for note in own))
    for note in sorted(every, key=lambda one: not isinstance(one, Caveat)):
        lead = "caution" if isinstance(note, Caveat) else "note"
        those = [name for name, own in notes.items() if note in own]
        yield f"{lead}: {note}" if len(those) == len(notes) else f"{lead} on {listed(those)}: {note}"


def _evaluate(variants: Sequence[Variant]) -> bool:
    """Whether the seconds of evaluations are known."""
    return any(variant.estimate is not None and variant.estimate.evaluating is not None for variant in variants)


def _run_text(variant: Variant) -> str:
    seconds = None if variant.estimate is None else variant.estimate.run_seconds
    return UNKNOWN if seconds is None else duration_text(seconds)


def _name(variant: Variant) -> str:
    text = variant.name
    for words, short in SHORTER.items():
        text = text.replace(words, short)
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
