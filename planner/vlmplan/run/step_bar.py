"""A bar in a terminal, made of the lines that the trainer prints of its steps; everything else passes by above it.

The trainer prints whole lines, which are what a log should have. ``vlmplan launch`` reads them from a pipe, so that the
trainer sees no terminal; the bar is drawn where there is one.
"""

from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from vlmplan.run.training import parts_of_step_line

WIDE_COLUMNS = 120
"""From here on the bar has room for all that a step's line says. A choice."""
SHORT_PARTS = ("loss ", " tokens/s", " left", "done", "skipped")
"""What it says below that: the parts that have one of these."""


class StepBar:
    """``feed`` it what is printed, ``close`` it at the end. ``width`` is the terminal's where None."""

    def __init__(self, file: TextIO, *, width: int | None = None) -> None:
        self._file = file
        self._console = Console(file=file, force_terminal=True, width=width, highlight=False, markup=False)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._rest = ""

    def feed(self, text: str) -> None:
        """Show ``text``, of which the last line may come in pieces."""
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._line(line.removesuffix("\r"))
        if self._rest and self._progress is None and not "step ".startswith(self._rest[:5]):
            self._write(self._rest)  # no step's line: another program's progress, say
            self._rest = ""

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        if self._rest:
            self._write(self._rest)
            self._rest = ""

    def _line(self, line: str) -> None:
        found = parts_of_step_line(line)
        if found is not None:
            self._step(*found)
        elif self._progress is None:
            self._write(line + "\n")
        else:
            self._console.print(Text.from_ansi(line.rpartition("\r")[2]), soft_wrap=True)

    def _step(self, step: int, num_steps: int, parts: list[str]) -> None:
        is_wide = self._console.width >= WIDE_COLUMNS
        kept = parts if is_wide else [part for part in parts if any(mark in part for mark in SHORT_PARTS)]
        text = "  ".join(part.partition(" (")[0] for part in kept)
        if self._progress is None or self._task is None:
            columns = (
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=self._console, auto_refresh=False, expand=True)
            self._task = self._progress.add_task(text, total=num_steps, completed=step)
            self._progress.start()
        self._progress.update(self._task, completed=step, total=num_steps, description=text, refresh=True)
        if step == num_steps:  # what comes now comes below it
            self.close()

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()
