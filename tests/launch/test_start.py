"""A run is one process group: it gets the signals, is followed to its end, and its exit code is handed on."""

import io
import os
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch_cases import a100, cpu_plan, driver, gpu_plan, is_alive, script, sound_facts, wait_for
from vlmplan.errors import UnavailableError
from vlmplan.launch import silence, start
from vlmplan.launch.start import ending, follow, run_command, run_environment, shell_text
from vlmplan.recipe import Recipe

pytestmark = pytest.mark.skipif(os.name != "posix", reason="launch needs POSIX")

SAVING = """
def save(signum, frame):
    time.sleep(0.3)
    Path(sys.argv[1], f"saved-{signum}").write_text("")
    os._exit(0)
"""
NAPS = "for _ in range(1200):\n    time.sleep(0.05)\n"
"""A minute of waiting. Python handles a signal that comes just before a sleep only after it, so each is short."""
LAUNCHER_OF_A_RANK = (
    SAVING
    + """
signal.signal(signal.SIGTERM, save), signal.signal(signal.SIGINT, save)
heard, said = os.pipe()
if os.fork():
    signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.read(heard, 1)
    Path(sys.argv[1], "ready").write_text(str(os.getpid()))
else:
    os.write(said, b"!")
"""
    + NAPS
)
"""As DeepSpeed's: it dies of the signal at once, its rank saves first. A rank says that it runs: Python drops a signal
that comes to a new process before it has its bearings (``_PySignal_AfterFork``)."""


def followed(command: list[str], *, shared_folder: Path | None = None, **environment: str) -> tuple[int, bytes]:
    log = io.BytesIO()
    return follow(command, environment, log, shared_folder=shared_folder), log.getvalue()


def with_signals(command: list[str], folder: Path, *signums: int, shared_folder: Path | None = None) -> int:
    """The exit code of a run that gets these signals, half a second apart, once it is ready."""

    def send() -> None:
        wait_for(folder / "ready")
        for signum in signums:
            os.kill(os.getpid(), signum)
            time.sleep(0.5)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return followed([*command, str(folder)], shared_folder=shared_folder)[0]
    finally:
        thread.join()


# -- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 77])
def test_the_exit_code_is_the_runs(code: int, tmp_path):
    assert followed(script(tmp_path / "s.py", f"sys.exit({code})"))[0] == code


def test_a_run_that_the_system_kills_ends_with_128_and_the_signal(tmp_path):
    killed = script(tmp_path / "s.py", "os.kill(os.getpid(), signal.SIGKILL)")
    assert followed(killed)[0] == 128 + 9


@pytest.mark.parametrize(("code", "expected"), [(247, 128 + 9), (245, 128 + 11), (255, 255)])
def test_what_deepspeeds_launcher_makes_of_a_rank_that_a_signal_ended_is_put_right(code, expected, tmp_path):
    assert followed(script(tmp_path / "s.py", f"sys.exit({code})"))[0] == expected


