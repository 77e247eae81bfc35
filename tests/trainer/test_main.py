"""The rank that fails says why, on its own standard error; what all find is said by the first."""

import os
import subprocess
import sys

import pytest

import vlmplan_trainer.__main__ as trainer
from launch_cases import cpu_plan
from vlmplan.errors import InputError
from vlmplan.plan import write_plan


@pytest.fixture(autouse=True)
def _of_nobody(monkeypatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)


def failing(monkeypatch, error: Exception) -> None:
    def started(arguments):
        raise error

    monkeypatch.setattr(trainer, "started", started)


@pytest.mark.parametrize(
    ("variables", "waits", "said"),
    [
        ({}, False, "vlmplan_trainer: line 7 is bad\n"),
        ({"RANK": "0", "WORLD_SIZE": "8"}, False, "vlmplan_trainer: line 7 is bad\n"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, True, "vlmplan_trainer: rank 3: line 7 is bad\n"),
        ({"RANK": "5"}, False, "vlmplan_trainer: line 7 is bad\n"),  # of a shell that Slurm started
    ],
)
def test_every_rank_says_why_it_fails(variables, waits, said, capsys, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    slept: list[float] = []
    monkeypatch.setattr(trainer.time, "sleep", slept.append)
    failing(monkeypatch, InputError("line 7 is bad"))
    assert trainer.main([]) == 1
    assert capsys.readouterr().err == said
    assert bool(slept) is waits


@pytest.mark.parametrize(
    "said",
    [
        "[pair.cc:553] Connection closed by peer [127.0.0.1]:40404",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_a_rank_whose_neighbour_is_gone_says_so_in_one_sentence(capsys, monkeypatch, said: str):
    failing(monkeypatch, RuntimeError(said))
    assert trainer.main([]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_other_errors_keep_their_traceback(monkeypatch):
    failing(monkeypatch, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        trainer.main([])


def test_a_plan_for_one_is_rank_0_in_a_shell_of_another_launcher(monkeypatch, tmp_path):
    write_plan(cpu_plan(1), tmp_path / "plan.json")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "5")
    trainer.started(["--plan", str(tmp_path / "plan.json"), "--output-dir", str(tmp_path), "--dummy-data", "8"])
    assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("0", "0")


RUN_OF_ONE = """
import sys
from pathlib import Path
from types import SimpleNamespace
import torch
import vlmplan_trainer.__main__ as trainer
import vlmplan_trainer.run

def run(plan, options):
    torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
    return 0

vlmplan_trainer.run.run = run
plan = SimpleNamespace(has_ranks=False, ds_config=None, recipe=SimpleNamespace(task=None, trains_adapters=False))
options = SimpleNamespace(output_dir=Path(), merge_adapters=False)
trainer.started = lambda arguments: (options, plan)
assert trainer.main([]) == 0
print(torch.distributed.is_initialized())
"""


@pytest.mark.sweep
def test_a_run_that_has_ended_leaves_its_process_groups(tmp_path):
    """What gloo's threads hold is released while Python runs, not while it shuts down."""
    command = [sys.executable, "-c", RUN_OF_ONE, f"file://{tmp_path}/store"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["False"]), done.stderr[-2000:]
