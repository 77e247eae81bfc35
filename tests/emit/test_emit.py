"""What --out writes: the launcher's real flags, sound and quoted shell, nothing overwritten."""

import json
import os
import shlex
import shutil
import stat
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe_cases import plan
from vlmplan.emit import file_texts, launch_text, write_files
from vlmplan.emit.command import launch_command
from vlmplan.emit.scripts import hostfile_text, launch_script
from vlmplan.emit.wheel import wheel_bytes, wheel_name
from vlmplan.errors import InputError
from vlmplan.plan import Plan, read_plan
from vlmplan.recipe import Recipe
from vlmplan.workload import ModelFiles, Workload

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash")
PLAIN = Recipe(zero_stage=None)


@pytest.fixture(scope="module")
def launcher():
    """The argument parsing of DeepSpeed's launcher and of the process that it starts on each node."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    pytest.importorskip("deepspeed")
    from deepspeed.launcher import runner

    return runner


def named(model_id: str) -> Plan:
    return plan(workload=Workload(model=ModelFiles(id=model_id, config={"model_type": "llama"})))


def run_script(tmp_path, item: Plan, *arguments: str, **environment: str) -> list[str]:
    """The words that launch.sh runs, caught by stand-ins for deepspeed and python."""
    write_files(item, tmp_path / "out", force=True)
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir(exist_ok=True)
    for name in ("deepspeed", "python"):
        path = stand_ins / name
        path.write_text('#!/bin/sh\nprintf "%s\\n" "$(basename "$0")" "$PYTORCH_ALLOC_CONF" "$@"\n')
        path.chmod(0o755)
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin"} | environment
    script = str(tmp_path / "out" / "launch.sh")
    done = subprocess.run([script, *arguments], env=known, capture_output=True, text=True, cwd=tmp_path)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


# -- the command -----------------------------------------------------------------------------------------------------


def test_plain_pytorch_is_started_by_python_alone():
    command = launch_command(plan(PLAIN, 1), plan_path="p.json", arguments=["--resume"])
    assert command == ["python", "-m", "vlmplan_trainer", "--plan", "p.json", "--resume"]
    assert launch_command(plan(PLAIN, 1), python="/env/python")[0] == "/env/python"


def test_deepspeed_understands_the_command_for_one_node(launcher):
    command = launch_command(plan(num_gpus=4), plan_path="p.json", arguments=["--train-data", "d.jsonl"])
    assert command[0] == "deepspeed"
    read = launcher.parse_args(command[1:])
    assert (read.num_nodes, read.num_gpus, read.module, read.no_local_rank) == (1, 4, True, True)
    assert (read.user_script, read.user_args) == ("vlmplan_trainer", ["--plan", "p.json", "--train-data", "d.jsonl"])


def test_deepspeed_understands_the_command_for_several_nodes(launcher):
    read = launcher.parse_args(launch_command(plan(num_gpus=8, num_nodes=3), hostfile="hosts")[1:])
    assert (read.hostfile, read.num_nodes, read.num_gpus) == ("hosts", 3, 8)


def test_cards_that_the_user_chose_are_the_ones_used(launcher):
    read = launcher.parse_args(launch_command(plan(num_gpus=2), visible_devices="5, 3,1")[1:])
    assert (read.include, read.num_gpus, read.num_nodes) == ("localhost:5,3", -1, -1)
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES is 5"):
        launch_command(plan(num_gpus=2), visible_devices="5")
    assert "--include" not in launch_command(plan(PLAIN, 1), visible_devices="5")


def test_an_interpreter_runs_the_launcher_as_a_module():
    assert launch_command(plan(), python="/env/python")[:3] == ["/env/python", "-m", "deepspeed.launcher.runner"]


@given(path=st.text(min_size=1, max_size=30).filter(lambda text: "\0" not in text))
def test_the_command_as_text_splits_into_the_command(path):
    assert shlex.split(launch_text(plan(), plan_path=path)) == launch_command(plan(), plan_path=path)


def test_the_hostfile_template_is_one_that_deepspeed_reads(launcher):
    text = hostfile_text(plan(num_gpus=8, num_nodes=3))
    pool = launcher._parse_hostfile(text.splitlines(keepends=True))
    assert list(pool.values()) == [8, 8, 8]


# -- files -----------------------------------------------------------------------------------------------------------


def test_the_files_of_each_kind_of_plan():
    assert list(file_texts(plan(PLAIN, 1, offer=None))) == ["plan.json", "launch.sh", "job.slurm"]
    assert list(file_texts(plan(offer=None))) == ["plan.json", "ds_config.json", "launch.sh", "job.slurm"]
    assert list(file_texts(plan())) == ["plan.json", "ds_config.json", "launch.sh", "job.slurm", "sky.yaml"]
    several = ["plan.json", "ds_config.json", "launch.sh", "hostfile", "job.slurm", "sky.yaml"]
    assert list(file_texts(plan(num_nodes=2))) == list(file_texts(plan(num_nodes=2, offer=None))) == several


def test_files_are_written_and_hold_the_plan(tmp_path):
    item = plan(num_nodes=2)
    paths = write_files(item, tmp_path / "a" / "b")
    assert [path.name for path in paths] == [*file_texts(item), wheel_name()]
    assert paths[-1].read_bytes() == wheel_bytes()
    assert read_plan(paths[0]) == item
    assert json.loads(paths[1].read_text()) == item.ds_config
    assert stat.S_IMODE(paths[2].stat().st_mode) & 0o100
    assert not stat.S_IMODE(paths[0].stat().st_mode) & 0o111


def test_one_file_that_exists_stops_all_of_them(tmp_path):
    (tmp_path / "launch.sh").write_text("mine")
    with pytest.raises(InputError, match=r"launch\.sh exists already"):
        write_files(plan(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["launch.sh"]
    write_files(plan(), tmp_path, force=True)
    assert "mine" not in (tmp_path / "launch.sh").read_text()


# -- launch.sh -------------------------------------------------------------------------------------------------------


@needs_bash
@pytest.mark.parametrize(
    "item",
    [plan(PLAIN, 1), plan(), plan(num_nodes=2), named("a/b $(touch x) `y` 'z'\nexit 7")],
    ids=["plain", "one node", "two nodes", "hostile name"],
)
def test_bash_parses_the_script(item):
    subprocess.run([str(BASH), "-n"], input=launch_script(item), text=True, check=True)
    assert launch_script(item).splitlines()[0] == "#!/usr/bin/env bash"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("item", [plan(PLAIN, 1), plan(), plan(num_nodes=2)], ids=["plain", "one node", "two nodes"])
def test_shellcheck_finds_nothing(item):
    subprocess.run(["shellcheck", "-"], input=launch_script(item), text=True, check=True)


@settings(max_examples=60)
@given(name=st.text(min_size=1, max_size=60))
def test_no_model_name_adds_a_line_to_the_script(name):
    assert len(launch_script(named(name)).splitlines()) == len(launch_script(named("tame")).splitlines())


@needs_bash
def test_the_script_starts_the_plan_beside_it_from_anywhere(tmp_path):
    words = run_script(tmp_path, plan(), "--train-data", "my data.jsonl")
    start = [
        "deepspeed",
        "expandable_segments:True",
        "--num_nodes",
        "1",
        "--num_gpus",
        "4",
        "--quiet",
        "--no_local_rank",
    ]
    end = ["--module", "vlmplan_trainer", "--plan", f"{tmp_path}/out/plan.json", "--train-data", "my data.jsonl"]
    assert words == start + end


@pytest.mark.sweep
@needs_bash
def test_the_script_runs_the_command_that_launch_would_run(tmp_path):
    for item in (plan(PLAIN, 1), plan(), plan(num_nodes=2)):
        name, _, *words = run_script(tmp_path, item, "--x")
        out = f"{tmp_path}/out"
        expected = launch_command(item, plan_path=f"{out}/plan.json", hostfile=f"{out}/hostfile", arguments=["--x"])
        assert [name, *words] == expected


@pytest.mark.parametrize(("hardware", "said"), [({}, True), ({"vendor": "amd"}, False)])
def test_cards_that_are_chosen_by_number_are_counted_as_nvidia_smi_does(hardware: dict[str, str], said: bool):
    item = plan(num_gpus=2)
    script = launch_script(replace(item, hardware=replace(item.hardware, **hardware)))
    line = 'export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER:-PCI_BUS_ID}"\n'
    assert (line in script) == said
    assert not said or script.index(line) < script.index("CUDA_VISIBLE_DEVICES")


@pytest.mark.sweep
@needs_bash
def test_the_script_keeps_what_the_user_has_set(tmp_path):
    words = run_script(tmp_path, plan(num_gpus=2), CUDA_VISIBLE_DEVICES="7,5,3", PYTORCH_ALLOC_CONF="mine")
    assert words[1:4] == ["mine", "--include", "localhost:7,5"]
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES is 7; the plan is for 2 GPUs"):
        run_script(tmp_path, plan(num_gpus=2), CUDA_VISIBLE_DEVICES="7")
    assert run_script(tmp_path, plan(num_nodes=2), HOSTFILE="/my/hosts")[2:4] == ["--hostfile", "/my/hosts"]


@pytest.mark.sweep
@needs_bash
def test_the_script_of_several_nodes_starts_this_node_alone_where_it_is_told_which_it_is(tmp_path, launcher):
    words = run_script(tmp_path, plan(num_nodes=3), "--x", NODE_RANK="2", MASTER_ADDR="10.0.0.1", MASTER_PORT="2345")
    read = launcher.parse_args(words[2:])
    assert (read.no_ssh, read.node_rank, read.master_addr, read.master_port) == (True, 2, "10.0.0.1", 2345)
    assert (read.num_nodes, read.num_gpus, read.user_args[-1]) == (3, 4, "--x")
    with pytest.raises(RuntimeError, match="MASTER_ADDR: the address of the first node"):
        run_script(tmp_path, plan(num_nodes=3), NODE_RANK="2")
