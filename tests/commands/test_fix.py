"""``vlmplan check --fix``: the smallest change of a trainer's own file, shown and written."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli_calls import DOES_NOT_FIT, DONE, FEW_LAYERS, MENDABLE, USAGE, call
from vlmplan.units import gib_text

TEXT = """### model
model_name_or_path: ./small   # a folder

### method
stage: sft
finetuning_type: lora
cutoff_len: 2048

### train
per_device_train_batch_size: 8  # per GPU
gradient_accumulation_steps: 2
bf16: true
output_dir: 'saves'
"""
GPU = ("--gpu", "rtx-3060-12gb:1")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small").mkdir()
    Path("small/config.json").write_text(json.dumps(FEW_LAYERS), encoding="utf-8")
    Path("train.yaml").write_text(TEXT, encoding="utf-8")


def fix(*words: str) -> Any:
    return call("check", "train.yaml", *GPU, "--fix", *words)


def test_a_batch_of_evaluation_is_made_smaller_and_nothing_of_training_is_changed():
    evaluated = TEXT.replace("_train_batch_size: 8", "_train_batch_size: 1").replace(
        "cutoff_len: 2048", "cutoff_len: 512"
    )
    text = evaluated + "\n### eval\nval_size: 0.1\neval_strategy: steps\nper_device_eval_batch_size: 256\n"
    Path("train.yaml").write_text(text, encoding="utf-8")
    document = fix("--json").document
    assert document["estimate"]["peak_phase"] == "evaluation"
    (change,) = document["fix"][0]["changes"]
    assert (change["key"], change["before"]) == ("per_device_eval_batch_size", 256)
    assert 0 < change["after"] < 256
    assert document["fix"][0]["keeps_results"] is True


def test_what_is_written_fits_with_what_was_promised_and_keeps_the_rest():
    found = fix("--write", "new.yaml", "--json")
    assert found.code == DONE
    document = found.document
    first = document["fix"][0]
    assert document["written"] == ["new.yaml"]
    again = call("check", "new.yaml", *GPU, "--json")
    assert again.code == DONE
    estimate = again.document["estimate"]
    assert estimate["verdict"] == "fits"
    assert estimate["peak_device_bytes"] == first["costs"]["device_bytes"]["after"]
    assert estimate["step_seconds"] == first["costs"]["step_seconds"]["after"]
    assert document["estimate"]["peak_device_bytes"] == first["costs"]["device_bytes"]["before"]
    batch = {change["key"]: change for change in first["changes"]}
    size, accumulation = batch["per_device_train_batch_size"], batch["gradient_accumulation_steps"]
    assert (size["file"], size["before"], accumulation["before"]) == ("new.yaml", 8, 2)
    assert size["after"] * accumulation["after"] == 8 * 2
    assert estimate["recipe"]["micro_batch"] * estimate["recipe"]["grad_accum"] == 8 * 2
    old, new = TEXT.splitlines(), Path("new.yaml").read_text(encoding="utf-8").splitlines()
    assert f"per_device_train_batch_size: {size['after']}  # per GPU" in new
    assert [line for line in old if "_batch_size" not in line and "_steps" not in line] == [
        line for line in new if "_batch_size" not in line and "_steps" not in line
    ]
    assert Path("train.yaml").read_text(encoding="utf-8") == TEXT
    if shutil.which("patch") is not None:
        subprocess.run(["patch", "-p0", "train.yaml"], input=first["diff"], text=True, check=True, capture_output=True)
        assert Path("train.yaml").read_bytes() == Path("new.yaml").read_bytes()


@pytest.mark.sweep
def test_people_see_the_verdict_the_diff_and_what_it_costs_and_a_link_is_followed():
    Path("link.yaml").symlink_to("linked.yaml")
    Path("linked.yaml").write_text("old", encoding="utf-8")
    os.chmod("train.yaml", 0o750)
    found = fix("--write", "link.yaml", "--force")
    assert found.code == DONE
    assert Path("link.yaml").is_symlink()
    assert "per_device_train_batch_size: 8" not in Path("linked.yaml").read_text(encoding="utf-8")
    assert Path("linked.yaml").stat().st_mode & 0o777 == 0o750
    for words in (
        "does not fit: ",
        "-per_device_train_batch_size: 8  # per GPU",
        "this change: per_device_train_batch_size 8 -> ",
        "results: 16 samples a step as before, so learning_rate means the same",
        "link.yaml is written",
    ):
        assert words in found.out
    assert Path("train.yaml").read_text(encoding="utf-8") == TEXT


def test_where_it_cannot_be_written_nothing_is():
    itself = fix("--write", "train.yaml")
    assert (itself.code, itself.err) == (MENDABLE, "vlmplan: train.yaml exists already; --force overwrites it\n")
    folder = fix("--write", ".")
    assert (folder.code, folder.err) == (MENDABLE, "vlmplan: . is a folder, so no file can be written there\n")
    Path("kept.yaml").write_text("kept", encoding="utf-8")
    os.chmod("kept.yaml", 0o444)
    kept = fix("--write", "kept.yaml", "--force")
    assert kept.code == MENDABLE
    assert kept.err.startswith("vlmplan: kept.yaml is read-only; ")
    assert Path("kept.yaml").read_text(encoding="utf-8") == "kept"


def test_options_that_mean_nothing_alone_are_refused():
    for words, said in ((("--write", "x"), "--write goes with --fix"), (("--fix", "--force"), "--force goes with")):
        found = call("check", "train.yaml", *GPU, *words)
        assert found.code == USAGE
        assert said in found.err


@pytest.mark.sweep
def test_an_anchored_value_is_not_changed_for_two_keys_at_once():
    text = TEXT.replace("size: 8", "size: &size 8").replace("steps: 2", "steps: *size")
    Path("train.yaml").write_text(text, encoding="utf-8")
    found = fix()
    assert (found.code, found.out, found.err.count("\n")) == (MENDABLE, "", 1)
    assert "per_device_train_batch_size is that of gradient_accumulation_steps too, by an anchor" in found.err


@pytest.mark.sweep
def test_where_nothing_helps_the_cheapest_other_machine_is_said():
    Path("train.yaml").write_text(TEXT.replace("./small", "qwen2.5-72b"), encoding="utf-8")
    found = fix("--write", "new.yaml")
    assert found.code == DOES_NOT_FIT
    assert "none of the changes that were tried is enough" in found.out
    assert "Cheapest other machine: " in found.out
    assert "new.yaml is not written: there is nothing to change" in found.out
    assert not Path("new.yaml").exists()


@pytest.mark.sweep
def test_check_names_the_change_of_the_file_that_fix_shows_first():
    shown, fixed = call("check", "train.yaml", *GPU), fix()
    line = next(line for line in fixed.out.splitlines() if line.startswith("this change: "))
    change = line.removeprefix("this change: ")
    said = next(line for line in shown.out.splitlines() if line.startswith("To fit on "))
    assert f"1 x GeForce RTX 3060 12GB: {change}; " in said
    document = call("check", "train.yaml", *GPU, "--json").document
    assert document["fix"] == fix("--json").document["fix"]
    assert gib_text(document["fix"][0]["costs"]["device_bytes"]["after"]) in said
    assert "to fit: vlmplan estimate" not in shown.out
    assert "--fix --write FILE writes it" in shown.out


def test_check_of_a_file_that_fits_looks_for_no_change():
    Path("train.yaml").write_text(TEXT.replace("batch_size: 8", "batch_size: 1"), encoding="utf-8")
    assert call("check", "train.yaml", "--gpu", "a100-sxm4-80gb", "--json").document["fix"] is None


@pytest.mark.sweep
def test_what_the_trainer_cannot_do_is_not_a_way_to_fit_either():
    found = call("check", "train.yaml", *GPU, "--json")
    assert found.code == DOES_NOT_FIT
    to_fit = found.document["estimate"]["to_fit"]
    assert to_fit["options"]
    assert not {"loss", "caches_casts", "upcasts_frozen"} & to_fit["options"].keys()
    assert call(*to_fit["command"].split()[1:], "--json").code == DONE


@pytest.mark.sweep
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("gpu", ["rtx-3060-12gb:1", "rtx-3080-10gb:2"])
def test_the_way_out_of_a_configuration_is_what_its_command_says(gpu: str, precision: str):
    """QLoRA on one card, ZeRO-3 on two: what LLaMA-Factory does with types and autocast follows what is only tried."""
    layers = FEW_LAYERS | {"num_hidden_layers": 44, "hidden_size": 3072, "intermediate_size": 12288, "vocab_size": 512}
    Path("small/config.json").write_text(json.dumps(layers), encoding="utf-8")
    text = TEXT.replace("bf16: true", f"{precision}: true").replace("batch_size: 8", "batch_size: 1")
    Path("train.yaml").write_text(text.replace("cutoff_len: 2048", "cutoff_len: 256"), encoding="utf-8")
    found = call("estimate", "--config", "train.yaml", "--gpu", gpu, "--json")
    assert found.code == DOES_NOT_FIT
    to_fit = found.document["to_fit"]
    said = call(*shlex.split(to_fit["command"])[1:], "--json").document
    assert said["peak_device_bytes"] == to_fit["device_bytes"]
    assert to_fit["options"] == ({"method": "qlora"} if gpu.endswith(":1") else {"zero_stage": "3"})
    if gpu.endswith(":1"):
        Path("train.yaml").write_text(Path("train.yaml").read_text() + "quantization_bit: 4\n", encoding="utf-8")
        assert call("estimate", "--config", "train.yaml", "--gpu", gpu, "--json").document["recipe"] == said["recipe"]


def test_where_the_host_is_short_of_what_is_loaded_in_float32_its_type_is_the_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zero = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    sizes = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    values = {
        "model_name_or_path": "Qwen/Qwen2.5-0.5B",
        "dataset_name": "d",
        "use_peft": True,
        "bf16": True,
        "deepspeed": zero | sizes,
    }
    Path("train.json").write_text(json.dumps(values), encoding="utf-8")
    found = call("check", "train.json", "--gpu", "rtx-4090:4", "--host-ram", "15", "--fix", "--json").document
    first = found["fix"][0]
    [change] = first["changes"]
    assert (change["key"], change["before"], change["after"]) == ("dtype", None, "bfloat16")
    host = first["costs"]["host_bytes_per_node"]
    assert host["before"] > 15 * 2**30 >= host["after"]
    assert first["verdict"] == "fits"


@pytest.mark.sweep
def test_an_engine_that_accelerate_decides_is_replaced_by_a_whole_file_of_deepspeed():
    """Not by the changed keys alone, as if the rest stood in this file."""
    text = "model_name_or_path: qwen2.5-7b\ndataset_name: d\ndtype: bfloat16\naccelerate_config: zero2\noutput_dir: o\n"
    Path("trl.yaml").write_text(text, encoding="utf-8")
    machine = ("--gpu", "rtx-4090:4", "--host-ram", "512")
    assert call("check", "trl.yaml", *machine, "--fix", "--write", "fits.yaml").code == DONE
    assert "deepspeed: fits.deepspeed.json" in Path("fits.yaml").read_text()
    section = json.loads(Path("fits.deepspeed.json").read_text())
    assert section["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert section["train_batch_size"] == section["bf16"]["enabled"] == "auto"
    assert call("check", "fits.yaml", *machine).code == DONE
