"""Starting a run and following it to its end.

The run is a process group of its own: signals that vlmplan gets go to all of it, once as they came, and as SIGKILL
where it has not ended ``GRACE_SECONDS`` later or the user asks a second time. DeepSpeed's launcher
(``launcher/runner.py``, ``launch.py`` 0.19.8) dies of a signal before its ranks have ended, so the end of a run is
that nobody holds its output any more, and its exit code is 128 + the signal, whatever the launcher says. Where the
launcher is killed, it even ends with 0: whether a run has finished is seen by what it leaves, and ranks that outlive
their launcher are asked to save and end.
"""

import codecs
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from vlmplan.child_process import child_environment, empty_folder
from vlmplan.emit.command import launch_command, trainer_command
from vlmplan.emit.scripts import BY_PLACE, ORDER
from vlmplan.errors import UnavailableError
from vlmplan.launch.facts import Facts
from vlmplan.launch.run_folder import ENVIRONMENT_FILE
from vlmplan.launch.silence import Silence
from vlmplan.plain_text import can_draw
from vlmplan.plan import Plan
from vlmplan.run.step_bar import StepBar
from vlmplan.run.training import REPORT_FILE, STARTED

GRACE_SECONDS = 60.0
"""How long a run may take to end after a signal. A choice: DeepSpeed gives each rank 30 seconds."""
LEFTOVER_SECONDS = 30.0
"""How long processes may hold the output after the run's own has ended."""
POLL_SECONDS = 0.2
REPEAT_SECONDS = 1.0
"""A second signal sooner than this is the first one's echo: terminal and wrapper (``uv run``) both send Ctrl-C."""
CHUNK_BYTES = 1 << 16
KILLED_CODES = {256 - signum: 128 + signum for signum in range(2, 32)}
"""DeepSpeed's launcher ends with minus the signal that ended a rank, of which the system keeps 256 less it."""
OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that a launcher sets for its ranks: those of a shell that another launcher started are not this run's."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
HANGUP = getattr(signal, "SIGHUP", 0)
"""0 on Windows, which has none."""
DS_ENV_FILE = "DS_ENV_FILE"
"""Names the file whose variables DeepSpeed's launcher sets on the other nodes (``runner.py``)."""


