"""Answers that no card has generated: GRPO of a model that sees, rehearsed through the real TRL."""

import pytest

pytest.importorskip("trl")

from cli_calls import call
from vlmplan_trainer.models.tiny import write_tiny_model


def test_answers_about_images_are_generated_and_scored_on_a_card_that_is_not_there(tmp_path):
    model = write_tiny_model(tmp_path / "qwen2_vl", "qwen2_vl")
    words = ["--model", str(model), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "full"]
    words += ["--task", "grpo", "--reference", "copy", "--micro-batch", "2", "--grad-accum", "2", "--seq-len", "48"]
    words += ["--num-generations", "4", "--max-completion-tokens", "16", "--images-per-sample", "1"]
    done = call("rehearse", *words, "--image-size", "56x56", "--json")
    assert done.code == 0, done.err
    phases = {phase["name"]: phase for phase in done.document["phases"]}
    assert list(phases) == ["load", "init", "generate", "reference", "score", "forward", "backward", "step", "save"]
    assert phases["score"]["estimated_peak_bytes"] is None
    assert done.document["flops"] == done.document["estimated_flops"]
    for name in ("generate", "backward", "step"):
        assert phases[name]["relative_error"] == pytest.approx(0, abs=0.01), name


def test_answers_of_text_are_generated_without_a_model_that_sees(tmp_path):
    write_tiny_model(tmp_path / "model", "llama")
    words = ["--model", str(tmp_path / "model"), "--gpu", "h100-sxm:1", "--zero-stage", "none", "--task", "grpo"]
    words += ["--micro-batch", "4", "--num-generations", "4", "--seq-len", "48", "--max-completion-tokens", "8"]
    done = call("rehearse", "--json", *words)
    assert done.code == 0, done.err
    assert "generate" in {phase["name"] for phase in done.document["phases"]}


@pytest.mark.parametrize("checkpoints", ["activation-checkpointing", "no-activation-checkpointing"])
def test_weights_that_the_reference_has_run_too_stay_as_deepspeed_leaves_them(tmp_path, checkpoints):
    """Of adapters under stage 3 without checkpoints all frozen weights are whole when backward ends."""
    model = write_tiny_model(tmp_path / "llama", "llama", hidden_size=256, num_layers=16)
    words = ["--model", str(model), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "lora", "--task", "dpo"]
    words += ["--micro-batch", "1", "--grad-accum", "1", "--seq-len", "32", "--max-completion-tokens", "16"]
    done = call("rehearse", *words, f"--{checkpoints}", "--json")
    assert done.code == 0, done.err
    [backward] = [phase for phase in done.document["phases"] if phase["name"] == "backward"]
    assert backward["relative_error"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_a_rank_without_the_first_keeps_the_references_log_probabilities_itself(tmp_path, task):
    """TRL's first rank writes them for all; of a rehearsal it is not there. Evaluated answers have theirs too."""
    model = write_tiny_model(tmp_path / "llama", "llama")
    words = ["--model", str(model), "--gpu", "h100-sxm:4", "--zero-stage", "1", "--method", "full", "--task", task]
    words += ["--reference", "precomputed", "--micro-batch", "2", "--seq-len", "32", "--max-completion-tokens", "16"]
    done = call("rehearse", *words, "--eval-batch", "2", "--eval-samples", "64", "--rank", "3", "--json")
    assert done.code == 0, done.err
    phases = {phase["name"]: phase for phase in done.document["phases"]}
    assert phases["reference"]["peak_bytes"] > 0
    for name in ("backward", "evaluation"):
        assert phases[name]["relative_error"] == pytest.approx(0, abs=0.01), name
