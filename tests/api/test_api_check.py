"""``vlmplan.check`` and ``vlmplan.read_config`` answer what ``vlmplan check`` does."""

import json
from pathlib import Path

import pytest

import vlmplan
from cli_calls import call

YAML = """
model_name_or_path: gpt2
per_device_train_batch_size: 2
use_peft: true
lora_r: 8
lora_target_modules: all-linear
bf16: true
max_length: 512
logging_steps: 5
"""


@pytest.fixture
def config() -> Path:
    path = Path("sft.yaml")
    path.write_text(YAML)
    return path


def test_a_check_is_that_of_the_command_line(config):
    found = vlmplan.check(config, "rtx-4090", micro_batch=4)
    words = ["check", str(config), "--gpu", "rtx-4090", "--micro-batch", "4"]
    assert json.dumps(found.as_dict(), indent=2) == call(*words, "--json").out.rstrip("\n")
    assert str(found) == call(*words).out
    assert found.fits
    assert found.estimate is not None
    assert found.estimate.recipe["lora_rank"] == 8
    assert found.config == vlmplan.read_config(config, "rtx-4090")


def test_a_configuration_says_what_was_read_and_the_arguments_that_mean_it(config):
    found = vlmplan.read_config(config)
    assert found.trainer.startswith("TRL")
    assert found.said["lora_r"] == "8"
    assert found.without_effect == ("logging_steps",)
    assert found.options["model"] == "gpt2"
    assert found.options["lora_rank"] == 8
    same = vlmplan.estimate(**found.options, gpu="rtx-4090")
    assert same.phases == vlmplan.estimate(config=config, gpu="rtx-4090").phases


def test_a_model_beside_the_file_wins(config):
    given = json.loads((Path(vlmplan.__file__).parent / "data/models/llama-3.2-1b/config.json").read_text())
    found = vlmplan.check(config, "rtx-4090", model={**given, "_name_or_path": "mine"})
    assert found.estimate is not None
    assert found.estimate.model == "mine"


def test_without_a_gpu_there_is_no_estimate(config, monkeypatch):
    monkeypatch.setattr("vlmplan.commands.check._has_gpu", lambda request: bool(request.hardware.gpus))
    found = vlmplan.check(config)
    assert (found.estimate, found.fits) == (None, None)


def test_what_cannot_be_read_is_refused_in_the_words_of_python(config):
    config.write_text("per_device_train_batch_size: 2\nlearning_rate: 1e-4\n")
    with pytest.raises(vlmplan.InputError, match=r"sft\.yaml names no model; give model$"):
        vlmplan.read_config(config)
    with pytest.raises(vlmplan.UnavailableError, match=r"none\.yaml does not exist"):
        vlmplan.check("none.yaml")
