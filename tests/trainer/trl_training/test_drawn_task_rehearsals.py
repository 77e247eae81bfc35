"""Drawn plans of DPO and GRPO whose rehearsals differed once, rehearsed again through the real TRL."""

import pytest

pytest.importorskip("trl")

from cli_calls import call
from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = pytest.mark.sweep


def errors_of(*words: str) -> dict[str, float]:
    """The plan's error by phase, of a rehearsal."""
    done = call("rehearse", *words, "--json")
    assert done.code == 0, done.err
    return {phase["name"]: phase["relative_error"] for phase in done.document["phases"] if phase["relative_error"]}


def wide_model(folder, family="llama"):
    """Whose layers take more than the library's small tensors."""
    return str(write_tiny_model(folder / family, family, hidden_size=768, num_layers=3, vocab_size=16_000))


DPO = ("--task", "dpo", "--seq-len", "160", "--max-completion-tokens", "16", "--micro-batch", "2")


def test_a_reference_with_adapters_off_begins_by_the_order_that_forward_has_recorded(tmp_path):
    """What stage 3 has prefetched for it by that order is whole when the first adapter is missing."""
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "lora"]
    found = errors_of(*words, *DPO, "--precision", "fp32")
    assert found["reference"] == pytest.approx(0, abs=0.01)


def test_stage_3_computes_log_probabilities_before_training_and_leaves_nothing_of_it(tmp_path):
    """No second set of hooks gathers and keeps the weights of the model that is trained."""
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "full"]
    found = errors_of(*words, *DPO, "--reference", "precomputed")
    for name in ("backward", "step", "save"):
        assert found[name] == pytest.approx(0, abs=0.005), name


def test_dpo_switches_dropout_of_adapters_off(tmp_path):
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "none", "--method", "lora"]
    found = errors_of(*words, *DPO, "--lora-dropout", "0.1", "--no-activation-checkpointing")
    for name in ("forward", "backward", "save"):
        assert found[name] == pytest.approx(0, abs=0.003), name


def test_models_in_four_bits_are_trained_as_tasks(tmp_path):
    """Hugging Face's Trainer asks the model's quantizer whether adapters can be trained."""
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "none", "--method", "qlora"]
    found = errors_of(*words, *DPO)
    for name in ("forward", "reference", "backward"):
        assert found[name] == pytest.approx(0, abs=0.01), name


def test_a_model_that_sees_is_trained_on_preferences_of_text(tmp_path):
    words = ["--model", wide_model(tmp_path, "qwen2_vl"), "--gpu", "h100-sxm:1", "--zero-stage", "none"]
    found = errors_of(*words, "--method", "full", *DPO, "--images-per-sample", "0")
    for name in ("load", "forward", "reference", "backward"):
        assert found[name] == pytest.approx(0, abs=0.003), name


def test_all_but_the_tokens_of_images_are_scored_unless_it_is_said_how_long_answers_are(tmp_path):
    words = ["--model", wide_model(tmp_path, "qwen2_vl"), "--gpu", "h100-sxm:1", "--zero-stage", "none"]
    words += ["--method", "full", "--task", "dpo", "--seq-len", "96", "--micro-batch", "1"]
    done = call("rehearse", *words, "--images-per-sample", "1", "--image-size", "224x224", "--json")
    assert done.code == 0, done.err
    assert done.document["flops"] == done.document["estimated_flops"]


def test_answers_between_two_micro_batches_of_a_step_are_made_beside_gradients(tmp_path):
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "none", "--method", "full"]
    words += ["--task", "grpo", "--seq-len", "96", "--max-completion-tokens", "8", "--num-generations", "2"]
    words += ["--micro-batch", "2", "--grad-accum", "2", "--steps-per-generation", "1", "--reference", "copy"]
    found = errors_of(*words)
    for name in ("generate", "reference", "backward"):
        assert found[name] == pytest.approx(0, abs=0.005), name


def test_pages_of_states_lie_on_the_host_under_deepspeed(tmp_path):
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "2", "--method", "lora"]
    found = errors_of(*words, *DPO, "--optimizer", "paged-adamw-8bit")
    assert found["step"] == pytest.approx(0, abs=0.003)


def test_stage_0_in_float32_updates_in_a_phase_of_its_own(tmp_path):
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "0", "--method", "full"]
    found = errors_of(*words, *DPO, "--precision", "fp32")
    assert found["step"] == pytest.approx(0, abs=0.003)


def test_a_second_model_is_on_the_host_where_weights_are(tmp_path):
    words = ["--model", wide_model(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "3", "--offload-params", "cpu"]
    found = errors_of(*words, "--method", "full", *DPO)
    for name in ("load", "init", "step", "save"):
        assert found[name] == pytest.approx(0, abs=0.003), name
