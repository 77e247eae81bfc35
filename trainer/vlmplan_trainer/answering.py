"""A process that answers one request: JSON on standard input, JSON on standard output, progress on standard error."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from vlmplan.errors import VlmplanError


def take_stdout() -> TextIO:
    """Standard output for the answer alone: what libraries and scripts print from now on goes to standard error."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answer_to


class Answering:
    """One request read, and standard output taken for its answer."""

    def __init__(self) -> None:
        self._answer_to = take_stdout()
        self.request: dict[str, Any] = json.load(sys.stdin)

    def answer(self, answered: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """What ``answered`` makes of the request, or ``{"error": sentence}``."""
        try:
            return answered(self.request)
        except VlmplanError as error:
            return {"error": str(error)}

    def end(self, answer: dict[str, Any]) -> None:
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
