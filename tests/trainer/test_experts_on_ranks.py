"""Mixtures of experts under ZeRO-3 on two CPU ranks, whose tokens choose different experts."""

import json
import shutil
from pathlib import Path

import pytest
import trainer_runs
from published_folders import write_published
from safetensors.torch import load_file, save_file
from trainer_runs import planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "32", "--learning-rate", "5e-3", "--max-steps", "4", "--measured-steps", "1")
IMAGES = {"seq_len": 64, "image_size": "56x56", "images_per_sample": 1, "num_samples": 32, "global_batch": 2}
NUM_EXPERTS = 8
EXPERTS = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
KEPT = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "torch_dtype")


def write_experts(folder: Path) -> Path:
    """The tiny Llama's tokenizer with a mixture of experts of random weights."""
    write_tiny_model(folder, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({name: config[name] for name in KEPT if name in config} | EXPERTS))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return folder


@pytest.mark.sweep
def test_ranks_that_take_different_experts_go_on_under_stage_3(tmp_path, monkeypatch):
    monkeypatch.setitem(trainer_runs.WORKLOADS, "qwen3_moe", trainer_runs.WORKLOADS["llama"])
    model = write_experts(tmp_path / "qwen3_moe")
    fields = {"num_samples": 32, "global_batch": 2, "micro_batch": 1, "zero_stage": "3"}
    words = (*WORDS, "--random-weights")
    jobs = {method: (planned(model, num_ranks=2, method=method, **fields), words) for method in ("full", "lora")}
    folder = tmp_path / "runs"
    folder.mkdir()
    outcomes = train_all(jobs, folder, num_ranks=2, places={}, stop_after={}, environment={})
    for method, outcome in outcomes.items():
        assert outcome.code == 0, method
        assert outcome.losses[-1] < outcome.losses[0], method


@pytest.mark.long
@pytest.mark.sweep
def test_experts_that_are_stored_either_way_round_load_under_stage_3_as_under_stage_2(tmp_path):
    """As transformers saves them, and turned around as they were published."""
    saved = write_published(tmp_path / "saved", "qwen3_vl_moe")
    published = tmp_path / "published"
    shutil.copytree(saved, published)
    weights = load_file(saved / "model.safetensors")
    turned = {name: weight.mT.contiguous() if ".mlp.experts." in name else weight for name, weight in weights.items()}
    save_file(turned, published / "model.safetensors", metadata={"format": "pt"})
    jobs = {
        f"{model.name} {stage}": (planned(model, **IMAGES, zero_stage=stage, method="lora", precision="fp32"), WORDS)
        for model in (saved, published)
        for stage in ("2", "3")
    }
    folder = tmp_path / "runs"
    folder.mkdir()
    outcomes = train_all(jobs, folder, num_ranks=2)
    expected = outcomes["saved 2"].losses
    for name, outcome in outcomes.items():
        assert outcome.code == 0, name
        assert outcome.losses == pytest.approx(expected, rel=1e-5), name
