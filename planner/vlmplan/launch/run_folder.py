"""The folder of a run: what was started, with which versions and environment, and what it printed.

plan.json         what is trained
ds_config.json    the same numbers for DeepSpeed, to look at; not for plain PyTorch
command.txt       the command, as a shell would run it
environment.txt   the variables that were set for it, NAME=VALUE
versions.json     of Python, the driver and the packages
run.json          every option of the run, for --resume; see ``run.record``
run.log           everything that the run printed; whoever trains holds its lock

A folder belongs to one training: once it has results, another plan, or a second start without ``--resume``, is refused.
A start that failed before its first step has none, whatever it failed of, and its folder can be used again.
"""

import contextlib
import json
import os
import shlex
import stat
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from vlmplan.emit import DS_CONFIG_FILE, file_texts
from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.files import READABLE, text_if_there, write_atomically
from vlmplan.launch.moved_model import moved_sentence
from vlmplan.launch.plan_changes import plan_changes, plan_problems
from vlmplan.plan import PLAN_FILE, Plan, read_plan
from vlmplan.recipe.settings import RESULT_FIELDS
from vlmplan.run.record import RECORD_FILE, RunRecord, record_text
from vlmplan.run.training import (
    ADAPTER_FOLDER,
    CHECKPOINTS,
    MANIFEST,
    MERGED_FOLDER,
    METRICS_FILE,
    MODEL_FOLDER,
    REPORT_FILE,
)

COMMAND_FILE, ENVIRONMENT_FILE, VERSIONS_FILE, LOG_FILE = "command.txt", "environment.txt", "versions.json", "run.log"
RUN_FILES = (PLAN_FILE, DS_CONFIG_FILE, COMMAND_FILE, ENVIRONMENT_FILE, VERSIONS_FILE, RECORD_FILE, LOG_FILE)


def folder_problems(folder: Path, plan: Plan, *, resumes: bool) -> list[str]:
    """Why ``folder`` cannot take this run."""
    if os.path.lexists(folder) and not folder.is_dir():
        return [f"--output-dir {folder} is not a folder"]
    if not _is_writable(folder):
        return [f"--output-dir {folder} cannot be written by this user"]
    held = None if resumes else held_run_problem(folder)
    if held is not None:
        return [held]
    if os.path.lexists(folder / LOG_FILE) and result_in(folder) is None:  # a start that failed, of whatever plan
        return []
    try:
        before = read_plan(folder / PLAN_FILE) if os.path.lexists(folder / PLAN_FILE) else None
    except VlmplanError as error:
        return [f"--output-dir {folder} holds a plan that cannot be read: {error}"]
    if not resumes:
        return [f"--output-dir {folder} holds another plan; give another folder"] if before not in (None, plan) else []
    return [] if before is None else plan_problems(before, plan, folder, is_begun=has_checkpoint(folder))


def changes_of_plan(folder: Path, plan: Plan) -> list[str]:
    """What the run in ``folder`` goes on with otherwise, if it goes on with ``plan``; sentences."""
    try:
        before = read_plan(folder / PLAN_FILE)
        moved = moved_sentence(before, plan, folder)
        return [*plan_changes(before, plan), *(() if moved is None else (moved,))]
    except VlmplanError:  # there is none, or ``folder_problems`` says what is wrong with it
        return []


def begun_plan(folder: Path) -> Plan | None:
    """The plan of the run that has left results in ``folder``; None where there is none, or none that can be read."""
    if result_in(folder) is None:
        return None
    try:
        return read_plan(folder / PLAN_FILE)
    except VlmplanError:  # which ``folder_problems`` says
        return None


def held_run_problem(folder: Path) -> str | None:
    """Why no new run can start in ``folder``: one has left results there, or is going on."""
    result = result_in(folder)
    if result is not None:
        return f"--output-dir {folder} holds a run already ({result}); --resume goes on with it, or give another folder"
    return _going_on(folder) if _is_locked(folder / LOG_FILE) else None


def result_in(folder: Path) -> str | None:
    """What a run has left in ``folder``, by its name there: a step's metrics, a checkpoint, a model or a report."""
    metrics = folder / METRICS_FILE
    if metrics.is_file() and metrics.stat().st_size:
        return METRICS_FILE
    if any(folder.glob(f"{CHECKPOINTS}/*")):
        return CHECKPOINTS
    written = (MODEL_FOLDER, ADAPTER_FOLDER, MERGED_FOLDER, REPORT_FILE)
    return next((name for name in written if os.path.lexists(folder / name)), None)


