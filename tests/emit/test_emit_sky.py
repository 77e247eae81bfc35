"""sky.yaml: sound shell, keys that SkyPilot knows, only what it says a cloud can do, and runs that go on."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml
from emit_skypilot_keys import CLOUDS, RESOURCES_KEYS, TASK_KEYS
from hypothesis import given, settings
from hypothesis import strategies as st
from sky_plans import every_plan, named, on_card, rented, spot

from planned import shipped_gpus
from recipe_cases import plan
from vlmplan.emit import file_texts, write_files
from vlmplan.emit.sky import (
    CLOUD_ACCELERATORS,
    DISK_SPARE_GB,
    NUM_CHECKPOINTS,
    SKYPILOT_ACCELERATORS,
    SKYPILOT_CLOUDS,
    has_sky_yaml,
    is_for_skypilot,
    sky_problem,
    sky_text,
)
from vlmplan.emit.wheel import wheel_name
from vlmplan.plan import Plan, PlannedOffer, plan_from_json, read_plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.units import GIB

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash")
ITEMS = {
    "one node": plan(),
    "two nodes": plan(num_nodes=2, offer=rented(provider="gcp")),
    "spot": plan(offer=spot()),
    "spot on two nodes": plan(num_nodes=2, offer=spot()),
    "flash attention": plan(Recipe(zero_stage=2, attention=AttentionImplementation.FLASH_ATTENTION_2)),
    "hostile name": named("a/b $(touch x) `y` 'z'\nexit 7", num_nodes=2, offer=spot()),
}


def task_of(item: Plan) -> dict:
    return yaml.safe_load(sky_text(item))


def run_task(item: Plan, folder: Path, **known: str) -> list[str]:
    """The words that the task's ``run`` starts beside its files, caught by stand-ins; the bucket is a folder here."""
    work, stand_ins = folder / "work", folder / "bin"
    write_files(item, work, force=True)
    stand_ins.mkdir(exist_ok=True)
    for name in ("deepspeed", "python", "vlmplan"):
        (stand_ins / name).write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$(basename "$0")" "$@"\n')
        (stand_ins / name).chmod(0o755)
    with mock.patch("vlmplan.emit.sky.BUCKET_FOLDER", str(folder / "bucket")):
        task = task_of(item)
    envs = {name: value for name, value in task["envs"].items() if value is not None}
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin", "TRAIN_DATA": "d.jsonl", **envs, **known}
    command = [str(BASH), "-c", task["run"]]
    done = subprocess.run(command, env=known, capture_output=True, text=True, cwd=work)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_bash
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_bash_parses_the_scripts(item: Plan):
    for name in ("setup", "run"):
        subprocess.run([str(BASH), "-n"], input=task_of(item)[name], text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_shellcheck_finds_nothing(item: Plan):
    for name in ("setup", "run"):
        subprocess.run(["shellcheck", "--shell=bash", "-"], input=task_of(item)[name], text=True, check=True)


@pytest.mark.sweep
@settings(max_examples=60)
@given(name=st.text(min_size=1, max_size=60), provider=st.text(max_size=30))
def test_no_name_adds_a_key_or_a_line_of_shell(name: str, provider: str):
    for offer in (rented(provider=provider), spot(provider)):
        tame, hostile = task_of(plan(num_nodes=2, offer=offer)), task_of(named(name, num_nodes=2, offer=offer))
        assert hostile.keys() == tame.keys()
        assert [hostile[script] for script in ("setup", "run")] == [tame[script] for script in ("setup", "run")]


def test_cards_are_called_as_skypilot_calls_them():
    for gpu_id, name in SKYPILOT_ACCELERATORS.items():
        assert name in shipped_gpus()[gpu_id].provider_names
    assert set(SKYPILOT_CLOUDS.values()) <= CLOUDS


def test_a_task_has_only_keys_that_skypilot_knows():
    for item in (plan(), plan(num_nodes=2), plan(num_nodes=2, offer=rented(pricing="interruptible"))):
        task = yaml.safe_load(sky_text(item))
        assert task.keys() <= TASK_KEYS
        assert task["resources"].keys() <= RESOURCES_KEYS


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
        (spot(region="us-east4"), "gcp"),
    ],
)
def test_a_cloud_is_named_where_skypilot_rents_from_it(offer: PlannedOffer | None, infra: str | None):
    resources = yaml.safe_load(sky_text(plan(num_nodes=2, offer=offer)))["resources"]
    assert resources.get("infra") == infra


