"""job.slurm: sound shell, options that Slurm knows, and the same launch on every node."""

import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sky_plans import named

from recipe_cases import plan
from vlmplan.emit import write_files
from vlmplan.emit.cluster import CPUS_PER_RANK, HOST_SPARE_GIB, job_name, slurm_script
from vlmplan.plan import Plan
from vlmplan.units import GIB

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash")
SBATCH_OPTIONS = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "gpus-per-node",
    "exclusive",
    "mem",
    "output",
}
"""Of slurm.schedmd.com/sbatch.html, those that are used."""


ITEMS = {
    "one node": plan(),
    "two nodes": plan(num_nodes=2),
    "hostile name": named("a/b $(touch x) `y` 'z'\nexit 7", num_nodes=2),
}

# -- Slurm -----------------------------------------------------------------------------------------------------------


@needs_bash
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_bash_parses_the_batch_script(item: Plan):
    subprocess.run([str(BASH), "-n"], input=slurm_script(item), text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_shellcheck_finds_nothing(item: Plan):
    subprocess.run(["shellcheck", "-"], input=slurm_script(item), text=True, check=True)


def asked_of_slurm(item: Plan) -> list[str]:
    lines = slurm_script(item).splitlines()
    return [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")]


def test_one_machine_is_asked_for_as_much_of_as_the_plan_needs():
    item = plan(num_gpus=2)
    item = replace(item, expected=replace(item.expected, host_bytes_per_node=77 * GIB + 1))
    asked = set(asked_of_slurm(item))
    assert {"nodes=1", "gpus-per-node=2", f"cpus-per-task={2 * CPUS_PER_RANK}"} <= asked
    assert f"mem={77 + 1 + HOST_SPARE_GIB}G" in asked
    assert "exclusive" not in asked


@pytest.mark.sweep
@needs_bash
def test_a_job_of_one_machine_runs_the_launch_script_at_a_port_of_its_own(tmp_path):
    item = plan(num_gpus=2)
    out = tmp_path / "plan"
    write_files(item, out)
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    (stand_ins / "deepspeed").write_text('#!/usr/bin/env bash\nprintf "%s " "$@"; echo\n')
    (stand_ins / "deepspeed").chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(out), "SLURM_JOB_ID": "30007", "CUDA_VISIBLE_DEVICES": "0,1"}
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin", **job}
    command = [str(BASH), str(out / "job.slurm"), "--train-data", "d.jsonl"]
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("--include localhost:0,1 --master_port 20007 --quiet")
    assert done.stdout.endswith(f"--module vlmplan_trainer --plan {out}/plan.json --train-data d.jsonl \n")


def test_slurm_is_asked_for_the_plans_nodes_and_gpus_before_any_command():
    item = plan(num_gpus=8, num_nodes=3)
    lines, asked = slurm_script(item).splitlines(), asked_of_slurm(item)
    assert {"nodes=3", "gpus-per-node=8", "ntasks-per-node=1"} <= set(asked)
    assert {option.partition("=")[0] for option in asked} <= SBATCH_OPTIONS
    first_command = next(place for place, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(place < first_command for place, line in enumerate(lines) if line.startswith("#SBATCH"))


@needs_bash
def test_every_node_of_the_job_starts_its_own_launcher(tmp_path):
    item = plan(num_nodes=3)
    out = tmp_path / "my plan"
    write_files(item, out)
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    texts = {
        "scontrol": "printf 'node-%s\\n' a b c",
        # one task per node, as srun starts them; its own options come before the command
        "srun": 'while [[ "$1" == --* ]]; do shift; done; for id in 0 1 2; do SLURM_NODEID=$id "$@"; done',
        "deepspeed": 'printf "%s " "$@"; echo',
    }
    for name, text in texts.items():
        (stand_ins / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (stand_ins / name).chmod(0o755)
    job = {"SLURM_SUBMIT_DIR": str(out), "SLURM_JOB_NODELIST": "node-[a-c]", "SLURM_JOB_ID": "123456"}
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin", **job}
    command = ["bash", str(out / "job.slurm"), "--train-data", "d.jsonl"]
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=True, cwd=tmp_path)
    started = done.stdout.splitlines()
    assert len(started) == 3
    for rank, line in enumerate(started):
        assert f"--no_ssh --node_rank {rank} --master_addr node-a --master_port 23456 " in line
        assert line.endswith(f"--module vlmplan_trainer --plan {out}/plan.json --train-data d.jsonl ")


@needs_bash
def test_a_job_that_is_submitted_from_elsewhere_says_so(tmp_path):
    job = {"SLURM_SUBMIT_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [str(BASH), "-c", slurm_script(plan(num_nodes=2))]
    done = subprocess.run(command, env=job, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "submit job.slurm from its own folder" in done.stderr


@settings(max_examples=60)
@given(name=st.text(min_size=1, max_size=60))
def test_no_model_name_adds_a_line_to_what_is_written(name: str):
    tame = plan(num_nodes=2)
    hostile = named(name, num_nodes=2)
    assert len(slurm_script(hostile).splitlines()) == len(slurm_script(tame).splitlines())
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*[a-z0-9]", job_name(hostile))