def report_mark(folder: Path) -> tuple[int, int] | None:
    """The identity of report.json, to tell it from one that is written later; None if there is none."""
    try:
        found = (folder / REPORT_FILE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _going_on(folder: Path) -> str:
    return f"another run is going on in {folder}; wait for it, or give another folder"


def _is_locked(log: Path) -> bool:
    """Whether somebody else holds the lock of the log; False where locks are not known."""
    try:
        import fcntl

        if not log.is_file():
            return False
        with log.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ImportError):
        return False
    return False


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in ``folder``, or the folder itself where there is none."""
    folder = Path(os.path.abspath(folder))
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def has_checkpoint(folder: Path) -> bool:
    """Whether the trainer has published a checkpoint in ``folder``; whether it is sound is for the trainer to say."""
    return any(folder.glob(f"{CHECKPOINTS}/step-*/{MANIFEST}"))


def what_differs(before: Plan, plan: Plan) -> str | None:
    """The first thing that makes the weights or states of two plans different; None where one can go on with the
    other's checkpoints."""
    if before.model_source != plan.model_source:
        return f"model {before.model_source}"
    if dict(before.workload.model.config) != dict(plan.workload.model.config):
        return "another config.json of the model"
    mine, theirs = plan.recipe.as_json(), before.recipe.as_json()
    return next((f"{name} {theirs[name]}" for name in RESULT_FIELDS if mine[name] != theirs[name]), None)


def run_texts(
    plan: Plan,
    command: Sequence[str],
    environment: Mapping[str, str],
    versions: Mapping[str, Any],
    record: RunRecord | None = None,
) -> dict[str, str]:
    """The files of a run by name, but for its log."""
    texts = {name: text for name, text in file_texts(plan).items() if name in (PLAN_FILE, DS_CONFIG_FILE)}
    texts[COMMAND_FILE] = shlex.join(command) + "\n"
    texts[ENVIRONMENT_FILE] = "".join(f"{name}={value}\n" for name, value in environment.items())
    texts[VERSIONS_FILE] = json.dumps(dict(versions), indent=2) + "\n"
    if record is not None:
        texts[RECORD_FILE] = record_text(record)
    return texts


def write_run_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write the files; a plan.json that says something else is kept under the next free number."""
    path = folder / PLAN_FILE
    before = text_if_there(path, name=str(path))
    if before not in (None, texts[PLAN_FILE]):
        number = next(number for number in range(1, 10**6) if not (folder / f"plan-{number}.json").exists())
        write_atomically(folder / f"plan-{number}.json", before)
    for name, text in texts.items():
        write_atomically(folder / name, text, force=True)


@contextlib.contextmanager
def locked_log(folder: Path, *, resumes: bool, command: str = "") -> Generator[BinaryIO]:
    """run.log, locked and open for appending, with the ``command`` as its next line.

    Raises InputError where another run is going on in the folder, or was started there meanwhile; UnavailableError
    where it cannot be written.
    """
    if os.name != "posix":
        raise UnavailableError("launch needs Linux or macOS; on Windows, run it inside WSL")
    import fcntl

    path = folder / LOG_FILE
    held = None if resumes else held_run_problem(folder)
    if held is not None:
        raise InputError(held)
    is_new = not os.path.lexists(path)
    with _opened_log(path) as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(_going_on(folder)) from None
        except OSError:  # a file system without locks
            if not (is_new or resumes):
                raise InputError(
                    f"{path} is there already and cannot be locked, so another run may be going on; "
                    "delete it if none is, or give another folder"
                ) from None
        try:
            log.write(f"$ {command}".encode() if command else b"")
        except OSError as error:
            raise UnavailableError(f"{path} cannot be written: {error.strerror}") from None
        yield log


def _opened_log(path: Path) -> BinaryIO:
    """Unbuffered: what a full disk does not take is not tried again when the log is closed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise InputError(f"{path} is a link or no regular file, and is not written through; take it away")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        return open(os.open(path, flags, READABLE), "ab", buffering=0)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from None
