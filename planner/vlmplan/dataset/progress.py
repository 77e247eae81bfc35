"""A bar on a terminal while samples are read; nothing where nobody watches."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from vlmplan.plain_text import can_draw


@contextmanager
def reading_progress(num_bytes: int) -> Generator[Callable[[int, int], None]]:
    """Gives what to call with the bytes and samples that were read since the last call."""
    if not can_draw(sys.stderr):
        yield lambda more, samples: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading {task.description} samples"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("0", total=num_bytes)
        total = 0

        def advance(more: int, samples: int) -> None:
            nonlocal total
            total += samples
            progress.update(task, description=f"{total:,}", advance=more)

        yield advance
