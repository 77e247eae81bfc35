"""``--config`` and ``vlmplan check``: another trainer's configuration, answered as its options would be."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, USAGE, call
from vlmplan.request import parse

LLAMA_FACTORY: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B",
    "stage": "sft",
    "finetuning_type": "lora",
    "lora_rank": 8,
    "cutoff_len": 512,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_train_epochs": 2.0,
    "learning_rate": 1.0e-4,
    "bf16": True,
}
GPU = ("--gpu", "rtx-4090:2")
SAME = (
    *("--model", "Qwen/Qwen2.5-0.5B", "--method", "lora", "--lora-rank", "8", "--lora-alpha", "16"),
    *("--seq-len", "512", "--micro-batch", "2", "--grad-accum", "4", "--epochs", "2", "--precision", "bf16"),
    *("--batches-on-gpu", "step", "--input-gradients", "peft", "--checkpoint-kind", "reentrant"),
    *("--zero-stage", "none", "--fused-optimizer", "--cached-casts", "--loss", "model", "--activation-checkpointing"),
    *("--expandable-segments", "--gradients-beside-buckets"),
    *("--adapter-dtype", "table", "--weight-dtype", "table", "--no-rslora", "--lora-targets", "all-linear"),
)
"""What ``LLAMA_FACTORY`` means on several GPUs, where its launcher sets the allocator."""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("train.yaml")
    path.write_text(json.dumps(LLAMA_FACTORY), encoding="utf-8")
    return path


OF_ITS_TRAINER = ("disk", "checkpoint_bytes", "export_bytes", "resume")
"""What a trainer writes that the bundled one does not."""


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    left_out = ("notes", "caveats", "to_fit", *OF_ITS_TRAINER)
    return {name: value for name, value in document.items() if name not in left_out}


def test_a_configuration_is_estimated_as_the_options_that_mean_the_same(config: Path):
    theirs = call("estimate", "--config", str(config), *GPU, "--json").document
    ours = call("estimate", *SAME, *GPU, "--json").document
    assert numbers(theirs) == numbers(ours)


def test_check_says_whether_it_fits_before_it_lists_keys(config: Path):
    lines = call("check", str(config), *GPU).out.splitlines()
    assert lines[0] == "train.yaml: read as LLaMA-Factory 0.9.5 reads it"
    places = [next(place for place, line in enumerate(lines) if lead in line) for lead in ("fits: ", "from the file: ")]
    assert places == sorted(places)
    assert places[0] <= 2


def test_recommend_and_advise_take_it_too(config: Path):
    theirs = call("recommend", "--config", str(config), *GPU, "--json").document
    ours = call("recommend", *SAME, *GPU, "--json").document
    assert [plan["recipe"] for plan in theirs["plans"]] == [plan["recipe"] for plan in ours["plans"]]
    assert call("advise", "--config", str(config), *GPU, "--json").code == DONE


def test_what_recommend_plans_is_what_estimate_says(config: Path):
    (plan,) = call("recommend", "--config", str(config), *GPU, "--json").document["plans"][:1]
    alone = call("estimate", "--config", str(config), *GPU, "--json").document
    names = ("micro_batch", "grad_accum", "zero_stage", "method", "precision", "loss")
    assert [plan["recipe"][name] for name in names] == [alone["recipe"][name] for name in names]


@pytest.mark.sweep
@pytest.mark.parametrize("deepspeed", [None, {"zero_optimization": {"stage": 3}}], ids=["plain", "ZeRO-3"])
def test_every_plan_of_a_file_is_the_estimate_of_it_on_that_machine(config: Path, deepspeed: dict[str, Any] | None):
    """Checkpoints of the vision tower and what is on the host are the file's too."""
    values: dict[str, Any] = {"model_name_or_path": "qwen2-vl-2b", "dataset_name": "d", "use_peft": True}
    values |= {"lora_target_modules": "all-linear", "dtype": "bfloat16", "deepspeed": deepspeed}
    config.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
    cards = ("rtx-3060-12gb:1", "l40s:2", "h100-sxm:4")
    words = (word for card in cards for word in ("--gpu", card))
    plans = call("recommend", "--config", str(config), *words, "--json").document["plans"]
    assert plans
    for plan in plans:
        card = f"{plan['gpu']}:{plan['num_gpus']}"
        alone = call("estimate", "--config", str(config), "--gpu", card, "--json").document
        assert plan["estimate"]["recipe"] == alone["recipe"]
        assert plan["estimate"]["peak_device_bytes"] == alone["peak_device_bytes"]


