"""What surrounds a command (terminal, folders, Ctrl-C, endless numbers) changes no answer and gives no traceback."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli_calls import DONE, TINY, call, folder_of, refusal, says
from vlmplan.cli import command_line
from vlmplan.errors import INTERRUPTED
from vlmplan.plain_text import refuses_colour
from vlmplan.render.tables import shows_colour

ESTIMATE = ("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090:2")
BUY = ("buy", "--gpu", "rtx-4090")


def test_ctrl_c_while_modules_are_imported_gives_no_traceback():
    script = """
import sys
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())
from vlmplan.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


@pytest.mark.parametrize("is_stopped", [True, False])
def test_of_what_is_half_made_at_ctrl_c_nothing_is_said(is_stopped: bool):
    script = f"""
import signal
from vlmplan.cli import command_line, main
class HalfMade:
    def __del__(self):
        raise AttributeError("no tape")
def run():
    half_made = HalfMade()
    if {is_stopped}:
        signal.raise_signal(signal.SIGINT)
    return 0
command_line.run = run
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == (INTERRUPTED if is_stopped else DONE)
    assert ("no tape" in done.stderr) is not is_stopped


def test_nothing_but_the_entry_is_imported_before_it_waits_for_ctrl_c():
    script = "import sys; before = {*sys.modules}; import vlmplan.cli; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["vlmplan", "vlmplan.cli", "vlmplan.cli.entry"]


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("TERM", "unknown"), ("NO_COLOR", "1")])
def test_a_terminal_without_colours_gets_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert shows_colour()
    monkeypatch.setenv(name, value)
    assert refuses_colour()
    assert not shows_colour()


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that somebody is in")
def test_a_working_directory_that_is_gone_stops_no_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    try:
        assert call(*ESTIMATE).code == DONE
    finally:
        os.chdir(tmp_path)


def test_folders_that_cannot_be_entered_stop_no_estimate(monkeypatch: pytest.MonkeyPatch):
    """As root nothing is forbidden, so the system's answer is given in its place."""

    def refused(path: object, **options: object) -> os.stat_result:
        if str(path).endswith(".yaml") or str(path).endswith("refreshed_prices.json"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return found(path, **options)  # pyright: ignore

    found = os.stat
    monkeypatch.setattr(os, "stat", refused)
    assert call(*ESTIMATE).code == DONE


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the output cannot be written: No space left on device"),
        (OSError(errno.EIO, "Input/output error"), "the system refuses: Input/output error"),
        (PermissionError(errno.EACCES, "Permission denied", "a\x1b[2J"), "a\\x1b[2J: Permission denied"),
    ],
)
def test_an_error_of_the_system_says_what_it_is_about(monkeypatch: pytest.MonkeyPatch, error: OSError, sentence: str):
    def failing(**_: object) -> int:
        raise error

    monkeypatch.setattr(command_line.cli, "main", failing)
    found = call("estimate")
    assert (found.code, found.err) == (1, f"vlmplan: {sentence}\n")


@pytest.mark.parametrize("number", ["inf", "1e400", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        ("recommend", "--model", "smollm2-135m", "--max-usd"),
        ("recommend", "--model", "smollm2-135m", "--max-hours"),
        ("recommend", "--model", "smollm2-135m", "--max-usd-per-hour"),
        *((*BUY, "--hours-per-week", "20", option) for option in ("--price", "--host-usd", "--watts-host", "--months")),
        (*BUY, "--hours-per-week", "20", "--usd-per-kwh"),
        (*BUY, "--hours-per-week"),
    ],
    ids=lambda words: words[-1],
)
def test_amounts_have_an_end(words: tuple[str, ...], number: str):
    says(refusal(*words, number), words[-1])


@pytest.mark.parametrize("option", ["--hours-per-week", "--months"])
def test_use_so_little_that_it_has_no_finite_price_is_refused(option: str):
    words = (*BUY, *(("--hours-per-week", "20") if option == "--months" else ()), option)
    says(refusal(*words, "1e-320"), f"{option} is ", "0.01 or more is needed")
    assert "inf" not in call(*words, "0.01").out


@pytest.mark.parametrize("option", ["--seed", "--max-steps", "--save-every", "--measured-steps", "--keep-last"])
def test_whole_numbers_of_the_trainer_have_an_end(option: str):
    folder_of("model", TINY)
    words = ("launch", "--model", "./model", "--gpu", "cpu:1", "--dummy-data", "99", "--output-dir", "out", "--dry-run")
    says(refusal(*words, option, str(10**23)), f"{option} is {10**23}", "at most")
