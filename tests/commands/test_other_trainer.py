"""``recommend --for``: what is recommended for another trainer is what ``check`` says of the files that are written."""

import ast
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_calls import DOES_NOT_FIT, DONE, TINY, call, folder_of, refusal, says
from vlmplan.models import find_model
from vlmplan.other_trainers.writing import Tool, objection
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import SEARCHED_METHODS
from vlmplan.recipe.from_json import recipe_from_json

TRAINERS = ("trl", "transformers", "llamafactory", "ms-swift", "axolotl")
SETUPS = [
    (trainer, method, stage)
    for trainer in TRAINERS
    for method in ("full", "lora", "qlora")
    for stage in ("none", "0", "1", "2", "3")
    if (method, stage) != ("qlora", "3")
]
BESIDE = (
    *("caveats", "notes", "freeze_vision", "to_fit", "with_more_host", "other_machine", "recipe", "model"),
    "reserved_with_room_bytes",
)
"""Of an estimate's document what depends on how it was asked for."""


def recommended(*words: str) -> dict[str, Any]:
    found = call("recommend", "--json", "--gpu", "rtx-4090:2", "--out", "out", *words)
    assert found.code in (0, DOES_NOT_FIT), found.err
    return found.document


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in BESIDE}


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("trainer", "method", "stage"), SETUPS)
def test_check_of_the_written_file_is_the_recommendation_to_the_byte(trainer, method, stage):
    words = ["--for", trainer, "--model", "smolvlm-256m", "--method", method, "--zero-stage", stage]
    words += [] if method == "full" else ["--lora-rank", "8"]
    answer = recommended(*words, "--image-size", "640x480", "--num-samples", "777")
    made, estimate = answer["made_for"], answer["plans"][0]["estimate"]
    check = shlex.split(made["check"])
    assert check[:2] == ["vlmplan", "check"]
    checked = call(*check[1:], "--json").document["estimate"]
    assert numbers(checked) == numbers(estimate)
    assert all(Path(name).is_file() for name in made["files"])
    assert (made["ds_config"] is None) == (stage == "none")


@pytest.mark.sweep
@pytest.mark.parametrize("trainer", TRAINERS)
def test_nothing_is_recommended_that_the_trainer_cannot_do(trainer):
    model = find_model("smolvlm-256m")
    recipes = [recipe_from_json(plan) for plan in plans_of(recommended("--for", trainer, "--model", model.id))]
    assert {recipe.method for recipe in recipes} == set(SEARCHED_METHODS)
    assert [objection(Tool(trainer), recipe, model) for recipe in recipes] == [None] * len(recipes)
    losses = {"trl": "trl"}
    assert {recipe.loss.value for recipe in recipes} == {losses.get(trainer, "model")}


def plans_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    names = {item.name for item in fields(Recipe)}
    return [{name: value for name, value in plan["recipe"].items() if name in names} for plan in answer["plans"]]


def test_an_option_that_the_trainer_does_not_have_is_refused_with_the_reason():
    asked = ("--model", "smolvlm-256m", "--gpu", "rtx-4090")
    for words, parts in (
        (("--for", "llamafactory", "--loss", "chunked"), ("LLaMA-Factory 0.9.5", "no loss in chunks")),
        (("--for", "trl", "--loss", "full"), ("TRL 1.16.0", "fused")),
        (("--for", "trl", "--freeze-vision"), ("TRL 1.16.0", "freezes no part")),
        (("--for", "ms-swift", "--loss", "chunked"), ("ms-swift 4.6.0", "all logits at once")),
        (("--for", "axolotl", "--method", "lora", "--freeze-vision"), ("axolotl 0.19.0", "freeze_mm_modules")),
    ):
        for command in ("recommend", "estimate"):
            says(refusal(command, *asked, *words), *parts)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("option", ["--no-activation-checkpointing", "--no-vision-activation-checkpointing"])