def test_check_accounts_for_every_key(config: Path):
    found = call("check", str(config), *GPU, "--json").document
    reading = found["config"]
    assert set(LLAMA_FACTORY) == {*reading["said"], *reading["without_effect"]}
    assert reading["without_effect"] == ["learning_rate"]
    assert reading["defaults"]["lora_dropout"] == "0"
    assert numbers(found["estimate"]) == numbers(call("estimate", "--config", str(config), *GPU, "--json").document)


IN_PLACE = {
    "--no-double-quant": "--double-quant",
    "--foreach-optimizer": "--fused-optimizer",
    "--no-cached-casts": "--cached-casts",
    "--gradients-in-buckets": "--gradients-beside-buckets",
    "--no-activation-checkpointing": "--activation-checkpointing",
    "--use-dora": "--no-dora",
}


def test_a_switch_beside_the_file_is_named_as_it_is_given(config: Path):
    config.write_text(json.dumps(LLAMA_FACTORY | {"quantization_bit": 4}), encoding="utf-8")
    found = call("estimate", "--config", str(config), *GPU, *IN_PLACE, "--no-liger-layers", "--json").document
    said = [note for note in found["notes"] if "taken in place" in note]
    assert set(said) == {f"train.yaml: {given} is taken in place of {theirs}" for given, theirs in IN_PLACE.items()}


def test_check_without_a_gpu_says_what_to_do_next(config: Path):
    found = call("check", str(config))
    assert found.code == DONE
    assert "read as LLaMA-Factory 0.9.5 reads it" in found.out
    assert "vlmplan recommend --config train.yaml" in found.out
    assert call("check", str(config), "--json").document["estimate"] is None


def test_what_is_said_of_the_file_is_said_once(config: Path):
    found = call("check", str(config), "--gpu", "rtx-4090", "--micro-batch", "3")
    assert found.out.count("--micro-batch 3 is taken in") == 1
    assert "vlmplan check lists them" not in found.out


def test_an_option_beside_the_file_wins_and_is_said(config: Path):
    found = call("estimate", "--config", str(config), *GPU, "--micro-batch", "1", "--json").document
    assert found["recipe"]["micro_batch"] == 1
    assert "train.yaml: --micro-batch 1 is taken in place of 2" in found["notes"]
    other = call("estimate", "--config", str(config), *GPU, "--zero-stage", "2", "--json").document
    assert (other["recipe"]["zero_stage"], other["recipe"]["weight_dtype"]) == (2, "table")


def test_a_deepspeed_file_of_the_users_own_goes_before_the_files(config: Path):
    named = LLAMA_FACTORY | {"deepspeed": "their.json"}
    config.write_text(json.dumps(named), encoding="utf-8")
    Path("their.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    Path("mine.json").write_text(json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}))
    assert call("estimate", "--config", "train.yaml", *GPU, "--json").document["recipe"]["zero_stage"] == 2
    found = call("estimate", "--config", "train.yaml", *GPU, "--ds-config", "mine.json", "--json").document
    assert found["recipe"]["zero_stage"] == 1
    assert any("DeepSpeed configuration is left out" in note for note in found["notes"])


def test_a_request_of_a_file_is_made_again_of_its_own_words(config: Path):
    for words in ({}, {"micro_batch": 1}, {"zero_stage": "3"}, {"method": "full"}):
        request = parse({"config": config, "gpu": "rtx-4090:2", **words})
        assert parse(request.options()) == request


@pytest.mark.sweep
def test_where_it_does_not_fit_the_command_that_does_names_the_file(config: Path):
    big = LLAMA_FACTORY | {
        "model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct",
        "finetuning_type": "full",
        "cutoff_len": 4096,
    }
    config.write_text(json.dumps(big), encoding="utf-8")
    found = call("check", "train.yaml", "--gpu", "rtx-4090:2", "--json")
    assert found.code == DOES_NOT_FIT
    command = found.document["estimate"]["to_fit"]["command"]
    assert command.startswith("vlmplan estimate --config train.yaml ")
    assert call(*command.split()[1:], "--json").code == DONE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stage: sft\nuse_galore: true\nbf16: true\n", ["train.yaml", "use_galore is true"]),
        ("stage: sft\nbf16: true\ncutoff_length: 5\n", ["train.yaml", "'cutoff_length'", "'cutoff_len'"]),
        ("stage: sft\nbf16: true\n", ["train.yaml names no model; give --model"]),
        ("- a\n- b\n", ["train.yaml holds", "keys and values of a configuration are needed"]),
        ("a: &x [*x]\n", ["train.yaml", "alias"]),
        ("", ["train.yaml is empty"]),
    ],
)
def test_bad_files_get_one_sentence(config: Path, text: str, words: list[str]):
    config.write_text(text, encoding="utf-8")
    found = call("check", "train.yaml", *GPU)
    assert (found.code, found.out) == (MENDABLE, "")
    assert found.err.count("\n") == 1
    for word in words:
        assert word in found.err


