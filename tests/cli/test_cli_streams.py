"""The installed command as a process of its own: pipes that close, disks that are full, terminals of every kind."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, TINY, USAGE, folder_of
from vlmplan.cli.command_line import BROKEN_PIPE
from vlmplan.render.lines import cell_width

VLMPLAN = str(Path(sysconfig.get_path("scripts")) / ("vlmplan.exe" if os.name == "nt" else "vlmplan"))
ESTIMATE = (VLMPLAN, "estimate", "--model", "./模型", "--gpu", "rtx-4090")
RECOMMEND = (VLMPLAN, "recommend", "--model", "./模型", "--gpu", "rtx-4090:1")
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs a shell and pseudo terminals")


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of("模型", TINY)
    for name in ("COLUMNS", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)


def process(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, capture_output=True, env={**os.environ, **environment}, timeout=60)


def test_exit_codes_are_those_of_the_process():
    assert process(*ESTIMATE).returncode == DONE
    assert process(*ESTIMATE, "--epochs", "0").returncode == MENDABLE
    assert process(*ESTIMATE, "--epochs", "many").returncode == USAGE
    assert process(*ESTIMATE, "--seq-len", str(10**7)).returncode == DOES_NOT_FIT


@pytest.mark.parametrize("words", [("--seq-len", "0"), ("--seq-len", "many"), ("--gpu", "nosuch")])
def test_a_refusal_with_json_leaves_standard_output_empty(words: tuple[str, ...]):
    found = process(*ESTIMATE[:-2], *(words if "--gpu" in words else (*words, "--gpu", "t4")), "--json")
    assert found.stdout == b""
    assert found.stderr.startswith(b"vlmplan")
    assert found.stderr.count(b"\n") == 1


@pytest.mark.parametrize("words", [ESTIMATE, (*ESTIMATE, "--json"), (VLMPLAN, "gpus"), (VLMPLAN, "estimate", "--help")])
def test_a_pipe_that_nobody_reads_ends_the_command_silently(words: tuple[str, ...]):
    read_end, write_end = os.pipe()
    os.close(read_end)
    found = subprocess.run(words, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert (found.returncode, found.stderr) == (BROKEN_PIPE, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once():
    with open("/dev/full", "wb") as full:
        found = subprocess.run((*ESTIMATE, "--json"), stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert found.returncode == MENDABLE
    assert found.stderr.startswith(b"vlmplan: the output cannot be written: ")
    assert found.stderr.count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*ESTIMATE, "--epochs", "0"), MENDABLE),
        ((*ESTIMATE, "--epochs", "many"), USAGE),
        ((VLMPLAN, "gpus", "t4"), DONE),
    ],
)
def test_what_standard_error_does_not_take_is_dropped_and_the_command_goes_on(words, code: int, unbuffered: str):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        found = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, env=environment, timeout=60)
    assert found.returncode == code
    assert bool(found.stdout) == (code == DONE)


@needs_posix
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_disk_takes_no_more_of_is_not_dropped_silently(unbuffered: str):
    script = 'ulimit -f 1; exec "$0" "$@" >part.json'
    found = process("/bin/sh", "-c", script, *ESTIMATE, "--json", PYTHONUNBUFFERED=unbuffered)
    assert 0 < Path("part.json").stat().st_size <= 1024  # one block
    assert found.returncode == MENDABLE
    assert found.stderr == b"vlmplan: the output cannot be written: File too large\n"


@needs_posix
def test_a_log_from_a_closed_standard_input_is_an_empty_one():
    found = process("/bin/sh", "-c", 'exec "$0" diagnose - <&-', VLMPLAN)
    assert found.returncode == MENDABLE
    assert found.stderr.startswith(b"vlmplan: standard input is empty")


@pytest.mark.sweep
@needs_posix
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_nothing_but_what_is_seen(closed: str):
    script = f'exec "$0" "$@" {closed}'
    done = process("/bin/sh", "-c", script, *ESTIMATE)
    assert (done.returncode, done.stderr) == (DONE, b"")
    assert process("/bin/sh", "-c", script, *ESTIMATE, "--epochs", "0").returncode == MENDABLE


@pytest.mark.sweep
@pytest.mark.parametrize(
    "encoding",
    ["cp1252", pytest.param("ascii", marks=pytest.mark.sweep), pytest.param("utf-8:strict", marks=pytest.mark.sweep)],
)
def test_a_terminal_without_the_characters_of_a_name_shows_it_escaped(encoding: str):
    for words in (ESTIMATE, RECOMMEND):
        found = process(*words, PYTHONIOENCODING=encoding)
        assert (found.returncode, found.stderr) == (DONE, b"")
        named = "./模型" if encoding != "cp1252" else "./\\u6a21\\u578b"  # click writes UTF-8 where ASCII is claimed
        assert found.stdout.decode().startswith(f"{named}: ")
    refused = process(*ESTIMATE[:2], "--model", "模型", "--gpu", "模", PYTHONIOENCODING=encoding)
    assert refused.returncode == MENDABLE
    assert refused.stderr.startswith(b"vlmplan: unknown GPU ")


@pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.sweep)])
def test_json_is_the_same_in_every_encoding(encoding: str):
    for words, place in ((ESTIMATE, "model"), (RECOMMEND, "workload")):
        found = process(*words, "--json", PYTHONIOENCODING=encoding)
        document = json.loads(found.stdout.decode("ascii"))
        assert document[place]["id" if place == "model" else "model"] == "./模型"


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_no_text_is_planned_for_but_not_written_into_a_plan():
    folder = os.fsencode("./") + b"\xff\xfe"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "config.json").write_text(json.dumps(TINY))
    words = (VLMPLAN, "recommend", "--model", os.fsdecode(folder), "--gpu", "rtx-4090:1", "--json")
    found = process(*words, PYTHONIOENCODING="utf-8:strict")
    assert json.loads(found.stdout)["workload"]["model"] == os.fsdecode(folder)
    refused = process(*words, "--out", "plans", PYTHONIOENCODING="utf-8:strict")
    assert (refused.returncode, refused.stdout) == (MENDABLE, b"")
    assert b"not UTF-8 text" in refused.stderr
    assert not list(Path().glob("plans/*"))


@pytest.mark.sweep
@pytest.mark.parametrize("words", [ESTIMATE, RECOMMEND], ids=["estimate", "recommend"])
def test_piped_text_does_not_depend_on_the_terminal_unless_columns_says_a_width(words: tuple[str, ...]):
    plain = process(*words).stdout
    assert b"\x1b" not in plain
    assert process(*words, TERM="dumb", NO_COLOR="1").stdout == plain
    folded = process(*words, COLUMNS="60").stdout.decode()
    assert all(cell_width(line) <= 60 for line in folded.splitlines())


def on_terminal(*words: str, **environment: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    import pty

    shown, terminal = pty.openpty()
    with subprocess.Popen(words, stdout=terminal, stderr=terminal, env={**os.environ, **environment}) as running:
        os.close(terminal)
        parts: list[bytes] = []
        while True:
            try:
                part = os.read(shown, 65536)
            except OSError:  # how Linux says that nothing follows
                break
            if not part:
                break
            parts.append(part)
    os.close(shown)
    assert running.returncode == DONE
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.sweep
@needs_posix
def test_colour_is_for_terminals_whose_user_has_not_refused_it():
    environment = {"TERM": "xterm", "COLUMNS": "200"}
    assert "\x1b[" in on_terminal(*ESTIMATE, **environment)
    assert "\x1b[3" not in on_terminal(*ESTIMATE, NO_COLOR="1", **environment)
    letters = on_terminal(*RECOMMEND, NO_COLOR="1", TERM="xterm", COLUMNS="40")
    assert "\x1b" not in letters
    assert letters == process(*RECOMMEND, COLUMNS="40").stdout.decode()
