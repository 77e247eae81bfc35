"""What to say of a run that has printed nothing for long: which of its ranks is stopped, and what the others do.

The states of processes are those of Linux's ``/proc/PID/stat`` (man 5 proc); elsewhere only the silence is said.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vlmplan.units import duration_text

STOPPED_SECONDS = 10.0
"""Silence after which a rank that is stopped is named: a choice, longer than most steps are."""
SILENT_SECONDS = 600.0
"""Silence after which it is said that there is one: a choice. Loading and saving a large model are as silent."""
STOPPED = "Tt"
STATES = {
    "R": "computes",
    "S": "waits",
    "D": "waits for a disk",
    "Z": "has ended",
    **dict.fromkeys(STOPPED, "is stopped"),
}


@dataclass(frozen=True, slots=True)
class RankProcess:
    """``rank`` as its environment says it, ``state`` one of ``STATES``."""

    pid: int
    rank: int
    state: str


def ranks_of(session: int) -> list[RankProcess]:
    """The ranks of a run that was started as this session, in their order; none where there is no /proc."""
    return sorted(_found(session), key=lambda process: process.rank)


def _found(session: int) -> Iterator[RankProcess]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, found, *_ = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(found) != session:
                continue
            words = (folder / "environ").read_bytes().split(b"\0")
            rank = next((word.partition(b"=")[2] for word in words if word.startswith(b"RANK=")), b"")
        except (OSError, ValueError):  # it has ended meanwhile, or is another user's
            continue
        if rank.isdigit():
            yield RankProcess(int(folder.name), int(rank), state)


class Silence:
    """How long the run with this ``session`` has printed nothing; told whenever it prints, asked every now and then."""

    def __init__(self, session: int) -> None:
        self._session = session
        self.heard()

    def heard(self) -> None:
        """The run has printed something."""
        self._since = time.monotonic()
        self._said_stopped = self._said_silent = False

    def sentence(self) -> str | None:
        """What is to be said now, once for each silence."""
        seconds = time.monotonic() - self._since
        if not self._said_stopped and seconds > STOPPED_SECONDS:
            stopped = [rank for rank in ranks_of(self._session) if rank.state in STOPPED]
            if stopped:
                self._said_stopped = True
                names = ", ".join(f"rank {rank.rank} (process {rank.pid})" for rank in stopped)
                pids = " ".join(str(rank.pid) for rank in stopped)
                verb, them = ("is", "it") if len(stopped) == 1 else ("are", "them")
                return f"{names} {verb} stopped, and the run waits; `kill -CONT {pids}` lets {them} go on"
        if not self._said_silent and seconds > SILENT_SECONDS:
            self._said_silent = True
            states = ", ".join(f"rank {rank.rank} {STATES.get(rank.state, 'runs')}" for rank in ranks_of(self._session))
            return f"nothing has come from the run for {duration_text(seconds)}" + (f": {states}" if states else "")
        return None
