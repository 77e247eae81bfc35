"""``vlmplan.compare``, ``diagnose``, ``check(fix=True)`` and ``for_`` answer what the command line does."""

import json
import pickle
from pathlib import Path

import pytest

import vlmplan
from cli_calls import FEW_LAYERS, call

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.85 GiB. GPU 3 has a total capacity of 23.65 GiB "
    "of which 3.01 GiB is free. Including non-PyTorch memory, this process has 20.63 GiB memory in use. Of the "
    "allocated memory 19.42 GiB is allocated by PyTorch, and 741.20 MiB is reserved by PyTorch but unallocated."
)
YAML = """# mine
model_name_or_path: ./small
stage: sft
finetuning_type: lora
cutoff_len: 2048
per_device_train_batch_size: 8  # per GPU
gradient_accumulation_steps: 2
bf16: true
"""


def as_json(found) -> str:
    return json.dumps(found.as_dict(), indent=2)


@pytest.fixture
def config() -> Path:
    Path("small").mkdir()
    Path("small/config.json").write_text(json.dumps(FEW_LAYERS))
    path = Path("train.yaml")
    path.write_text(YAML)
    return path


def test_a_comparison_is_that_of_the_command_line():
    found = vlmplan.compare("zero", "gpt2", "t4:2", micro_batch=2)
    words = ["estimate", "--model", "gpt2", "--gpu", "t4:2", "--micro-batch", "2", "--compare", "zero"]
    assert as_json(found) == call(*words, "--json").out.rstrip("\n")
    assert str(found) == call(*words).out
    by_name = {variant.name: variant for variant in found.variants}
    present = next(variant for variant in found.variants if variant.is_present)
    assert present.estimate.phases == vlmplan.estimate("gpt2", "t4:2", micro_batch=2).phases
    other = by_name["ZeRO-3"]
    assert other.estimate.phases == vlmplan.estimate("gpt2", "t4:2", micro_batch=2, **other.options).phases
    assert "<table" in found._repr_html_()
    with pytest.raises(vlmplan.InputError, match='by is "size"; one of'):
        vlmplan.compare("size", "gpt2", "t4")


@pytest.mark.sweep
def test_a_diagnosis_is_that_of_the_command_line_for_a_log_and_for_an_error():
    log = Path("train.log")
    log.write_text(MESSAGE + "\n")
    found = vlmplan.diagnose(log, "rtx-4090:4", model="llama-3.2-1b", method="lora", loss="full")
    words = ["diagnose", str(log), "--model", "llama-3.2-1b", "--gpu", "rtx-4090:4"]
    words += ["--method", "lora", "--loss", "full"]
    assert as_json(found) == call(*words, "--json").out.rstrip("\n")
    assert str(found) == call(*words).out
    assert (found.cause, found.requested_bytes) == ("true_need", round(6.85 * 2**30))
    assert found.planned["verdict"] == "fits"
    assert "6.85 GiB" in found._repr_html_()
    alone = vlmplan.diagnose(log)
    assert (alone.planned, alone.to_fit, alone.other_machine) == (None, None, None)
    try:
        raise RuntimeError(MESSAGE.partition(": ")[2])
    except RuntimeError as error:
        caught = vlmplan.diagnose(error)
    assert (caught.cause, caught.requested_bytes) == (alone.cause, alone.requested_bytes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gpu": "t4"}, "model is missing"),
        ({"model": "gpt2"}, "gpu is missing"),
        ({"plan": "plan.json", "model": "gpt2"}, "plan is the whole setup; model does not go with it"),
        ({"plan": "plan.json"}, r"plan\.json does not exist"),
    ],
)
def test_a_setup_of_a_diagnosis_is_whole_or_none(arguments, sentence):
    Path("train.log").write_text(MESSAGE)
    with pytest.raises(vlmplan.VlmplanError, match=sentence):
        vlmplan.diagnose("train.log", **arguments)


@pytest.mark.sweep
def test_fixes_are_those_of_the_command_line_and_write_the_file_that_was_promised(config):
    found = vlmplan.check(config, "rtx-3060-12gb:1", fix=True)
    words = ["check", str(config), "--gpu", "rtx-3060-12gb:1", "--fix"]
    assert as_json(found) == call(*words, "--json").out.rstrip("\n")
    assert str(found) + "--write FILE writes the first\n" == call(*words).out
    first, *others = found.fixes
    assert others
    assert first.diff.startswith(f"--- {config}\n")
    [path] = pickle.loads(pickle.dumps(first)).write("new.yaml")
    call(*words, "--write", "by_command.yaml")
    assert path.read_text() == Path("by_command.yaml").read_text()
    again = vlmplan.check(path, "rtx-3060-12gb:1")
    assert again.estimate.peak_device_bytes == first.costs["device_bytes"]["after"]
    with pytest.raises(vlmplan.InputError, match="exists already"):
        first.write(config)
    config.write_text(YAML.replace("mine", "yours"))
    with pytest.raises(vlmplan.InputError, match="another file than the one that was checked"):
        first.write("newer.yaml")
    assert vlmplan.check(config, "rtx-3060-12gb:1").fixes == ()


def test_what_is_made_for_another_trainer_is_written_as_its_files():
    found = vlmplan.recommend("gpt2", "t4", method="lora", for_="trl")
    words = ["recommend", "--model", "gpt2", "--gpu", "t4", "--method", "lora", "--for", "trl"]
    assert as_json(found) == call(*words, "--json").out.rstrip("\n")
    assert str(found) == call(*words).out
    assert found.plan.made_for["settings"]["model_name_or_path"]
    written = found.write("mine")
    call(*words, "--out", "its")
    assert {path.name: path.read_text() for path in written} == {
        path.name: path.read_text() for path in Path("its").iterdir()
    }
    with pytest.raises(vlmplan.InputError, match=r"takes its own files: write\(folder\)"):
        found.plan.save("plan.json")
    assert vlmplan.estimate("gpt2", "t4", for_="trl").made_for["trainer"].startswith("TRL")
