"""The report of a rehearsal: memory over time with every allocation, and everything beside its estimate."""

from collections.abc import Sequence

import click

from vlmplan.answers.estimate import caveat_lines, heading, setup_text
from vlmplan.answers.rehearsal import (
    collectives_table,
    components_table,
    largest_table,
    phases_table,
    rehearsed_line,
    remaining_lines,
    verdict_line,
)
from vlmplan.rehearsal.comparison import Comparison
from vlmplan.render.picture import svg_file
from vlmplan.reports.elements import paragraphs, section, table, verdict
from vlmplan.reports.estimate import command_section, drawn_estimate, memory_section, said
from vlmplan.reports.packed_events import packed
from vlmplan.reports.page import page
from vlmplan.reports.timeline_picture import timeline_picture, timeline_places


def rehearsal_report(found: Comparison, notes: Sequence[str], *, hints: Sequence[str], command_text: str) -> str:
    """The file. Arguments are as of ``estimate_report``."""
    answer = drawn_estimate(found.estimate, notes)
    every = [*found.estimate.workload.model.notes, *found.estimate.cautions, *notes]
    spoken = click.unstyle(verdict_line(found))
    sections = [
        section(
            "verdict",
            "Verdict",
            verdict(found.verdict.value, spoken),
            paragraphs((rehearsed_line(found), *caveat_lines(every), *hints)),
        ),
        section("timeline", "Memory over time", *timeline_places(found, f"Memory over time: {spoken}")),
        section("phases", "Phases, rehearsed and estimated", table(phases_table(found), "Phases")),
        section("components", "At the peak", table(components_table(found), "Components at the peak")),
        section("largest", "Largest at the peak", table(largest_table(found), "Largest storages at the peak")),
        _messages(found),
        memory_section(answer, found.estimate, title="As estimated: memory of the fullest GPU, by phase"),
        said("details", "In words", [f"setup: {setup_text(found.estimate)}", *remaining_lines(found)]),
        command_section(command_text),
    ]
    data = {"estimate": answer, "timeline": packed(found)}
    model = found.estimate.workload.model.id
    return page(f"{model}: rehearsal", heading(found.estimate), filter(None, sections), data)


def rehearsal_svg(found: Comparison) -> str:
    """Memory over time as a whole SVG file."""
    return svg_file(timeline_picture(found, f"{heading(found.estimate)}; {setup_text(found.estimate)}"))


def _messages(found: Comparison) -> str:
    if not found.rehearsed.step_collectives:
        return ""
    return section("collectives", "Collectives of a step", table(collectives_table(found), "Collectives of a step"))
