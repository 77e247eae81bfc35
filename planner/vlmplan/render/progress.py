"""A bar on a terminal while a command is at work; nothing where standard error is no terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from threading import Timer

from vlmplan.plain_text import can_draw

WAITING_SECONDS = 2.0
"""What takes less is over before anybody wonders. A choice."""


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


@contextmanager
def waiting(work: str) -> Generator[None]:
    """Says that ``work`` is going on, where it takes longer than ``WAITING_SECONDS``, until it is over."""
    if not can_draw(sys.stderr):
        yield
        return
    with ExitStack() as shown:

        def show() -> None:
            from rich.console import Console

            shown.enter_context(Console(stderr=True).status(work))

        timer = Timer(WAITING_SECONDS, show)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # it may be about to show it