RANK_THAT_OUTLIVES = """
signal.signal(signal.SIGTERM, save)
heard, said = os.pipe()
if os.fork():
    os.read(heard, 1)
    sys.exit(0)
os.write(said, b"!")
for _ in range(1200):
    print("step", flush=True)
    time.sleep(0.05)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("is_finished", [False, True])
def test_ranks_whose_launcher_ends_before_anything_is_finished_are_asked_to_save(is_finished, monkeypatch, tmp_path):
    monkeypatch.setattr(start, "LEFTOVER_SECONDS", 1.0)
    command, began = script(tmp_path / "s.py", SAVING + RANK_THAT_OUTLIVES), time.monotonic()
    assert follow([*command, str(tmp_path)], {}, io.BytesIO(), is_finished=lambda: is_finished) == 0
    assert (tmp_path / "saved-15").exists() is not is_finished
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (3, "exit code 3"),
        (130, "SIGINT"),
        (143, "SIGTERM"),
        (128 + 9, "memory"),
        (255, "code 255"),
    ],
)
def test_the_end_of_a_run_is_put_in_words(code: int, part: str):
    assert part in ending(code)


def test_what_cannot_be_started_is_one_sentence(tmp_path):
    with pytest.raises(UnavailableError, match="cannot be started"):
        followed([str(tmp_path / "none")])


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("signum", "code", "is_one_node", "received"),
    [
        (signal.SIGTERM, 143, True, signal.SIGTERM),
        (signal.SIGINT, 130, True, signal.SIGTERM),  # DeepSpeed's launcher would end in a traceback
        (signal.SIGINT, 130, False, signal.SIGINT),  # with which it stops the other nodes
        (signal.SIGHUP, 129, True, signal.SIGTERM),  # of which the launcher would die alone
        (signal.SIGHUP, 129, False, signal.SIGTERM),
    ],
)
def test_a_signal_reaches_every_process_and_all_are_waited_for(signum, code, is_one_node, received, tmp_path):
    command = script(tmp_path / "s.py", LAUNCHER_OF_A_RANK)
    assert with_signals(command, tmp_path, signum, shared_folder=None if is_one_node else tmp_path) == code
    assert (tmp_path / f"saved-{int(received)}").exists()


@pytest.mark.sweep
def test_a_run_that_does_not_end_is_killed_when_its_time_is_up(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "GRACE_SECONDS", 0.5)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nPath(sys.argv[1], 'ready').write_text('')\n" + NAPS
    began = time.monotonic()
    assert with_signals(script(tmp_path / "s.py", deaf), tmp_path, signal.SIGTERM) == 143
    assert time.monotonic() - began < 30


def test_asking_a_second_time_kills(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "REPEAT_SECONDS", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nPath(sys.argv[1], 'ready').write_text('')\n" + NAPS
    began = time.monotonic()
    assert with_signals(script(tmp_path / "s.py", deaf), tmp_path, signal.SIGINT, signal.SIGINT) == 130
    assert time.monotonic() - began < 30


@pytest.mark.sweep
def test_an_echo_of_the_first_signal_does_not_kill(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "REPEAT_SECONDS", 30.0)
    slow = SAVING.replace("0.3", "1.2") + (
        "signal.signal(signal.SIGTERM, save)\nPath(sys.argv[1], 'ready').write_text('')\n" + NAPS
    )
    assert with_signals(script(tmp_path / "s.py", slow), tmp_path, signal.SIGINT, signal.SIGINT) == 130
    assert (tmp_path / "saved-15").exists()


@pytest.mark.sweep
def test_processes_that_outlive_the_run_are_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "LEFTOVER_SECONDS", 0.3)
    command = script(
        tmp_path / "s.py",
        "child = os.fork()\nif child == 0:\n    time.sleep(60)\nPath(sys.argv[1]).write_text(str(child))\nsys.exit(5)",
    )
    assert followed([*command, str(tmp_path / "pid")])[0] == 5
    child, end = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while is_alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(child)


def test_the_callers_own_handlers_come_back(tmp_path):
    before = [signal.getsignal(signum) for signum in start.SIGNALS]
    followed(script(tmp_path / "s.py", ""))
    assert [signal.getsignal(signum) for signum in start.SIGNALS] == before


@pytest.mark.sweep
def test_what_nohup_ignores_stays_ignored(tmp_path):
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ready = "Path(sys.argv[1], 'ready').write_text('')\ntime.sleep(1)"
        assert with_signals(script(tmp_path / "s.py", ready), tmp_path, signal.SIGHUP) == 0
    finally:
        signal.signal(signal.SIGHUP, old)


# -- output ----------------------------------------------------------------------------------------------------------


def test_both_streams_are_shown_and_kept_byte_for_byte(capsys, tmp_path):
    code = r"os.write(1, 'größe\n'.encode()); os.write(2, b'\xff 50%\r100%\n')"
    _, log = followed(script(tmp_path / "s.py", code))
    assert log == "größe\n".encode() + b"\xff 50%\r100%\n"
    assert capsys.readouterr().out == "größe\n\ufffd 50%\r100%\n"


def test_a_terminal_that_goes_away_does_not_end_the_run(monkeypatch, tmp_path):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    code, log = followed(script(tmp_path / "s.py", "print(1, flush=True)\ntime.sleep(0.3)\nprint(2)"))
    assert (code, log) == (0, b"1\n2\n")


@pytest.mark.sweep
def test_a_rank_that_is_stopped_is_named_once_and_the_run_goes_on(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(silence, "STOPPED_SECONDS", 0.3)
    code = """
