"""Asking somebody who may never come to an end."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class DeadlinePassed(Exception):
    """There was no answer in time."""


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What ``ask`` gives or raises; DeadlinePassed if that takes more than ``seconds``.

    It asks in a thread, which is left alone then: no timeout of an http client's is one of a whole exchange, and what a
    server can draw out (a header byte by byte, ``100 Continue`` for ever) is without end.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise DeadlinePassed
    return answers[0]
