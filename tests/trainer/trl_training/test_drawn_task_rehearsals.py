"""Drawn plans of DPO and GRPO whose rehearsals differed once, rehearsed again through the real TRL."""

import pytest

pytest.importorskip("trl")

from cli_calls import call
from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = pytest.mark.sweep


def assert_planned(names: str, *words: str, within: float) -> None:
    """Phases, by their names, are planned within so much of what a rehearsal takes."""
    done = call("rehearse", *words, "--json")
    assert done.code == 0, done.err
    errors = {phase["name"]: phase["relative_error"] for phase in done.document["phases"]}
    for name in names.split():
        assert errors[name] == pytest.approx(0, abs=within), name


def words_of(folder, *, gpus: int, zero_stage: str, method: str, family: str = "llama") -> list[str]:
    """For a model whose layers take more than the libraries' small tensors."""
    model = write_tiny_model(folder / family, family, hidden_size=768, num_layers=3, vocab_size=16_000)
    return ["--model", str(model), "--gpu", f"h100-sxm:{gpus}", "--zero-stage", zero_stage, "--method", method]


DPO = ("--task", "dpo", "--seq-len", "160", "--max-completion-tokens", "16", "--micro-batch", "2")


def test_a_reference_with_adapters_off_begins_by_the_order_that_forward_has_recorded(tmp_path):
    """What stage 3 has prefetched for it by that order is whole when the first adapter is missing."""
    words = words_of(tmp_path, gpus=2, zero_stage="3", method="lora")
    assert_planned("reference", *words, *DPO, "--precision", "fp32", within=0.01)


def test_stage_3_computes_log_probabilities_before_training_and_leaves_nothing_of_it(tmp_path):
    """No second set of hooks gathers and keeps the weights of the model that is trained."""
    words = words_of(tmp_path, gpus=2, zero_stage="3", method="full")
    assert_planned("backward step save", *words, *DPO, "--reference", "precomputed", within=0.005)


def test_dpo_switches_dropout_of_adapters_off(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="none", method="lora")
    assert_planned(
        "forward backward save", *words, *DPO, "--lora-dropout", "0.1", "--no-activation-checkpointing", within=0.003
    )


def test_models_in_four_bits_are_trained_as_tasks(tmp_path):
    """Hugging Face's Trainer asks the model's quantizer whether adapters can be trained."""
    words = words_of(tmp_path, gpus=1, zero_stage="none", method="qlora")
    assert_planned("forward reference backward", *words, *DPO, within=0.01)


def test_a_model_that_sees_is_trained_on_preferences_of_text(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="none", method="full", family="qwen2_vl")
    assert_planned("load forward reference backward", *words, *DPO, "--images-per-sample", "0", within=0.003)


def test_all_but_the_tokens_of_images_are_scored_unless_it_is_said_how_long_answers_are(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="none", method="full", family="qwen2_vl")
    words += ["--task", "dpo", "--seq-len", "96", "--micro-batch", "1"]
    done = call("rehearse", *words, "--images-per-sample", "1", "--image-size", "224x224", "--json")
    assert done.code == 0, done.err
    assert done.document["flops"] == done.document["estimated_flops"]


def test_answers_between_two_micro_batches_of_a_step_are_made_beside_gradients(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="none", method="full")
    words += ["--task", "grpo", "--seq-len", "96", "--max-completion-tokens", "8", "--num-generations", "2"]
    words += ["--micro-batch", "2", "--grad-accum", "2", "--steps-per-generation", "1", "--reference", "copy"]
    assert_planned("generate reference backward", *words, within=0.005)


def test_pages_of_states_lie_on_the_host_under_deepspeed(tmp_path):
    words = words_of(tmp_path, gpus=2, zero_stage="2", method="lora")
    assert_planned("step", *words, *DPO, "--optimizer", "paged-adamw-8bit", within=0.003)


def test_stage_0_in_float32_updates_in_a_phase_of_its_own(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="0", method="full")
    assert_planned("step", *words, *DPO, "--precision", "fp32", within=0.003)


def test_a_second_model_is_on_the_host_where_weights_are(tmp_path):
    words = words_of(tmp_path, gpus=1, zero_stage="3", method="full")
    words += ["--offload-params", "cpu"]
    assert_planned("load init step save", *words, *DPO, within=0.003)