def test_checkpoints_that_are_left_off_of_one_part_are_left_off_of_both_where_the_trainer_ties_them(trainer, option):
    gpu = ("--gpu", "a100-sxm4-80gb:1")
    answer = call("recommend", "--json", "--model", "qwen2-vl-2b", *gpu, "--for", trainer, "--method", "lora", option)
    assert answer.code == 0, answer.err
    for recipe in plans_of(answer.document):
        if trainer in ("trl", "transformers", "axolotl"):
            assert recipe["activation_checkpointing"] is recipe["vision_activation_checkpointing"] is False


def test_the_loss_and_the_types_of_an_estimate_are_the_trainers():
    asked = ("estimate", "--json", "--model", "qwen2.5-0.5b", "--gpu", "rtx-4090", "--method", "full")
    setups = {trainer: call(*asked, "--for", trainer).document["recipe"] for trainer in TRAINERS}
    assert {trainer: setup["loss"] for trainer, setup in setups.items()} == dict.fromkeys(TRAINERS, "model") | {
        "trl": "trl"
    }
    types = dict.fromkeys(TRAINERS, "model") | {"trl": "float32", "llamafactory": "table"}
    assert {trainer: setup["weight_dtype"] for trainer, setup in setups.items()} == types


def test_files_are_not_overwritten_unless_forced():
    words = ("recommend", "--for", "trl", "--model", "smollm2-135m", "--gpu", "rtx-4090", "--out", "out")
    assert call(*words).code == 0
    kept = Path("out/train.yaml").read_text(encoding="utf-8")
    Path("out/train.sh").unlink()
    says(refusal(*words), "out/train.yaml")
    assert Path("out/train.yaml").read_text(encoding="utf-8") == kept
    assert not Path("out/train.sh").exists()
    assert call(*words, "--force").code == 0
    assert Path("out/train.sh").stat().st_mode & 0o111


def test_what_no_plan_knows_is_named_in_the_file_and_in_the_answer():
    found = call("recommend", "--for", "llamafactory", "--model", "smollm2-135m", "--gpu", "rtx-4090", "--out", "out")
    lines = Path("out/train.yaml").read_text(encoding="utf-8").splitlines()
    for key in ("dataset", "template"):
        assert any(line.startswith(f"{key}: YOUR_{key.upper()}  # fill in: ") for line in lines)
        assert f"fill in: {key} in out/train.yaml: " in found.out
    assert "train with: bash out/train.sh" in found.out


@pytest.mark.sweep
def test_a_plan_that_launch_refuses_leads_to_the_trainer_that_trains_it():
    Path("train.yaml").write_text("model_name_or_path: smollm2-135m\nstage: sft\nbf16: true\n", encoding="utf-8")
    for out in ((), ("--out", "out")):
        found = call("recommend", "--config", "train.yaml", "--gpu", "rtx-4090", *out).out
        says(found, "vlmplan launch refuses this plan", "LLaMA-Factory 0.9.5 trains it: --for llamafactory --out DIR")
        assert "train with" not in found
        assert "add --out" not in found
    own = call("recommend", "--model", "smollm2-135m", "--gpu", "rtx-4090", "--out", "own").out
    assert "train with: bash own/launch.sh" in own


def test_a_configuration_of_another_trainer_is_not_written_as_this_ones():
    Path("train.yaml").write_text("model_name_or_path: smollm2-135m\nstage: sft\nbf16: true\n", encoding="utf-8")
    words = ("recommend", "--config", "train.yaml", "--gpu", "rtx-4090", "--for")
    says(refusal(*words, "trl"), "train.yaml is a configuration of LLaMA-Factory 0.9.5", "TRL 1.16.0")
    assert call(*words, "llamafactory", "--out", "out").code == 0
    assert yaml.safe_load(Path("out/train.yaml").read_text(encoding="utf-8"))["finetuning_type"] == "lora"


