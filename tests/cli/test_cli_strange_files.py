"""Pipes, devices and endless files wherever a file is named: one sentence at once, no waiting, no memory."""

import os
from pathlib import Path

import pytest

from cli_calls import DONE, TINY, call, folder_of, refusal, says

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and devices in the file system")
ESTIMATE = ("estimate", "--model", "smollm2-135m", "--gpu", "rtx-4090:2")
LAUNCH = ("launch", "--model", "smollm2-135m", "--gpu", "cpu:1", "--output-dir", "out", "--dry-run")
PLACES = {
    "--ds-config": ESTIMATE,
    "--catalog": ESTIMATE,
    "--sample-lengths": ESTIMATE,
    "--plan": ("launch", "--output-dir", "out", "--dummy-data", "9"),
    "--curriculum": ("launch", "--model", "smollm2-135m", "--output-dir", "out"),
    "--train-data": LAUNCH,
    "--eval-data": (*LAUNCH, "--dummy-data", "99"),
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("option", PLACES)
def test_options_take_regular_files_only(option: str, kind: str):
    path = "/dev/zero"
    if kind == "pipe":
        os.mkfifo("pipe")
        path = "pipe"
    found = call(*PLACES[option], option, path)
    assert found.code == 1
    says(found.err, path, f"it is a {kind}, and only regular files are read")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_model_files_are_regular_ones(name: str):
    folder = folder_of("model", TINY)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    says(refusal("estimate", "--model", "./model", "--gpu", "rtx-4090"), name, "only regular files are read")


@pytest.mark.parametrize("place", ["vlmplan_catalog.yaml", "../config/vlmplan/gpu_catalog.yaml"])
def test_pipe_in_the_place_of_a_catalog_that_nobody_named_is_passed_by(place: str):
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(place)
    assert call(*ESTIMATE).code == DONE


def test_a_plan_of_a_run_that_is_no_file_is_named():
    Path("out").mkdir()
    os.mkfifo("out/plan.json")
    says(refusal("launch", "--output-dir", "out", "--resume", "--dummy-data", "9"), "out/plan.json", "it is a pipe")


ADAPTER = ("launch", "--model", "smollm2-135m", "--gpu", "cpu:1", "--method", "lora", "--dummy-data", "9", "--dry-run")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_weights_of_an_adapter_are_a_regular_file(name: str):
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    os.mkfifo(f"adapter/{name}")
    found = call(*ADAPTER, "--adapter", "adapter", "--output-dir", "out")
    assert found.code == 1
    says(found.err, f"--adapter adapter: {name} cannot be read: it is a pipe, and only regular files are read")


def test_an_adapter_without_weights_is_refused():
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text("{}")
    found = call(*ADAPTER, "--adapter", "adapter", "--output-dir", "out")
    assert found.code == 1
    says(found.err, "adapter has no adapter_model.safetensors or adapter_model.bin")
