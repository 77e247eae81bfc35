"""The report of another trainer's configuration: how it is read, and its estimate where GPUs are known."""

from collections.abc import Sequence

from vlmplan.estimation import Estimate
from vlmplan.other_trainers import TrainerConfig
from vlmplan.render.tables import Table
from vlmplan.reports.elements import folded, lines, section, table
from vlmplan.reports.estimate import command_section, drawn_estimate, setup_sections
from vlmplan.reports.page import page


def check_report(
    config: TrainerConfig,
    notes: Sequence[str],
    found: Estimate | None,
    *,
    hardware_notes: Sequence[str],
    hints: Sequence[str],
    command_text: str,
) -> str:
    """The file. ``notes`` are of the configuration; the other arguments are as of ``estimate_report``, ``found`` None
    where no GPU is known."""
    answer = None if found is None else drawn_estimate(found, hardware_notes)
    sections = [] if answer is None or found is None else setup_sections(answer, found, hints)
    sections += [_reading(config, notes), command_section(command_text)]
    subtitle = f"read as {config.trainer} reads it" + ("" if answer is None else f"; {answer['heading']}")
    return page(config.source, subtitle, filter(None, sections), {} if answer is None else {"estimate": answer})


def _reading(config: TrainerConfig, notes: Sequence[str]) -> str:
    """Every key, the trainer's defaults, and what has no effect."""
    said = [(setting.key, str(setting.value)) for setting in config.said]
    defaults = [(setting.key, str(setting.value)) for setting in config.defaults]
    titles = ("key", "value")
    idle = [f"no effect on memory or time: {', '.join(config.idle)}"] if config.idle else []
    own = (
        ""
        if not defaults
        else folded(
            f"Defaults of {config.trainer}", table(Table(titles=titles, rows=defaults), "Defaults of the trainer")
        )
    )
    return section(
        "reading",
        "From the file",
        table(Table(titles=titles, rows=said), "From the file"),
        own,
        lines([*idle, *(f"note: {note.removeprefix(f'{config.source}: ')}" for note in notes)]),
    )