@pytest.mark.parametrize(("step_seconds", "num_at_once"), [(1, 1), (360, 3)])
def test_large_checkpoints_get_a_disk_for_all_that_are_there_at_once(step_seconds: int, num_at_once: int):
    item = plan()
    sizes = {"checkpoint_bytes": 700 * GIB, "export_bytes": 100 * GIB}
    item = replace(item, expected=replace(item.expected, **sizes, num_steps=100, step_seconds=step_seconds))
    disk = yaml.safe_load(sky_text(item))["resources"]["disk_size"]
    result = 100 if num_at_once == 1 else 0  # beside one fewer, which is less than all of them
    assert disk == num_at_once * 700 + result + -(-4 * item.num_params // GIB) + DISK_SPARE_GB


def test_a_task_is_written_for_rented_machines_and_for_several():
    assert has_sky_yaml(plan())
    assert not has_sky_yaml(plan(offer=None))
    assert not has_sky_yaml(plan(offer=rented(pricing="own")))
    assert has_sky_yaml(plan(num_nodes=2, offer=None))
    assert not has_sky_yaml(on_card("gtx-1080-ti", num_nodes=2))


def test_a_clouds_own_name_of_a_card_is_one_that_the_catalog_knows():
    for names in CLOUD_ACCELERATORS.values():
        for gpu_id, name in names.items():
            assert gpu_id in SKYPILOT_ACCELERATORS
            assert name.split("-")[0] in {known.split("-")[0] for known in shipped_gpus()[gpu_id].provider_names}
    item = on_card("h100-sxm", offer=rented(provider="runpod"))
    assert task_of(item)["resources"]["accelerators"] == {"H100-SXM": 4}
    assert task_of(on_card("h100-pcie", offer=rented(provider="runpod")))["resources"]["accelerators"] == {"H100": 4}


# -- only what a cloud can do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["runpod", "verda", "vast"])
def test_several_machines_are_not_asked_of_who_starts_one_at_a_time(provider: str):
    assert has_sky_yaml(plan(offer=rented(provider=provider)))
    item = plan(num_nodes=2, offer=rented(provider=provider))
    assert not has_sky_yaml(item)
    assert f"one machine at a time on {provider}" in str(sky_problem(item))
    assert "sky.yaml" not in file_texts(item)


@pytest.mark.parametrize("provider", ["lambda", "azure", "nebius", "digitalocean", "somebody"])
def test_a_fast_network_is_not_asked_of_who_has_none(provider: str):
    assert "network_tier" not in task_of(plan(num_nodes=2, offer=rented(provider=provider)))["resources"]


def test_a_fast_network_is_asked_for_between_machines_of_who_has_one():
    for provider in ("aws", "gcp"):
        assert task_of(plan(num_nodes=2, offer=rented(provider=provider)))["resources"]["network_tier"] == "best"
        assert "network_tier" not in task_of(plan(offer=rented(provider=provider)))["resources"]
    for count, tier in ((8, "best"), (4, None)):
        item = on_card("h200-sxm", num_gpus=count, num_nodes=2, offer=rented(provider="nebius"))
        assert task_of(item)["resources"].get("network_tier") == tier


@pytest.mark.parametrize("provider", ["verda", "vast", "runpod"])
def test_where_no_bucket_can_be_mounted_no_machine_that_may_be_taken_away_is_rented(provider: str):
    problem = str(sky_problem(plan(offer=spot(provider))))
    assert f"mounts no bucket on {provider}" in problem
    for able in ("aws", "azure", "gcp", "nebius"):
        assert able in problem.partition("it does on")[2]
        assert has_sky_yaml(plan(offer=spot(able)))


@pytest.mark.parametrize("provider", ["lambda", "digitalocean", "paperspace"])
def test_no_machine_that_may_be_taken_away_is_asked_of_who_has_none(provider: str):
    assert "rents no machines" in str(sky_problem(plan(offer=spot(provider))))


def test_a_card_without_a_name_is_said():
    assert sky_problem(on_card("gtx-1080-ti")) == "SkyPilot's name of gtx-1080-ti is not known here"


def test_there_is_a_task_or_a_reason_why_not():
    for item in every_plan():
        assert is_for_skypilot(item)
        assert has_sky_yaml(item) is (sky_problem(item) is None)


# -- a machine that may be taken away --------------------------------------------------------------------------------


def test_a_machine_that_may_be_taken_away_has_a_bucket_and_is_a_managed_job():
    item = plan(offer=spot())
    task = task_of(item)
    assert task["resources"]["use_spot"] is True
    assert task["resources"]["job_recovery"] == "EAGER_NEXT_REGION"
    assert task["file_mounts"] == {"/checkpoints": {"name": "${BUCKET}", "mode": "MOUNT_CACHED"}}
    assert task["envs"]["BUCKET"] is None
    assert task["envs"]["OUTPUT_DIR"].startswith("/checkpoints/")
    assert "sky jobs launch sky.yaml --env TRAIN_DATA=data.jsonl --env BUCKET=NAME" in sky_text(item)
    stays = plan(offer=rented())
    assert not {"file_mounts"} & task_of(stays).keys()
    assert "sky jobs" not in sky_text(stays)


@pytest.mark.sweep
@needs_bash
def test_a_task_is_given_what_the_plan_evaluates(tmp_path: Path):
    item = plan(Recipe(micro_batch=3, evaluation=Evaluation(batch=2)), offer=spot())
    assert task_of(item)["envs"].keys() >= {"TRAIN_DATA", "EVAL_DATA"}
    assert "--env TRAIN_DATA=data.jsonl --env EVAL_DATA=held-out.jsonl" in sky_text(item)
    words = run_task(item, tmp_path, EVAL_DATA="e.jsonl")
    assert words[words.index("--eval-data") + 1] == "e.jsonl"
    texts = file_texts(item)
    assert all("--train-data FILE --eval-data FILE" in texts[name] for name in ("launch.sh", "job.slurm"))


def test_several_machines_see_each_others_files_in_the_bucket():
    assert task_of(plan(num_nodes=2, offer=spot()))["file_mounts"]["/checkpoints"]["mode"] == "MOUNT"


@needs_bash
def test_a_run_on_a_machine_that_may_be_taken_away_saves_and_goes_on(tmp_path: Path):
    words = run_task(plan(offer=spot()), tmp_path)
    options = dict(zip(words[2:-1:2], words[3::2], strict=False))
    assert words[:2] == ["vlmplan", "launch"]
    assert words[-1] == "--resume"
    assert options["--save-every"] == "37"
    assert options["--plan"] == "plan.json"
    assert options["--output-dir"] == f"{tmp_path}/bucket/run"


@pytest.mark.sweep
@needs_bash
def test_machines_that_may_be_taken_away_go_on_from_a_checkpoint_where_there_is_one(tmp_path: Path):
    item = plan(num_nodes=2, offer=spot())
    rank = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    bucket = tmp_path / "bucket"
    first = run_task(item, tmp_path, **rank)
    assert first[-2:] == ["--save-every", "37"]
    assert "--node_rank" in first
    unfinished = bucket / "checkpoints" / "step-00000074"
    unfinished.mkdir(parents=True)
    assert run_task(item, tmp_path, **rank)[-1] == "37"
    (unfinished / "complete.json").write_text("{}")
    shutil.rmtree(tmp_path / "work")  # another machine
    (tmp_path / "work" / "output").mkdir(parents=True)
    (tmp_path / "work" / "output" / "report.json").write_text("{}")
    assert run_task(item, tmp_path, **rank)[-1] == "--resume"
    assert (bucket / "result" / "report.json").is_file()
    assert not (bucket / "result" / "checkpoints").exists()
    assert (unfinished / "complete.json").is_file()


def test_how_often_to_save_is_the_plans_word_else_a_part_of_the_run():
    silent = replace(spot(), save_every_steps=None)
    item = plan(offer=silent)
    steps = max(1, item.expected.num_steps // NUM_CHECKPOINTS)
    assert f"--save-every {steps} " in task_of(item)["run"]


@pytest.mark.sweep
def test_how_often_to_save_goes_with_the_plan_and_old_plans_say_nothing_of_it(tmp_path: Path):
    item = plan(offer=spot())
    write_files(item, tmp_path)
    assert read_plan(tmp_path / "plan.json").offer.save_every_steps == 37
    values = json.loads((tmp_path / "plan.json").read_text())
    del values["offer"]["save_every_steps"]
    assert plan_from_json(values).offer.save_every_steps is None


# -- what is installed -----------------------------------------------------------------------------------------------


def test_nothing_secret_is_written_and_data_are_asked_for():
    task = task_of(plan())
    assert task["envs"] == {"TRAIN_DATA": None, "OUTPUT_DIR": "output"}
    assert "secrets" not in task


def test_what_the_plan_was_checked_with_is_installed():
    item = plan()
    for name, version in item.versions.items():
        assert f"{name}=={version}" in task_of(item)["setup"]
    assert "flash-attn" not in task_of(item)["setup"]
    assert "flash-attn" in task_of(ITEMS["flash attention"])["setup"]


@pytest.mark.sweep
@needs_bash
def test_vlmplan_comes_from_the_wheel_beside_the_task_and_from_no_index(tmp_path: Path):
    item = plan()
    write_files(item, tmp_path / "work")
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    (stand_ins / "pip").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    (stand_ins / "pip").chmod(0o755)
    known = {"PATH": f"{stand_ins}:/usr/bin:/bin"}
    command = [str(BASH), "-c", task_of(item)["setup"]]
    words = subprocess.run(command, env=known, capture_output=True, text=True, cwd=tmp_path / "work").stdout.split()
    assert words[:2] == ["install", f"./{wheel_name()}[train]"]
    assert not [word for word in words if word.startswith("vlmplan")]
    (tmp_path / "work" / wheel_name()).unlink()
    done = subprocess.run(command, env=known, capture_output=True, text=True, cwd=tmp_path / "work")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{wheel_name()} is not in this folder" in done.stderr


# -- every machine ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@needs_bash
def test_every_machine_runs_the_launch_script_with_its_rank(tmp_path: Path):
    machine = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8"}
    words = run_task(plan(num_nodes=2, offer=rented()), tmp_path, **machine)
    assert "--no_ssh --node_rank 1 --master_addr 10.0.0.7 --master_port 29500" in " ".join(words)
    assert words[-4:] == ["--train-data", "d.jsonl", "--output-dir", "output"]


def test_plain_pytorch_on_a_rented_machine_needs_no_ranks():
    run = task_of(plan(Recipe(zero_stage=None), 1))["run"]
    assert run == 'bash launch.sh --train-data "$TRAIN_DATA" --output-dir "$OUTPUT_DIR"\n'
