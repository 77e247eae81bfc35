"""A folder is a rank's for as long as its process lives, also where whoever started it is gone."""

import subprocess
import sys

import pytest

from vlmplan.errors import InputError, UnavailableError
from vlmplan.launch import rank_locks
from vlmplan.launch.rank_locks import LOCK_FILE, rank_lock, wait_for_old_ranks

HOLD = """
import sys
from pathlib import Path
from vlmplan.launch.rank_locks import rank_lock
with rank_lock(Path(sys.argv[1]), 3):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process that is rank 3 of a run in ``tmp_path``."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_rank_is_kept_out_while_another_process_is_that_rank(other, tmp_path):
    with rank_lock(tmp_path, 0), rank_lock(tmp_path, 4):
        pass
    with pytest.raises(InputError, match=rf"still runs in .*rank 3, process {other.pid} on"), rank_lock(tmp_path, 3):
        pass


def test_a_start_waits_for_ranks_that_are_ending_whatever_they_end_of(other, tmp_path):
    said: list[str] = []

    def say(sentence: str) -> None:
        said.append(sentence)
        other.kill()

    wait_for_old_ranks(tmp_path, say)
    assert len(said) == 1
    assert f"process {other.pid}" in said[0]
    with rank_lock(tmp_path, 3):
        pass
    wait_for_old_ranks(tmp_path, said.append)
    assert len(said) == 1


@pytest.mark.sweep
def test_a_rank_that_does_not_end_is_named(other, monkeypatch, tmp_path):
    monkeypatch.setattr(rank_locks, "WAIT_SECONDS", 0.3)
    with pytest.raises(InputError, match=f"process {other.pid}"):
        wait_for_old_ranks(tmp_path, lambda sentence: None)


def test_a_lock_file_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / LOCK_FILE).symlink_to("elsewhere")
    with pytest.raises(UnavailableError, match=r"ranks\.lock cannot be written"), rank_lock(tmp_path, 0):
        pass
    assert (tmp_path / "elsewhere").read_text() == "mine"
