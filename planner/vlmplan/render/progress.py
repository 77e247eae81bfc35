"""A bar on a terminal while a command is at work; nothing where standard error is no terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from vlmplan.run.step_bar import can_draw


@contextmanager
def progress_bar(work: str, num_parts: int) -> Generator[Callable[[str], None]]:
    """Gives what to call with the name of every part of ``work`` when it begins; ``num_parts``: how many will come."""
    if not can_draw(sys.stderr):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn(f"{work}: {{task.description}}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("start", total=num_parts + 1)

        def advance(text: str) -> None:
            progress.update(task, description=text, advance=1)

        yield advance
