"""What charts of an estimate are drawn of, beside its document: the page and reports have the same."""

from collections.abc import Sequence

import click

from vlmplan.answers.estimate import (
    beyond_tensors,
    calibration_lines,
    caveat_lines,
    detail_lines,
    heading,
    setup_text,
    verdict_line,
)
from vlmplan.estimation import Estimate
from vlmplan.files.json_reader import JsonDict


def drawn(found: Estimate, notes: Sequence[str]) -> JsonDict:
    """An estimate's phases with their components, and its sentences; ``notes`` are about the hardware."""
    every = [*found.workload.model.notes, *found.cautions, *notes]
    return {
        "heading": heading(found),
        "verdict": click.unstyle(verdict_line(found)),
        "setup": setup_text(found),
        "cautions": caveat_lines(every),
        "lines": [*calibration_lines(found), *detail_lines(found, notes)],
        "phases": [phase.as_json() | {"components": phase.peak.as_json()} for phase in found.timeline.phases],
        "beyond": dict(beyond_tensors(found)),
        "num_steps": found.num_steps,
        "run_seconds": found.run_seconds,
    }
