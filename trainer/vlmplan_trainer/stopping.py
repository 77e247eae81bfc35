"""Graceful shutdown: SIGTERM, Ctrl-C and SIGHUP (a terminal or a connection that is gone) let the optimizer step end
and a checkpoint be saved; a second one does not.

DeepSpeed's launcher (``launcher/launch.py`` 0.19.8, ``terminate_process_tree``) sends SIGTERM to a rank again when it
gets a signal itself, and SIGKILL 30 seconds later: what has not been saved by then is lost, and ``--resume`` goes on
from the checkpoint before.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
ECHO_SECONDS = 3.0
"""A signal sooner than this after the first is its echo: terminal and launcher both send one. A choice."""


class StopRequest:
    """Inside, the first signal is noted, and a second one ends the process as if it were not handled."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._since = 0.0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
            for signum in SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:  # as nohup and shells' background jobs have it
                    self._old[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for signum, handler in self._old.items():
            signal.signal(signum, handler)
        self._old.clear()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum, self._since = signum, time.monotonic()
        elif time.monotonic() - self._since >= ECHO_SECONDS:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def ask(self) -> None:
        """Ask as if the terminal had gone away, which is the last of the signals."""
        if self.signum is None:
            self.signum, self._since = SIGNALS[-1], time.monotonic()

    def votes(self) -> list[float]:
        """This rank's share of what all ranks sum up: one for the signal that it got."""
        return [float(self.signum == signum) for signum in SIGNALS]


def agreed(votes: Sequence[float]) -> int | None:
    """The signal to stop for, from the sums of all ranks' ``votes``; the first of SIGNALS where they got several."""
    return next((int(signum) for signum, count in zip(SIGNALS, votes, strict=True) if count), None)


def exit_code(signum: int) -> int:
    """What a shell says of a process that the signal has ended."""
    return 128 + signum