def run_command(
    plan: Plan, *, plan_path: str, hostfile: Path | None, facts: Facts, arguments: Sequence[str], is_alone: bool = False
) -> list[str]:
    """What is run, with this interpreter; ``is_alone``: in one process. On one machine the ranks meet at a free port,
    so that two runs can live."""
    if is_alone:
        return trainer_command(plan_path, python=sys.executable, arguments=arguments)
    command = launch_command(
        plan,
        plan_path=plan_path,
        hostfile=str(hostfile or ""),
        python=sys.executable,
        visible_devices=facts.visible_devices,
        arguments=arguments,
    )
    if plan.has_ranks and plan.hardware.num_nodes == 1:
        place = command.index("--no_local_rank")
        command[place:place] = ["--master_port", os.environ.get("MASTER_PORT") or str(free_port())]
    return command


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def run_environment(plan: Plan, facts: Facts, output_dir: Path, existing: Mapping[str, str]) -> dict[str, str]:
    """The variables that the run needs, with the user's own value of those that ``existing`` has.

    CPU ranks share the processor: without OMP_NUM_THREADS each would start a thread on every core. CUDA counts
    different GPUs from the fastest one on unless CUDA_DEVICE_ORDER says otherwise (CUDA programming guide, environment
    variables); equal ones it counts as the driver does.
    """
    wanted = dict(plan.environment)
    if plan.hardware.vendor == "cpu" and facts.num_cpus:
        wanted["OMP_NUM_THREADS"] = str(max(1, facts.num_cpus // plan.hardware.gpus_per_node))
    if facts.driver is not None and len({card.name for card in facts.driver.cards}) > 1:
        wanted[ORDER] = BY_PLACE
    wanted["PYTHONUNBUFFERED"] = "1"
    if plan.hardware.num_nodes > 1 and not _has_own_ds_env():
        wanted[DS_ENV_FILE] = os.path.abspath(output_dir / ENVIRONMENT_FILE)
    return {name: existing.get(name, value) for name, value in wanted.items()}


def _has_own_ds_env() -> bool:
    """Whether the user has a file for DeepSpeed's launcher, which another one would hide. One in the working directory
    counts for nothing: the launcher is started elsewhere."""
    return (Path.home() / ".deepspeed_env").is_file()


def shell_text(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """One line of shell that runs the command in its environment."""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*words, shlex.join(command)])


# -- running ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stop:
    """The signal that was asked for, and when (monotonic seconds)."""

    signum: int | None = None
    since: float = 0.0


def follow(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: BinaryIO,
    *,
    shared_folder: Path | None = None,
    is_finished: Callable[[], bool] = lambda: True,
) -> int:
    """Run ``command`` in this environment, show and log what it prints; its exit code, 128 + N for signal N.

    Its output is a pipe, so what it prints is for a log; in a terminal the steps of the trainer become a bar.
    ``is_finished`` says whether the run has left its result.

    On one node Ctrl-C is handed on as SIGTERM, which means the same to the trainer: of SIGINT DeepSpeed's launcher ends
    in a traceback. With several it stops the other nodes (``runner.py``, ``sigkill_handler``), to whose working
    directory the launcher changes everywhere: it is made in ``shared_folder``, which is None for one node. SIGHUP, of
    which the launcher dies and its ranks do not hear, is handed on as SIGTERM too.
    Raises UnavailableError if it cannot be started.
    """
    with empty_folder(shared_folder) as place:
        return _follow_in(place, command, environment, log, is_one_node=shared_folder is None, is_finished=is_finished)


def _follow_in(
    place: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: BinaryIO,
    *,
    is_one_node: bool,
    is_finished: Callable[[], bool],
) -> int:
    stop = Stop()
    variables = child_environment({**environment, STARTED: f"{time.time():.3f}"})
    for name in OF_LAUNCHERS:
        variables.pop(name, None)
    handed_on_as = {HANGUP: signal.SIGTERM} | ({signal.SIGINT: signal.SIGTERM} if is_one_node else {})
    with _forwarded(stop, handed_on_as) as forward_to:
        try:
            process = subprocess.Popen(  # noqa: S603 - a list of words, no shell
                list(command),
                env=variables,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(f"{command[0]} cannot be started: {error.strerror}") from None
        forward_to.append(process.pid)
        if stop.signum is not None:  # it came while the process was being started
            _signal_group(process.pid, signal.SIGTERM if is_one_node else stop.signum)
        _copy_output(process, log, stop, is_finished)
        code = process.wait()
        forward_to.clear()
    if stop.signum is not None:
        return 128 + stop.signum
    return 128 - code if code < 0 else KILLED_CODES.get(code, code)


CUT_OFF = f"the run ended before it wrote {REPORT_FILE}, so it did not finish (its launcher was killed, say)"
"""How a run ended whose launcher says that all is well."""


def ending(code: int) -> str:
    """How a run ended, in words."""
    if code == 128 + signal.SIGKILL:
        return f"the run was killed (exit code {code}), as the system does when the host's memory runs out"
    try:
        return f"the run was stopped by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"the run ended with exit code {code}"


@contextmanager
def _forwarded(stop: Stop, handed_on_as: Mapping[int, int]) -> Generator[list[int]]:
    """Within, signals go to the process groups in the list that it gives; a second one kills them."""
    groups: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        again = stop.signum is not None
        if again and time.monotonic() - stop.since < REPEAT_SECONDS:
            return
        if not again:
            stop.signum, stop.since = signum, time.monotonic()
        for group in groups:
            _signal_group(group, signal.SIGKILL if again else handed_on_as.get(signum, signum))

    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # Python allows it nowhere else
        for signum in SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:  # as nohup has it
                old[signum] = signal.signal(signum, forward)
    try:
        yield groups
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


def _signal_group(group: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signum)


def _copy_output(
    process: "subprocess.Popen[bytes]", log: BinaryIO, stop: Stop, is_finished: Callable[[], bool]
) -> None:
    """Show and log until no process holds the other end. A process that holds it after the run's own process has ended,
    with nothing finished, gets SIGTERM, so that ranks save; one that holds it for too long after that is killed.
    """
    assert process.stdout is not None
    pipe, silence = process.stdout.fileno(), Silence(process.pid)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ended: float | None = None
    with process.stdout, _shown() as show:
        write = _written(log, show)
        while True:
            if select.select([pipe], [], [], POLL_SECONDS)[0]:
                chunk = os.read(pipe, CHUNK_BYTES)
                if not chunk:
                    return
                silence.heard()
                write(chunk)
                show(decoder.decode(chunk))
            elif (sentence := silence.sentence()) is not None:
                write(f"vlmplan: {sentence}\n".encode())
                show(f"vlmplan: {sentence}\n")
            now = time.monotonic()
            if ended is None and process.poll() is not None:
                ended = now
                if stop.signum is None and not is_finished():
                    _signal_group(process.pid, signal.SIGTERM)
            is_late = stop.signum is not None and now - stop.since > GRACE_SECONDS
            if is_late or (stop.signum is None and ended is not None and now - ended > LEFTOVER_SECONDS):
                _signal_group(process.pid, signal.SIGKILL)
                return


def _written(log: BinaryIO, show: Callable[[str], None]) -> Callable[[bytes], None]:
    """What to call with what goes to the log. A disk that is full does not end the run, which may go on elsewhere."""
    is_whole = True

    def write(chunk: bytes) -> None:
        nonlocal is_whole
        try:
            if is_whole:
                log.write(chunk)
                log.flush()
        except OSError as error:
            is_whole = False
            show(f"vlmplan: {getattr(log, 'name', 'the log')} is not written from here on: {error.strerror}\n")

    return write


@contextmanager
def _shown() -> Generator[Callable[[str], None]]:
    """Within, what to call with what is to be shown: as it is, or in a terminal with a bar for the steps.

    A terminal that went away does not end the run, whose log goes on.
    """
    bar = StepBar(sys.stdout) if can_draw(sys.stdout) else None

    def show(text: str) -> None:
        nonlocal bar
        try:
            if bar is not None:
                bar.feed(text)
            else:
                sys.stdout.write(text)
                sys.stdout.flush()
        except (OSError, ValueError):
            bar = None
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives

    try:
        yield show
    finally:
        with suppress(OSError, ValueError):
            if bar is not None:
                bar.close()
