"""The report of a script's rehearsal: memory over time, with every allocation and the script's line that made it."""

import click

from vlmplan.answers.rehearsal import collectives_table, largest_table
from vlmplan.answers.script_rehearsal import (
    components_table,
    heading,
    phases_table,
    rehearsed_line,
    remaining_lines,
    verdict_line,
)
from vlmplan.rehearsal.script import ScriptRehearsal
from vlmplan.render.picture import svg_file
from vlmplan.reports.elements import paragraphs, section, table, verdict
from vlmplan.reports.estimate import command_section, said
from vlmplan.reports.packed_events import packed
from vlmplan.reports.page import page
from vlmplan.reports.timeline_picture import timeline_picture, timeline_places


def script_report(found: ScriptRehearsal, *, command_text: str) -> str:
    """The file. ``command_text``: what asks for the same."""
    spoken = click.unstyle(verdict_line(found))
    sections = [
        section("verdict", "Verdict", verdict(found.verdict.value, spoken), paragraphs([rehearsed_line(found)])),
        section("timeline", "Memory over time", *timeline_places(found, f"Memory over time: {spoken}")),
        section("phases", "Phases", table(phases_table(found), "Phases")),
        section("components", "At the peak", table(components_table(found), "Components at the peak")),
        section("largest", "Largest at the peak", table(largest_table(found), "Largest storages at the peak")),
    ]
    if found.rehearsed.step_collectives:
        collectives = table(collectives_table(found), "Collectives of a step")
        sections.append(section("collectives", "Collectives of a step", collectives))
    sections.append(said("details", "In words", [*remaining_lines(found)]))
    sections.append(command_section(command_text))
    return page("Rehearsal of a script", heading(found), sections, {"timeline": packed(found)})


def script_svg(found: ScriptRehearsal) -> str:
    """Memory over time as a whole SVG file."""
    return svg_file(timeline_picture(found, f"{heading(found)}; {click.unstyle(verdict_line(found))}"))