@pytest.mark.parametrize(
    ("gpus", "zero_stage", "method", "options"),
    [
        (1, "none", "full", ("--reference", "precomputed")),
        (1, "none", "lora", ("--kto-loss", "apo-zero-unpaired", "--grad-accum", "2")),
        (2, "none", "full", ("--eval-batch", "2")),
        (2, "2", "full", ()),
        (2, "3", "full", ()),
        (2, "3", "lora", ("--no-activation-checkpointing", "--grad-accum", "2")),
    ],
)
def test_kto_takes_what_is_planned(tmp_path, gpus, zero_stage, method, options):
    words = words_of(tmp_path, gpus=gpus, zero_stage=zero_stage, method=method)
    words += ["--task", "kto", "--seq-len", "160", "--max-completion-tokens", "16", "--micro-batch", "2", *options]
    within = 0.01 if zero_stage == "3" else 0.001
    names = "forward backward step save" + ("" if "precomputed" in options else " reference")
    assert_planned(names, *words, within=within)


@pytest.mark.parametrize(
    ("gpus", "zero_stage", "method", "options"),
    [
        (1, "none", "lora", ("--task", "kto", "--eval-batch", "2")),
        (2, "none", "lora", ("--task", "dpo")),
        (1, "none", "qlora", ("--task", "dpo")),
        (2, "2", "lora", ("--task", "dpo", "--train-embeddings")),
    ],
)
def test_a_copy_of_adapters_as_reference_takes_what_is_planned(tmp_path, gpus, zero_stage, method, options):
    words = words_of(tmp_path, gpus=gpus, zero_stage=zero_stage, method=method)
    words += ["--reference", "adapter-copy", "--seq-len", "160", "--max-completion-tokens", "16", "--micro-batch", "2"]
    loads = ("load",) if method == "qlora" else ()  # others are on the host until the trainer is made
    assert_planned(" ".join((*loads, "init forward reference backward step save")), *words, *options, within=0.001)


@pytest.mark.parametrize(
    ("gpus", "zero_stage", "method"),
    [
        *((1, "none", method) for method in ("full", "lora", "qlora", "lora-8bit")),
        *((2, stage, method) for stage in ("none", "0", "1", "2", "3") for method in ("full", "lora")),
        (2, "2", "qlora"),
    ],
)
def test_reward_models_take_what_is_planned(tmp_path, gpus, zero_stage, method):
    words = words_of(tmp_path, gpus=gpus, zero_stage=zero_stage, method=method)
    words += ["--task", "reward", "--seq-len", "160", "--micro-batch", "2", "--grad-accum", "2"]
    assert_planned("init forward backward step save", *words, within=0.005)


def num_gathers(command: str, words: list[str]) -> int:
    done = call(command, *words, "--json")
    assert done.code == 0, done.err
    return done.document["collective_bytes"]["by_kind"]["allgather_base"]["count"]


@pytest.mark.parametrize(
    ("method", "num_metrics", "options"),
    [
        ("lora", 28, ("--task", "dpo", "--max-completion-tokens", "16", "--grad-accum", "2")),
        ("lora", 28, ("--task", "kto", "--max-completion-tokens", "16", "--grad-accum", "2")),
        (
            "full",
            2,
            ("--task", "grpo", "--max-completion-tokens", "8", "--num-generations", "2", "--reference", "copy"),
        ),
    ],
)
def test_small_weights_are_gathered_again_where_the_order_of_modules_is_lost(tmp_path, method, num_metrics, options):
    """Norms and adapters below the persistence threshold, which DeepSpeed releases whenever it knows no order. Numbers
    that TRL gathers for its metrics are not planned."""
    words = words_of(tmp_path, gpus=2, zero_stage="3", method=method)
    words += ["--seq-len", "96", "--micro-batch", "2", *options]
    planned, rehearsed = (num_gathers(command, words) for command in ("estimate", "rehearse"))
    assert planned + num_metrics == pytest.approx(rehearsed, rel=0.01)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("full", ("--task", "dpo", "--max-completion-tokens", "16", "--reference", "copy")),
        ("full", ("--task", "reward", "--grad-accum", "3")),
    ],
)
def test_an_evaluation_before_the_first_step_takes_what_is_planned(tmp_path, method, options):
    words = words_of(tmp_path, gpus=4, zero_stage="3", method=method)
    words += ["--seq-len", "96", "--micro-batch", "2", "--eval-batch", "2", "--eval-samples", "64", "--eval-on-start"]
    assert_planned("forward backward step evaluation save", *words, *options, within=0.005)