if not os.fork():
    os.environ["RANK"] = "1"
    os.execv(sys.executable, [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "rank"])
child = os.wait3(os.WUNTRACED)[0]
time.sleep(1)
os.kill(child, signal.SIGCONT)
os.wait()
print("went on")
"""
    _, log = followed(script(tmp_path / "s.py", code))
    sentence, rest = log.decode().split("\n", 1)
    assert re.fullmatch(r"vlmplan: rank 1 \(process \d+\) is stopped, .*`kill -CONT \d+` lets it go on", sentence)
    assert rest == "went on\n"
    assert capsys.readouterr().out == log.decode()


@pytest.mark.sweep
def test_a_long_silence_is_said_with_what_the_ranks_do(monkeypatch, tmp_path):
    monkeypatch.setattr(silence, "SILENT_SECONDS", 0.3)
    code = "if not os.fork():\n    os.execve(sys.executable, [sys.executable, '-c', 'input()'], {'RANK': '0'})\n"
    listen = "read, write = os.pipe(); os.dup2(read, 0)\n"
    _, log = followed(script(tmp_path / "s.py", listen + code + "time.sleep(1.2)\nos.close(write)\n"))
    assert re.match(rb"vlmplan: nothing has come from the run for [^:]+(: rank 0 waits)?\n", log)
    assert log.count(b"nothing has come") == 1


@pytest.mark.sweep
def test_a_log_that_cannot_be_written_any_more_is_said_and_the_run_goes_on(capsys, tmp_path):
    with open("/dev/full", "ab", buffering=0) as log:
        assert follow(script(tmp_path / "s.py", "print(1)\ntime.sleep(0.3)\nprint(2)"), {}, log) == 0
    assert capsys.readouterr().out == "vlmplan: /dev/full is not written from here on: No space left on device\n1\n2\n"


# -- command and environment -----------------------------------------------------------------------------------------


def test_plain_pytorch_needs_no_port_and_this_interpreter_runs_everything():
    plan = gpu_plan(Recipe(zero_stage=None), 1)
    command = run_command(plan, plan_path="p", hostfile=None, facts=sound_facts(), arguments=["--resume"])
    assert command == [sys.executable, "-m", "vlmplan_trainer", "--plan", "p", "--resume"]


def test_two_runs_on_one_machine_meet_at_different_ports(monkeypatch):
    monkeypatch.delenv("MASTER_PORT", raising=False)

    def port_of(command: list[str]) -> str:
        return command[command.index("--master_port") + 1]

    def command(plan) -> list[str]:
        return run_command(plan, plan_path="p", hostfile=Path("h"), facts=sound_facts(), arguments=[])

    assert 1024 <= int(port_of(command(gpu_plan()))) <= 65535
    monkeypatch.setenv("MASTER_PORT", "12345")
    assert port_of(command(gpu_plan())) == "12345"
    several = command(gpu_plan(num_nodes=2))
    assert "--master_port" not in several
    assert several[several.index("--hostfile") + 1] == "h"


@given(num_cpus=st.integers(1, 256), num_ranks=st.integers(1, 64))
def test_cpu_ranks_share_the_processor(num_cpus: int, num_ranks: int):
    facts = sound_facts(num_cpus=num_cpus)
    environment = run_environment(cpu_plan(num_ranks), facts, Path("o"), {})
    num_threads = int(environment["OMP_NUM_THREADS"])
    assert num_threads == 1 or num_threads * num_ranks <= num_cpus
    assert environment["DS_ACCELERATOR"] == "cpu"
    assert "OMP_NUM_THREADS" not in run_environment(gpu_plan(), facts, Path("o"), {})


def test_cuda_counts_different_cards_as_the_driver_does():
    mixed = sound_facts(driver=driver(a100(0), a100(1, name="Tesla T4")))
    order = "CUDA_DEVICE_ORDER"
    assert run_environment(gpu_plan(), mixed, Path("o"), {})[order] == "PCI_BUS_ID"
    assert run_environment(gpu_plan(), mixed, Path("o"), {order: "FASTEST_FIRST"})[order] == "FASTEST_FIRST"
    assert order not in run_environment(gpu_plan(), sound_facts(), Path("o"), {})


def test_what_the_user_has_set_stays():
    plan = gpu_plan()
    assert run_environment(plan, sound_facts(), Path("o"), {})["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    mine = {"PYTORCH_ALLOC_CONF": "mine", "UNKNOWN": "1"}
    environment = run_environment(plan, sound_facts(), Path("o"), mine)
    assert environment["PYTORCH_ALLOC_CONF"] == "mine"
    assert "UNKNOWN" not in environment


def test_other_nodes_get_the_variables_through_deepspeeds_own_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    plan = gpu_plan(num_nodes=2)
    assert run_environment(plan, sound_facts(), Path("o"), {})["DS_ENV_FILE"] == str(tmp_path / "o" / "environment.txt")
    assert "DS_ENV_FILE" not in run_environment(gpu_plan(), sound_facts(), Path("o"), {})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / ".deepspeed_env").touch()  # the launcher is started elsewhere
    assert "DS_ENV_FILE" in run_environment(plan, sound_facts(), Path("o"), {})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "DS_ENV_FILE" not in run_environment(plan, sound_facts(), Path("o"), {})


@given(st.dictionaries(st.sampled_from(["A", "B"]), st.text("a '\"$\\", max_size=9)), st.text("a '\"$;\\", max_size=9))
def test_a_shell_reads_back_what_would_be_run(environment, word: str):
    words = shlex.split(shell_text(["run", word], environment))
    assert words == [*(f"{name}={value}" for name, value in environment.items()), "run", word]


def test_the_run_sees_the_environment_on_top_of_the_callers(monkeypatch, tmp_path):
    monkeypatch.setenv("FROM_CALLER", "1")
    code = "print(os.environ['FROM_CALLER'], os.environ['FROM_PLAN'])"
    assert followed(script(tmp_path / "s.py", code), FROM_PLAN="2")[1] == b"1 2\n"


def test_no_module_of_the_working_directory_is_imported(monkeypatch, tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('taken')")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"mine{os.pathsep}")  # the empty part stands for the working directory
    command = [sys.executable, "-c", "import random, own, os; print(random.random() < 1, os.listdir())"]
    assert followed(command) == (0, b"True []\n")
    assert followed(command, shared_folder=tmp_path) == (0, b"True []\n")
    assert {path.name for path in tmp_path.iterdir()} == {"random.py", "mine"}


def test_a_run_is_not_a_rank_of_whoever_started_the_shell(monkeypatch, tmp_path):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "5")
    code = "print([name for name in os.environ if 'RANK' in name or name == 'WORLD_SIZE'])"
    assert followed(script(tmp_path / "s.py", code))[1] == b"[]\n"


def test_a_run_asks_nothing_of_the_terminal(tmp_path):
    assert followed(script(tmp_path / "s.py", "print(repr(sys.stdin.read()))"))[1] == b"''\n"
