"""What is printed, as a text: for answers that a program shows later, or not at all."""

import io
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TextIO

_ONE_AT_A_TIME = threading.Lock()


class _OfThisThread(io.StringIO):
    """What the thread that made it prints; what others print goes where it would have gone."""

    def __init__(self, others: TextIO) -> None:
        super().__init__()
        self._thread, self._others = threading.get_ident(), others

    def write(self, text: str, /) -> int:
        return super().write(text) if threading.get_ident() == self._thread else self._others.write(text)


def printed(show: Callable[[], None]) -> str:
    """What ``show`` prints to standard output, as a pipe would get it: without colours, and in lines of any length
    unless COLUMNS says otherwise."""
    with _ONE_AT_A_TIME:
        text = _OfThisThread(sys.stdout)
        with redirect_stdout(text):
            show()
        return text.getvalue()
