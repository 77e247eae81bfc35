"""The report of a run: what is planned, what is run, and what was measured once it has ended."""

from collections.abc import Sequence
from pathlib import Path

from vlmplan.answers.launch import document
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate
from vlmplan.files import text_if_there
from vlmplan.files.json_reader import JsonObject, parse_json_object
from vlmplan.launch.prepared import PreparedRun
from vlmplan.launch.start import shell_text
from vlmplan.render.tables import Table
from vlmplan.reports.elements import lines, preformatted, section, table
from vlmplan.reports.estimate import drawn_estimate, said, setup_sections
from vlmplan.reports.page import page
from vlmplan.run.training import REPORT_FILE
from vlmplan.units import duration_text, gib_text, usd_text

UNKNOWN = "-"


def launch_report(prepared: PreparedRun, found: Estimate, *, exit_code: int | None) -> str:
    """The file. ``found`` is the estimate of the plan; ``exit_code`` is None of a run that was not started."""
    answer = drawn_estimate(found, ())
    run = document(prepared)
    written = [Path(name).name for name in run["files"]]
    data = [] if prepared.data is None else list(prepared.data.lines())
    sections = [
        _state(exit_code, run["problems"]),
        "" if exit_code is None else measured_section(prepared.options.output_dir),
        *setup_sections(answer, found, ()),
        section("run", "What is run", preformatted(shell_text(prepared.command, prepared.environment), "command")),
        said("data", "Data", data),
        said("notes", "Notes", [*run["notes"], f"files of the run: {', '.join(written)}"]),
    ]
    model = found.workload.model.id
    return page(f"{model}: run", answer["heading"], filter(None, sections), {"estimate": answer})


def _state(exit_code: int | None, problems: Sequence[str]) -> str:
    if problems:
        return section("state", "It cannot run", lines(problems))
    if exit_code is None:
        return section("state", "Not started", lines(["nothing is in the way of this run"]))
    how = "it ended as it should" if exit_code == 0 else f"it ended with exit code {exit_code}"
    return section("state", "The run", lines([how]))


def measured_section(folder: Path) -> str:
    """Planned beside measured, as the run's own report has it; nothing where there is none that can be read."""
    try:
        text = text_if_there(folder / REPORT_FILE, name=REPORT_FILE)
        figures = (
            []
            if text is None
            else JsonObject(parse_json_object(text, source=REPORT_FILE), source=REPORT_FILE).objects(
                "planned_and_measured"
            )
        )
        rows = [_row(figure) for figure in figures]
    except VlmplanError:
        return ""
    titles = ("figure", "planned", "measured", "error")
    shown = Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))
    return section("measured", "Planned and measured", table(shown, "Planned and measured")) if rows else ""


def _row(figure: JsonObject) -> tuple[str, ...]:
    unit = figure.text("unit")
    planned, measured, error = (figure.maybe(name, figure.number) for name in ("planned", "measured", "error"))
    percent = UNKNOWN if error is None else f"{error:+.1%}"
    return (figure.text("name"), _text(planned, unit), _text(measured, unit), percent)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    if unit == "bytes":
        return gib_text(value)
    if unit == "seconds":
        return duration_text(value)
    return usd_text(value) if unit == "usd" else f"{value:,.2f} {unit}"
