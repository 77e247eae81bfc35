"""A process that answers one request: JSON on standard input, JSON on standard output, progress on standard error."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from vlmplan.errors import VlmplanError


def take_stdout() -> TextIO:
    """Standard output for the answer alone: what libraries and scripts print from now on goes to standard error."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answer_to


class Answering:
    """One request, and where its answer goes: where none is given, one read from standard input, and standard output
    taken for its answer."""

    def __init__(self, request: dict[str, Any] | None = None, answer_to: TextIO | None = None) -> None:
        self._answer_to = take_stdout() if answer_to is None else answer_to
        self.request: dict[str, Any] = json.load(sys.stdin) if request is None else request

    def answer(self, answered: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """What ``answered`` makes of the request, or ``{"error": sentence}``."""
        try:
            return answered(self.request)
        except VlmplanError as error:
            return {"error": str(error)}

    def end(self, answer: dict[str, Any]) -> NoReturn:
        """Write the answer and end the process at once: process groups are slow to fall, and nothing that was left
        behind may hold the answer up."""
        with self._answer_to:
            json.dump(answer, self._answer_to)
        sys.stderr.flush()
        os._exit(0)


def say_phase_begins(text: str) -> None:
    """A line of progress, as the process that asked reads it."""
    sys.stderr.write(f"PHASE {text}\n")
    sys.stderr.flush()
