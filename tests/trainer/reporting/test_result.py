"""Where a run says that its result is, and the lines of Python that load it: they are run as they stand."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import Outcome, planned, train_here

from vlmplan.run.training import CHECKPOINTS
from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "4", "--max-steps", "1", "--measured-steps", "0", "--learning-rate", "1e-2")
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
CASES = [("llama", "full"), ("llama", "lora"), ("qwen2_vl", "full"), ("qwen2_vl", "lora"), ("qwen2_vl", "qlora")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: write_tiny_model(folder / family, family) for family in ("llama", "qwen2_vl")}


def trained(models: dict[str, Path], family: str, method: str, folder: Path, *words: str) -> Outcome:
    done = train_here(planned(models[family], num_ranks=1, method=method), folder, *WORDS, *words)
    assert done.code == 0, done.err
    return done


def loaded(done: Outcome) -> dict[str, Any]:
    """What the printed lines leave."""
    lines = done.out.splitlines()
    below = lines[lines.index("load it with") + 1 :]
    code = [line.removeprefix("  ") for line in below if line.startswith("  ")]
    assert len(code) == 3
    if not HAS_TORCHVISION and "AutoProcessor" in code[2]:
        assert "needs torchvision" in done.out
        code[2] = code[2].replace("AutoProcessor", "__import__('transformers').AutoTokenizer")
    else:
        assert "torchvision" not in done.out
    found: dict[str, Any] = {}
    exec("\n".join(code), found)
    return found


@pytest.mark.parametrize(("family", "method"), CASES)
def test_the_lines_that_are_printed_load_what_was_trained(models, tmp_path, family: str, method: str):
    done = trained(models, family, method, tmp_path)
    result = Path(done.report["result"])
    assert result.is_dir()
    assert f"the result is in {result} (" in done.out
    found = loaded(done)
    model = found["model"].eval()
    reader = found["processor" if family == "qwen2_vl" else "tokenizer"]
    tokenizer = getattr(reader, "tokenizer", reader)
    tokens = tokenizer("hello", return_tensors="pt")
    with torch.no_grad():
        assert model(input_ids=tokens["input_ids"]).logits.isfinite().all()
    is_four_bit = any(type(module).__name__ == "Linear4bit" for module in model.modules())
    assert is_four_bit is (method == "qlora")
    adapters = [tensor for name, tensor in model.named_parameters() if "lora_B" in name]
    assert bool(adapters) is (method != "full")
    assert method == "full" or any(bool(tensor.any()) for tensor in adapters)


def test_a_merged_model_is_what_is_loaded(models, tmp_path):
    done = trained(models, "llama", "lora", tmp_path, "--merge-adapters")
    assert Path(done.report["result"]).name == "merged"
    assert type(loaded(done)["model"]).__name__ == "LlamaForCausalLM"


def test_a_run_that_has_ended_is_merged_afterwards_without_its_checkpoints_to_the_same_weights(models, tmp_path):
    at_once = trained(models, "llama", "lora", tmp_path / "at-once", "--merge-adapters")
    later = trained(models, "llama", "lora", tmp_path / "later")
    figures = later.report["planned_and_measured"]
    shutil.rmtree(later.folder / CHECKPOINTS)
    merged = trained(models, "llama", "lora", tmp_path / "later", "--resume", "--merge-adapters")
    assert merged.report["result"] == str(later.folder / "merged")
    assert merged.report["planned_and_measured"] == figures
    weights = [load_file(done.folder / "merged" / "model.safetensors") for done in (at_once, merged)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())
    assert type(loaded(merged)["model"]).__name__ == "LlamaForCausalLM"


def test_an_adapter_of_random_weights_says_that_nothing_can_load_it(models, tmp_path):
    done = trained(models, "llama", "lora", tmp_path, "--random-weights")
    assert "load it with" not in done.out
    assert "which no file has" in done.out
