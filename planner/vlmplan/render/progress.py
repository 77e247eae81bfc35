"""A bar on a terminal while a rehearsal runs; nothing where standard error is no terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from vlmplan.run.step_bar import can_draw


@contextmanager
def rehearsal_progress(num_phases: int) -> Generator[Callable[[str], None]]:
    """Gives what to call with the name of every phase when it begins. ``num_phases``: how many will come."""
    if not can_draw(sys.stderr):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("rehearsing: {task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("start", total=num_phases + 1)

        def advance(text: str) -> None:
            progress.update(task, description=text, advance=1)

        yield advance
