"""The process that rehearses: ``python -m vlmplan_trainer.rehearse`` with this interpreter.

The request goes to its standard input, the answer comes from its standard output; on standard error it names each
phase as it begins, among whatever the libraries print.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from vlmplan.child_process import child_environment, empty_folder
from vlmplan.errors import InputError, MissingPackageError, UnavailableError
from vlmplan.files.json_reader import JsonDict, JsonObject, parse_json_object
from vlmplan.plan import Plan
from vlmplan.rehearsal.result import Rehearsed, rehearsed_from_json
from vlmplan.versions import install_command, installed_version, needed_packages

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
COMMAND = ("-m", "vlmplan_trainer.rehearse")
OF_TASKS = ("-m", "vlmplan_trainer.task_rehearsal")
SOURCE = "the rehearsal's answer"
PHASE = "PHASE "
KEPT_LINES = 50
"""Of what the process printed last, to find its error in."""
LONGEST_ERROR = 300
RANK = re.compile(r"^\[rank\d+\]: ")
"""What torch writes before each line of a rank's traceback."""
RAISED = re.compile(r'\s*File "(?:.*site-packages/)?(.*)", line (\d+)')
"""A line of a traceback, with its file from the package on."""


class LongRehearsalError(InputError):
    """A rehearsal has more operations than it was asked to do at most."""


def run_rehearsal(request: JsonDict, plan: Plan, *, say: Callable[[str], None]) -> Rehearsed:
    """What happened in a rehearsal of ``plan``.

    Raises MissingPackageError where the trainer's packages are not installed, InputError for what cannot be rehearsed,
    LongRehearsalError with more operations than the request's ``most_operations``, UnavailableError where the process
    dies.
    """
    missing = missing_packages(plan)
    if missing:
        install = install_command(missing, plan.recipe)
        raise MissingPackageError(
            f"a rehearsal runs the trainer, which needs {', '.join(missing)}, not installed here: {install}"
        )
    with empty_folder() as folder:
        command = COMMAND if plan.recipe.task is None else OF_TASKS
        more = {} if plan.recipe.task is None else {"folder": str(folder)}
        answer = JsonObject(answer_of([sys.executable, *command], json.dumps(request | more), say), source=SOURCE)
    return rehearsed_of(answer, request)


def missing_packages(plan: Plan) -> list[str]:
    """What the trainer needs for ``plan`` and is not installed."""
    return [name for name in needed_packages(plan.recipe, plan.workload) if installed_version(name) is None]


def rehearsed_of(answer: JsonObject, request: JsonDict) -> Rehearsed:
    """What an answer to ``request`` says. Raises InputError for what cannot be rehearsed, LongRehearsalError with more
    operations than the request's ``most_operations``."""
    if "is_too_long" in answer:
        raise LongRehearsalError(f"its rehearsal has more than {request.get('most_operations')} operations")
    if "error" in answer:
        raise InputError(f"this plan cannot be rehearsed: {answer.text('error')}")
    return rehearsed_from_json(answer)


def answer_of(
    command: Sequence[str],
    request: str,
    say: Callable[[str], None],
    *,
    what: str = "the rehearsal",
    environment: Mapping[str, str] | None = None,
    max_seconds: float | None = None,
) -> JsonDict:
    """The JSON object that ``command`` prints. However this ends, the process and all that it started have ended too.

    ``what`` it does, for errors; ``environment`` is added to this process's. Raises InputError after ``max_seconds``.
    """
    with empty_folder() as elsewhere:
        return _answer_from(elsewhere, command, request, _Report(say, what), environment, max_seconds)


def _answer_from(
    folder: Path,
    command: Sequence[str],
    request: str,
    report: "_Report",
    environment: Mapping[str, str] | None,
    max_seconds: float | None,
) -> JsonDict:
    """The same, with ``folder`` as the working directory of the process."""
    process = _started(command, environment, folder)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=report.read, args=(process.stderr,), daemon=True)
    reader.start()
    late = threading.Event()
    clock = threading.Timer(max_seconds or 0.0, lambda: (late.set(), _end(process)))
    if max_seconds is not None:
        clock.start()
    try:
        with _ending_together(process):
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request)
            text = process.stdout.read()
            code = process.wait()
    finally:
        clock.cancel()
        _end(process)
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()
    if late.is_set():
        raise InputError(f"it took longer than {max_seconds:.0f} seconds, {report.place}; give --max-minutes")
    if code or not text:
        raise UnavailableError(f"{report.what} ended {report.place}: {report.reason(code)}")
    return parse_json_object(text, source=f"{report.what}'s answer")


def _started(command: Sequence[str], environment: Mapping[str, str] | None, folder: Path) -> "subprocess.Popen[str]":
    """The process in a session of its own, with pipes for all three streams."""
    try:
        return subprocess.Popen(  # noqa: S603 - this interpreter, a list of words
            list(command),
            env=child_environment(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C comes here alone
        )
    except OSError as error:
        raise UnavailableError(f"{command[0]} cannot be started: {error.strerror}") from None


def _end(process: "subprocess.Popen[str]") -> None:
    """End the process and those that it started, which are in its session."""
    process.kill()
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # all are gone
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _ending_together(process: "subprocess.Popen[str]") -> Generator[None]:
    """Within, a signal that ends this process ends ``process`` too. Ctrl-C is an exception, and needs none of it."""
    old: dict[int, Any] = {}

    def end(signum: int, frame: FrameType | None) -> None:
        _end(process)
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
        old = {number: signal.signal(number, end) for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Report:
    """What the process says on standard error."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say, self.what = say, what
        self._phase = ""
        self._lines: list[str] = []

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            if line.startswith(PHASE):
                self._phase = line.removeprefix(PHASE).strip()
                self._say(self._phase)
            elif line.strip():
                self._lines = [*self._lines[1 - KEPT_LINES :], line.rstrip()]

    @property
    def place(self) -> str:
        return f"in {self._phase}" if self._phase else "before it began"

    def reason(self, code: int) -> str:
        """The last error that it printed; without one, how it ended."""
        if code == -signal.SIGKILL:
            return "it was killed, as the system does when the host's memory runs out"
        lines = [RANK.sub("", line) for line in self._lines]
        errors = [line.strip() for line in lines if line and not line[0].isspace()]
        last = next((line for line in reversed(errors) if "Error" in line), errors[-1] if errors else "")
        if last.isidentifier():  # it has no words of its own
            last += next((f" in {found[1]}, line {found[2]}" for found in map(RAISED.match, lines[::-1]) if found), "")
        return last[:LONGEST_ERROR] or (f"it got signal {-code}" if code < 0 else f"its exit code is {code}")
