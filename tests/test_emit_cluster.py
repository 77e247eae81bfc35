"""job.slurm and sky.yaml: sound shell, keys that Slurm and SkyPilot know, and the same launch on every node."""

import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from emit_skypilot_keys import CLOUDS, RESOURCES_KEYS, TASK_KEYS
from planned import shipped_gpus
from recipe_cases import plan
from vlmplan.emit import sky_text, slurm_script, write_files
from vlmplan.emit.cluster import DISK_SPARE_GB, SKYPILOT_ACCELERATORS, SKYPILOT_CLOUDS, has_sky_yaml, job_name
from vlmplan.plan import Plan, PlannedOffer
from vlmplan.recipe import Recipe
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles, Workload

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash")
SBATCH_OPTIONS = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem", "output"}
"""Of slurm.schedmd.com/sbatch.html, those that are used."""


def named(model_id: str, **changes: object) -> Plan:
    return plan(workload=Workload(model=ModelFiles(id=model_id, config={"model_type": "llama"})), **changes)


def rented(**changes: object) -> PlannedOffer:
    return replace(PlannedOffer(provider="aws", usd_per_hour=4.2, pricing="on_demand"), **changes)


def on_card(gpu_id: str, **changes: object) -> Plan:
    item = plan(**changes)
    return replace(item, hardware=replace(item.hardware, gpu_id=gpu_id))


ITEMS = {"two nodes": plan(num_nodes=2), "hostile name": named("a/b $(touch x) `y` 'z'\nexit 7", num_nodes=2)}

# -- Slurm -----------------------------------------------------------------------------------------------------------


@needs_bash
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_bash_parses_the_batch_script(item: Plan):
    subprocess.run([str(BASH), "-n"], input=slurm_script(item), text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_shellcheck_finds_nothing(item: Plan):
    subprocess.run(["shellcheck", "-"], input=slurm_script(item), text=True, check=True)
    task = yaml.safe_load(sky_text(item))
    for script in (task["setup"], task["run"]):
        subprocess.run(["shellcheck", "--shell=bash", "-"], input=script, text=True, check=True)


def test_slurm_is_asked_for_the_plans_nodes_and_gpus_before_any_command():
    lines = slurm_script(plan(num_gpus=8, num_nodes=3)).splitlines()
    asked = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH ")]
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
    assert yaml.safe_load(sky_text(hostile)).keys() == yaml.safe_load(sky_text(tame)).keys()
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*[a-z0-9]", job_name(hostile))


# -- SkyPilot --------------------------------------------------------------------------------------------------------


def test_cards_are_called_as_skypilot_calls_them():
    for gpu_id, name in SKYPILOT_ACCELERATORS.items():
        assert name in shipped_gpus()[gpu_id].provider_names
    assert set(SKYPILOT_CLOUDS.values()) <= CLOUDS


def test_a_task_has_only_keys_that_skypilot_knows():
    for item in (plan(), plan(num_nodes=2), plan(num_nodes=2, offer=rented(pricing="interruptible"))):
        task = yaml.safe_load(sky_text(item))
        assert task.keys() <= TASK_KEYS
        assert task["resources"].keys() <= RESOURCES_KEYS


def test_skypilot_itself_takes_the_task():
    sky = pytest.importorskip("sky")
    for item in (plan(), plan(num_nodes=2, offer=rented(pricing="interruptible"))):
        task = sky.Task.from_yaml_config(yaml.safe_load(sky_text(item)), env_overrides=[("TRAIN_DATA", "d.jsonl")])
        assert task.num_nodes == item.hardware.num_nodes
        (resources,) = task.resources
        assert resources.accelerators == {"A100-80GB": item.hardware.gpus_per_node}
        assert resources.use_spot is (item.offer.pricing == "interruptible")


def test_a_task_asks_for_the_machines_of_the_plan():
    task = yaml.safe_load(sky_text(plan(num_gpus=8, num_nodes=3, offer=rented(region="us-east-1"))))
    assert task["num_nodes"] == 3
    assert task["resources"]["accelerators"] == {"A100-80GB": 8}
    assert task["resources"]["infra"] == "aws/us-east-1"
    assert "use_spot" not in task["resources"]


@pytest.mark.parametrize(
    ("offer", "infra"),
    [
        (None, None),
        (rented(), "aws"),
        (rented(provider="digitalocean"), "do"),
        (rented(provider="lambda", region="Texas, USA"), "lambda"),
        (rented(provider="somebody"), None),
        (rented(region="$(touch x)"), "aws"),
    ],
)
def test_a_cloud_is_named_where_skypilot_rents_from_it(offer: PlannedOffer | None, infra: str | None):
    resources = yaml.safe_load(sky_text(plan(num_nodes=2, offer=offer)))["resources"]
    assert resources.get("infra") == infra


def test_large_checkpoints_get_a_disk_for_them():
    item = plan()
    item = replace(item, expected=replace(item.expected, checkpoint_bytes=700 * GIB, export_bytes=100 * GIB))
    disk = yaml.safe_load(sky_text(item))["resources"]["disk_size"]
    assert disk == 2 * 700 + 100 + -(-4 * item.num_params // GIB) + DISK_SPARE_GB


def test_a_task_is_written_for_rented_machines_and_for_several():
    assert has_sky_yaml(plan())
    assert not has_sky_yaml(plan(offer=None))
    assert not has_sky_yaml(plan(offer=rented(pricing="own")))
    assert has_sky_yaml(plan(num_nodes=2, offer=None))
    assert not has_sky_yaml(on_card("gtx-1080-ti", num_nodes=2))


def test_nothing_secret_is_written_and_data_are_asked_for():
    task = yaml.safe_load(sky_text(plan()))
    assert task["envs"] == {"TRAIN_DATA": None, "OUTPUT_DIR": "output"}
    assert not {"secrets", "file_mounts"} & task.keys()


def test_what_the_plan_was_checked_with_is_installed():
    item = plan()
    setup = yaml.safe_load(sky_text(item))["setup"]
    for name, version in item.versions.items():
        assert f"{name}=={version}" in setup


@needs_bash
def test_every_machine_runs_the_launch_script_with_its_rank(tmp_path):
    item = plan(num_nodes=2)
    write_files(item, tmp_path / "work")
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    (stand_ins / "deepspeed").write_text('#!/usr/bin/env bash\nprintf "%s " "$@"\n')
    (stand_ins / "deepspeed").chmod(0o755)
    machine = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin", "TRAIN_DATA": "d.jsonl", "OUTPUT_DIR": "output", **machine}
    run = yaml.safe_load((tmp_path / "work" / "sky.yaml").read_text())["run"]
    done = subprocess.run(
        [str(BASH), "-c", run], env=known, capture_output=True, text=True, check=True, cwd=tmp_path / "work"
    )
    assert "--no_ssh --node_rank 1 --master_addr 10.0.0.7 --master_port 29500 " in done.stdout
    assert done.stdout.endswith("--train-data d.jsonl --output-dir output ")


def test_plain_pytorch_on_a_rented_machine_needs_no_ranks():
    run = yaml.safe_load(sky_text(plan(Recipe(zero_stage=None), 1)))["run"]
    assert run == 'bash launch.sh --train-data "$TRAIN_DATA" --output-dir "$OUTPUT_DIR"\n'
