"""What a program or a script starts as ranks runs here instead; everything else that it starts is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vlmplan_trainer.script_rehearsal.programs import (
    StartedElsewhere,
    python_program,
    starting_ranks_here,
    starts_ranks,
)

TORCHRUN = ["torchrun", "--nproc_per_node", "8", "train.py"]
SCRIPT = [sys.executable, "train.py"]


@pytest.mark.parametrize("words", [TORCHRUN, [sys.executable, "-m", "torch.distributed.run", "train.py"]])
@pytest.mark.parametrize("is_program", [False, True])
def test_a_launcher_that_is_started_is_told_with_its_environment(words: list[str], is_program: bool):
    with starting_ranks_here(is_program=is_program), pytest.raises(StartedElsewhere) as started:
        subprocess.run(words, env={"ALLOCATOR": "mine"}, check=True)
    assert started.value.words == words
    assert started.value.environment == {"ALLOCATOR": "mine"}
    with starting_ranks_here(is_program=is_program), pytest.raises(StartedElsewhere) as started:
        os.execvp(words[0], words)
    assert started.value.words == words


def test_programs_start_their_script_and_scripts_start_helpers():
    assert starts_ranks(SCRIPT, is_program=True)
    assert not starts_ranks(SCRIPT, is_program=False)
    assert not starts_ranks([sys.executable, "-c", "print()"], is_program=True)
    assert not starts_ranks(["nvidia-smi"], is_program=True)
    with starting_ranks_here(is_program=True):
        subprocess.run([sys.executable, "-c", "pass"], check=True)


def test_programs_are_files_that_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, line in (("mine", "#!/usr/bin/env python3"), ("other", "#!/bin/sh")):
        (tmp_path / name).write_text(f"{line}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_program("mine") == str(tmp_path / "mine")
    assert python_program("other") is None
    assert python_program("absent") is None
