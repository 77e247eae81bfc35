"""Faults of a run that ``vlmplan launch`` has started: in its own process, DeepSpeed's launchers, a rank, or all.

``random_faults.py FAULTS SEED --launch`` tries them. A fault comes after a random step or a random part of the start.
Each start has to end in time, be killed or say why it did not finish, print no traceback of its own, and leave no
process behind; what is left in the end is held to an unbroken run by ``random_faults``.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from vlmplan.launch.rank_locks import LOCK_FILE, ROW_BYTES

WHO = ("vlmplan launch", "a rank", "all ranks", "everything", LAUNCHERS := "launchers")
"""Who is hit. Launchers: DeepSpeed's two, or torchrun; a run of one rank has none."""
KILL, FILL_DISK = "kill", "fill the disk of"
SIGNALS = {KILL: signal.SIGKILL, "end": signal.SIGTERM, "hang up on": signal.SIGHUP, "stop": signal.SIGSTOP}
MOST_BYTES = 200_000
STOPPED_SECONDS = 1.0
START_SECONDS, END_SECONDS = 30.0, 240.0
"""So late comes a fault during the start at most, so long takes a start at most: choices, for a busy machine."""
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Fault:
    """What is done to whom: after a step, or ``seconds`` after the start where ``step`` is None."""

    name: str
    whom: str
    step: int | None
    seconds: float
    limit_bytes: int

    def __str__(self) -> str:
        when = f"after step {self.step}" if self.step is not None else f"{self.seconds:.0f} s after the start"
        return f"{self.name} {self.whom} {when}"


def drawn_fault(drawn: random.Random, *, last_step: int, num_steps: int, num_ranks: int) -> Fault:
    name = drawn.choice(sorted([*SIGNALS, FILL_DISK]))
    step = drawn.randint(min(num_steps - 1, last_step + 1), min(num_steps - 1, last_step + 12))
    is_early = drawn.random() < 0.2
    seconds = drawn.random() * (START_SECONDS if is_early else 0.05)
    who = [one for one in WHO if num_ranks > 1 or one != LAUNCHERS]
    return Fault(name, drawn.choice(who), None if is_early else step, seconds, drawn.randrange(MOST_BYTES))


def launched(words: Sequence[str], run: Path, fault: Fault | None, steps: Callable[[], list[int]]) -> "Launched":
    """Start ``vlmplan launch WORDS``, do it the fault, and wait until nothing of it lives."""
    log = run.parent / "launch.txt"
    command = [sys.executable, "-c", "from vlmplan.cli import main; main()", "launch", *words]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        known: dict[int, psutil.Process] = {}
        is_done, end = fault is None, time.monotonic() + END_SECONDS
        begin = time.monotonic()
        while process.poll() is None or any(one.is_running() for one in known.values() if not _is_zombie(one)):
            known |= _tree(process.pid)
            if not is_done and fault is not None and _is_due(fault, steps(), time.monotonic() - begin):
                time.sleep(fault.seconds if fault.step is not None else 0)
                _do(fault, process.pid, _tree(process.pid), run)
                is_done = True
            if time.monotonic() > end:
                for one in known.values():
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.kill()
                return Launched(None, log.read_text(errors="replace"), is_late=True)
            time.sleep(0.02)
    return Launched(process.wait(), log.read_text(errors="replace"), is_late=False)


@dataclass(frozen=True)
class Launched:
    """``code`` is negative where ``vlmplan launch`` itself was ended by a signal."""

    code: int | None
    printed: str
    is_late: bool

    def problems(self, *, is_finished: bool) -> list[str]:
        if self.is_late:
            return [f"still there after {END_SECONDS:.0f} s"]
        found = [f"a traceback: {self.printed[-1500:]}"] if self._own_traceback() else []
        if self.code == 0 and not is_finished:
            found.append("exit code 0, and no report")
        said = [line for line in self.printed.splitlines() if line.startswith("vlmplan")]
        if self.code and self.code > 0 and not said:
            found.append(f"exit code {self.code} without a word: {self.printed[-500:]}")
        return found

    def _own_traceback(self) -> bool:
        """DeepSpeed's and torch's launchers write one when they are told to end; none of ours is allowed."""
        return any("vlmplan" in part for part in self.printed.split(TRACEBACK)[1:])


def _is_due(fault: Fault, steps: list[int], seconds: float) -> bool:
    return seconds >= fault.seconds if fault.step is None else bool(steps) and steps[-1] >= fault.step


def _tree(pid: int) -> dict[int, psutil.Process]:
    try:
        return {one.pid: one for one in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return {}


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _do(fault: Fault, pid: int, tree: dict[int, psutil.Process], run: Path) -> None:
    ranks = [one for one in _ranks(run) if one in tree]
    launchers = [one for one in tree if one not in ranks]
    pids = {
        "vlmplan launch": [pid],
        LAUNCHERS: launchers,
        "a rank": ranks[-1:],
        "all ranks": ranks,
        "everything": [pid, *tree],
    }[fault.whom]
    for one in pids:
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if fault.name == FILL_DISK:
                psutil.Process(one).rlimit(psutil.RLIMIT_FSIZE, (fault.limit_bytes, psutil.RLIM_INFINITY))
            else:
                os.kill(one, SIGNALS[fault.name])
    if fault.name == "stop":
        time.sleep(STOPPED_SECONDS)
        for one in pids:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)


def _ranks(run: Path) -> list[int]:
    """The processes of the ranks, as ranks.lock names them; none before they have written it."""
    try:
        text = (run / LOCK_FILE).read_bytes()
    except FileNotFoundError:
        return []
    rows = [text[at : at + ROW_BYTES].split() for at in range(0, len(text), ROW_BYTES)]
    return [int(row[0]) for row in rows if row]