def test_without_a_model_or_a_file_the_option_is_missing():
    found = call("estimate", *GPU)
    assert found.code == USAGE
    assert "Missing option '--model'" in found.err


CONTRADICTIONS = (
    ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps is 4, but gradient_accumulation_steps of"),
    ({"train_micro_batch_size_per_gpu": 1}, "per_device_train_batch_size is 2, but train_micro_batch_size_per_gpu of"),
    ({"gradient_clipping": 0.5}, "max_grad_norm is 1 by default, but gradient_clipping of"),
    ({"bf16": {"enabled": False}}, "it trains in bf16, but"),
)


@pytest.mark.parametrize("is_named", [False, True], ids=["an option", "the file"])
@pytest.mark.parametrize(("more", "expected"), CONTRADICTIONS)
def test_a_contradiction_of_the_files_names_their_keys_and_no_option(config: Path, more, expected: str, is_named: bool):
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}} | more), encoding="utf-8")
    config.write_text(json.dumps(LLAMA_FACTORY | ({"deepspeed": "ds.json"} if is_named else {})), encoding="utf-8")
    words = () if is_named else ("--ds-config", "ds.json")
    for command in (("check", str(config)), ("recommend", "--config", str(config))):
        found = call(*command, *GPU, *words)
        assert found.code == MENDABLE
        assert expected in found.err
        assert "train.yaml: " in found.err
        assert "ds.json" in found.err
        assert "--" not in found.err


def test_an_option_beside_the_file_settles_what_its_deepspeed_file_contradicts(config: Path):
    Path("ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 3}', encoding="utf-8"
    )
    config.write_text(json.dumps(LLAMA_FACTORY | {"deepspeed": "ds.json"}), encoding="utf-8")
    assert call("check", str(config), *GPU, "--grad-accum", "3").code == DONE
    found = call("check", str(config), *GPU, "--grad-accum", "5")
    assert "gradient_accumulation_steps is 3, but --grad-accum 5 was given" in found.err


def test_the_optimizer_of_a_deepspeed_file_goes_before_optim_wherever_it_is_named(config: Path):
    optimizer = {"type": "SGD", "params": {"momentum": 0.9}}
    content = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}, "optimizer": optimizer}
    Path("ds.json").write_text(json.dumps(content), encoding="utf-8")
    beside = call("check", str(config), *GPU, "--ds-config", "ds.json", "--json").document["estimate"]
    config.write_text(json.dumps(LLAMA_FACTORY | {"deepspeed": "ds.json"}), encoding="utf-8")
    named = call("check", str(config), *GPU, "--json").document["estimate"]
    assert named["recipe"]["optimizer"] == "sgd"
    assert numbers(beside) == numbers(named)


def test_a_file_that_is_not_there_is_named():
    found = call("check", "nowhere.yaml", *GPU)
    assert found.code == MENDABLE
    assert "nowhere.yaml" in found.err