def test_a_model_in_a_folder_is_found_from_the_folder_of_the_files():
    folder_of("a model", TINY)
    answer = recommended("--for", "ms-swift", "--model", "a model")
    settings = answer["made_for"]["settings"]
    assert settings["model"] == str(Path("a model").resolve())
    assert "'a model" not in Path("out/train.sh").read_text(encoding="utf-8").splitlines()[-1]


def test_the_script_around_the_trainer_loads_what_is_planned():
    words = ("--model", "smolvlm-256m", "--images-per-sample", "0", "--method", "qlora", "--lora-targets", "q_proj")
    recommended("--for", "transformers", *words, "--seq-len", "210")
    tree = ast.parse(Path("out/train.py").read_text(encoding="utf-8"))
    said = {node.targets[0].id: ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)}
    assert ast.literal_eval(said["LORA"])["target_modules"] == ["q_proj"]
    assert (said["MAX_LENGTH"], said["BITS"], said["DTYPE"]) == ("210", "4", "torch.bfloat16")
    loaded = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "AutoModelForImageTextToText" in loaded  # the model sees, whether or not its samples have images


@pytest.mark.parametrize("trainer", ["trl", "llamafactory", "ms-swift", "axolotl"])
def test_packed_rows_are_recommended_as_check_reads_them(trainer):
    """Of the samples in a row no key tells, and LLaMA-Factory packs a single row at a time."""
    words = ("--for", trainer, "--model", "qwen2.5-0.5b", "--method", "lora", "--attention", "flash_attention_2")
    answer = recommended(*words, "--batching", "packed", "--sample-len", "200")
    estimate = answer["plans"][0]["estimate"]
    checked = call(*shlex.split(answer["made_for"]["check"])[1:], "--json").document["estimate"]
    assert numbers(checked) == numbers(estimate)
    assert estimate["recipe"]["batching"] == "packed"


def test_check_knows_the_host_memory_of_the_machine_that_was_chosen():
    words = ("--for", "trl", "--model", "qwen2.5-3b", "--method", "full", "--gpu", "l4:2", "--out", "out")
    answer = call("recommend", "--json", *words).document
    check, plan = shlex.split(answer["made_for"]["check"]), answer["plans"][0]
    assert check[-2:] == ["--host-ram", f"{plan['offer']['host_ram_bytes'] / 2**30:g}"]
    checked = call(*check[1:], "--json").document["estimate"]
    assert checked["resume"] == plan["estimate"]["resume"]
    assert not checked["resume"]["fits"]


@pytest.mark.parametrize("every", ["epoch", "end", "7", "0.25"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_written_is_evaluated_as_often_as_it_is_planned(trainer: str, every: str):
    """axolotl evaluates before the first step and LLaMA-Factory behind the last, whatever is asked for."""
    words = ("--model", "smollm2-135m", "--gpu", "l4", "--method", "lora", "--num-samples", "400", "--epochs", "2")
    asked = ("--eval-batch", "2", "--eval-samples", "50", "--eval-every", every)
    found = call("recommend", *words, *asked, "--for", trainer, "--out", f"{trainer}-{every}", "--json")
    if found.code != DONE:
        assert trainer in found.err.lower(), found.err  # no moment of its own
        return
    (plan, *_), again = found.document["plans"], call(*shlex.split(found.document["made_for"]["check"])[1:], "--json")
    assert again.document["estimate"]["evaluation"] == plan["estimate"]["evaluation"]


@pytest.mark.parametrize(
    ("trainer", "option"), [("axolotl", "--no-eval-on-start"), ("llamafactory", "--no-eval-after-training")]
)
def test_an_evaluation_that_a_trainer_does_in_any_case_is_not_left_out(trainer: str, option: str):
    words = ("--model", "smollm2-135m", "--gpu", "l4", "--method", "lora", "--for", trainer)
    says(refusal("estimate", *words, "--eval-batch", "2", option), "evaluates then in any case", f"leave {option} off")