@pytest.mark.parametrize(
    "name", ["~nobody-has-this-home/ds.json", "a" * 5000, "a\0b", "pipe", "/dev/zero", "no\n\x1b[2J"]
)
@pytest.mark.parametrize("where", ["deepspeed", "accelerate", "script"])
def test_a_file_that_a_configuration_names_and_nobody_can_read_is_one_sentence(config: Path, where: str, name: str):
    os.mkfifo("pipe")
    contents = {
        "deepspeed": json.dumps(LLAMA_FACTORY | {"deepspeed": name}),
        "accelerate": json.dumps(
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": name}}
        ),
        "script": f"accelerate launch --config_file '{name}' sft.py --model_name_or_path smollm2-135m",
    }
    config.write_text(contents[where], encoding="utf-8")
    found = call("check", str(config), "--model", "smollm2-135m", *GPU)
    assert found.code == MENDABLE
    assert found.err.count("\n") == 1
    assert str(config) in found.err
    assert "no file from here" in found.err or "known only to the shell" in found.err


def test_the_command_that_is_suggested_can_be_pasted_whatever_the_file_is_called(config: Path):
    name = "a b\n\x1b[2J; rm -rf x.yaml"
    config.rename(name)
    found = call("check", name)
    assert found.code == DONE
    assert found.out.splitlines()[-1].endswith(
        "vlmplan recommend --config 'a b\\n\\x1b[2J; rm -rf x.yaml' finds where it does"
    )


def test_a_file_of_thousands_of_keys_that_nobody_knows_is_refused_at_once(config: Path):
    config.write_text(json.dumps(LLAMA_FACTORY | {f"k{number}": 1 for number in range(60_000)}), encoding="utf-8")
    begin = time.process_time()
    found = call("check", str(config))
    assert (found.code, time.process_time() - begin < 4) == (MENDABLE, True)
    assert found.err.startswith("vlmplan: train.yaml has more than 30 mistakes: (1) unknown key 'k0'")


SHARDED = {
    "model_name_or_path": "qwen2.5-0.5b",
    "bf16": True,
    "max_length": 1024,
    "per_device_train_batch_size": 4,
    "deepspeed": {"zero_optimization": {"stage": 3}},
}


@pytest.mark.parametrize("variables", [{}, {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}])
def test_a_file_that_leaves_only_the_machine_open_is_recommended_as_it_is_estimated(variables):
    Path("sft.yaml").write_text(yaml.safe_dump(SHARDED | variables), encoding="utf-8")
    words = ("--config", "sft.yaml", "--gpu", "rtx-4090:2", "--json")
    estimated, found = call("estimate", *words).document, call("recommend", *words).document
    planned = found["plans"][0]["estimate"]
    for name in ("recipe", "peak_device_bytes", "peak_reserved_bytes", "host_bytes_per_node"):
        assert planned[name] == estimated[name], name


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), ["--seq-len", "--image-size"]),
        (("--seq-len", "4096"), ["--image-size"]),
        (("--image-size", "640x480"), ["--seq-len"]),
        (("--images-per-sample", "0"), ["--seq-len"]),
    ],
)
def test_a_limit_that_no_one_says_is_asked_for_unless_an_option_does(tmp_path, options, asked):
    path = tmp_path / "train.sh"
    path.write_text("swift sft --model Qwen/Qwen2-VL-2B-Instruct --torch_dtype bfloat16\n")
    found = call("check", str(path), *options)
    assert found.code == DONE
    words = " ".join(found.out.split())
    assert [name for name in ("--seq-len", "--image-size") if f"give {name} for the" in words] == asked
    document = call("check", str(path), *options, "--json").document
    assert len([note for note in document["config"]["notes"] if " of yours" in note]) == len(asked)


@pytest.mark.sweep
@pytest.mark.parametrize("gpus", ["--gpu rtx-4090:1 --gpu rtx-4090:2", "--gpu rtx-4090:2 --gpu h100-sxm:4"])
def test_plans_of_a_configuration_have_the_allocator_that_its_launcher_sets_for_so_many_gpus(config: Path, gpus: str):
    found = call("recommend", "--config", str(config), *gpus.split(), "--json")
    plans = found.document["plans"]
    assert len(plans) > 1
    for plan in plans:
        assert plan["recipe"]["expandable_segments"] == (plan["num_gpus"] > 1)
        sizes = [f"--{name}={plan['recipe'][name.replace('-', '_')]}" for name in ("micro-batch", "grad-accum")]
        again = call(
            "estimate", "--config", str(config), "--gpu", f"{plan['gpu']}:{plan['num_gpus']}", *sizes, "--json"
        )
        assert again.document["peak_device_bytes"] == plan["estimate"]["peak_device_bytes"]
