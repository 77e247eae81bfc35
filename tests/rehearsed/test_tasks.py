"""Planned peaks of DPO, KTO and GRPO beside those of TRL's own trainers, rehearsed on tensors without data.

``tasks.json``: TRL 1.16 with transformers 5.23, peft 0.21 and DeepSpeed 0.19.8, scripts of DPOTrainer and GRPOTrainer
as ``vlmplan rehearse --gpu GPU -- python script.py`` runs them, three steps each. Triton kernels do nothing there, as
they allocate nothing. A rehearsal sums a gradient of two parts into a new tensor, a GPU in place: that is what full
training of a model with tied embeddings is below it.
"""

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rehearsed_cases import SMALL_LLAMA, write_model

from cli_calls import call
from vlmplan.request import parse
from vlmplan.requested import requested_estimate
from vlmplan.workload import ModelFiles

FILE = json.loads((Path(__file__).parent / "tasks.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in FILE["cases"]}
WORST, USUAL = 0.06, 0.02


@cache
def error(name: str) -> float:
    case = CASES[name]
    own = FILE["models"][case["model"]]
    model = ModelFiles(id=case["model"], config=own["config"], preprocessor=own.get("preprocessor"))
    options = {**case["options"], "model": case["model"], "ds_config": case["ds_config"]}
    found, _ = requested_estimate(parse(options, model), ())
    return found.peak_allocated_bytes / case["rehearsed_peak_bytes"] - 1


def test_all_peaks_are_near_the_rehearsed_ones():
    errors = [abs(error(name)) for name in CASES]
    assert len(errors) >= 25
    assert max(errors) <= WORST
    assert median(errors) <= USUAL


PHASES: dict[str, dict[str, int]] = json.loads((Path(__file__).parent / "task_phases.json").read_text())
"""Peaks by phase of ``vlmplan rehearse --model llama-3.2-1b --gpu h100-sxm:4 --zero-stage 3`` with these options."""


@pytest.mark.parametrize("options", PHASES)
def test_every_phase_under_zero_3_is_near_the_rehearsed_one(options):
    words = ("estimate", "--model", "llama-3.2-1b", "--gpu", "h100-sxm:4", "--zero-stage", "3", *options.split())
    planned = {phase["name"]: phase["peak_bytes"] for phase in call(*words, "--json").document["phases"]}
    errors = {name: planned[name] / num_bytes - 1 for name, num_bytes in PHASES[options].items()}
    assert all(abs(one) <= 0.01 for one in errors.values()), errors


@pytest.mark.parametrize(
    ("checkpoints", "reference_bytes"),
    [("--no-activation-checkpointing", 6_936_801_792), ("--activation-checkpointing", 3_787_661_824)],
)
def test_the_reference_begins_with_as_many_whole_weights_as_deepspeeds_own_sizes_let_it_prefetch(
    tmp_path: Path, checkpoints: str, reference_bytes: int
):
    """Llama-3.2-1B with LoRA on 4 GPUs, rehearsed with DeepSpeed's own sizes: up to 10^9 elements are whole."""
    config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config))
    words = ("--model", "llama-3.2-1b", "--gpu", "h100-sxm:4", "--ds-config", str(file), "--method", "lora")
    words += ("--task", "dpo", "--seq-len", "512", "--max-completion-tokens", "128", checkpoints)
    planned = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words, "--json").document["phases"]}
    assert planned["reference"] == pytest.approx(reference_bytes, rel=0.002)


@pytest.mark.parametrize(
    ("switch", "reference_bytes", "backward_bytes"),
    [
        ("--no-activation-checkpointing", 1_270_032_384, 1_188_175_872),
        ("--activation-checkpointing", 1_268_047_360, 1_175_032_832),
    ],
)
def test_small_weights_come_and_go_where_a_reference_without_adapters_ends_the_order_of_modules(
    tmp_path: Path, switch: str, reference_bytes: int, backward_bytes: int
):
    """SmolLM2 135M with three layers, LoRA and DPO on two GPUs, as rehearsed: with adapters off other modules run than
    DeepSpeed expects, so that what is up to the persistence threshold is released with all others."""
    write_model({"alias": "smollm2-135m", "config": {"num_hidden_layers": 3}}, tmp_path)
    zero = {"stage": 3, "stage3_param_persistence_threshold": 36_864}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--ds-config", str(tmp_path / "ds.json"), switch)
    words += ("--method", "lora", "--task", "dpo", "--seq-len", "16", "--max-completion-tokens", "8")
    planned = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words, "--json").document["phases"]}
    assert planned["reference"] == pytest.approx(reference_bytes, rel=0.0001)
    assert planned["backward"] == pytest.approx(backward_bytes, rel=0.0001)


def test_a_head_that_is_cast_in_tiles_has_the_next_tile_beside_the_last_in_backward(tmp_path: Path):
    """SmolVLM 500M, whose 49,280 words are two tiles, trained as a whole by DPO on one GPU, as rehearsed."""
    layers = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
    write_model({"alias": "smolvlm-500m", "config": layers}, tmp_path)
    words = (
        "--model",
        str(tmp_path),
        "--gpu",
        "h100-sxm:1",
        "--zero-stage",
        "none",
        "--method",
        "full",
        "--task",
        "dpo",
    )
    words += ("--micro-batch", "2", "--seq-len", "2048", "--loss", "trl", "--no-activation-checkpointing")
    planned = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words, "--json").document["phases"]}
    assert planned["backward"] == pytest.approx(8_952_680_960, rel=0.0005)


def test_pixels_that_were_cast_for_the_forward_are_gone_in_backward(tmp_path: Path):
    """SmolVLM 256M of few layers under ZeRO-3, as rehearsed: its tower copies the tiles that it picks of them."""
    layers = {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 3}}
    write_model({"alias": "smolvlm-256m", "config": layers}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "full", "--task", "kto")
    words += ("--reference", "copy", "--micro-batch", "2", "--seq-len", "1300", "--image-size", "512x512")
    answer = call("estimate", *words, "--images-per-sample", "1", "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["backward"] == pytest.approx(2_717_427_200, rel=0.0005)
    assert planned["reference"] == pytest.approx(2_575_856_640, rel=0.0005)


def test_the_first_answers_are_generated_beside_the_secondary_partitions_of_loading(tmp_path: Path):
    """A Llama of 45 M parameters, optimizer on the host, hpZ of 2 of 4 ranks, as rehearsed; later answers are
    generated beside a quarter of the weights alone."""
    config = {"model_type": "llama", **SMALL_LLAMA, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--gpu", "h100-sxm:2", "--num-nodes", "2", "--hpz", "2", "--zero-stage", "3", "--offload-optimizer", "cpu")
    words += ("--host-ram", "2000", "--method", "full", "--precision", "fp32", "--optimizer", "adamw")
    words += ("--task", "grpo", "--seq-len", "512", "--max-completion-tokens", "128", "--num-generations", "4")
    words += ("--micro-batch", "1", "--grad-accum", "2", "--activation-checkpointing", "--attention", "sdpa")
    answer = call("estimate", "--model", str(tmp_path), *words, "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    workspaces = 1 << 26
    assert planned["generate"] - workspaces == pytest.approx(390_226_432, rel=0.003)


@pytest.mark.parametrize(
    ("options", "rehearsed"),
    [
        ("--task dpo --max-completion-tokens 32 --grad-accum 2", {"evaluation": 269_210_624}),
        ("--task kto --max-completion-tokens 32", {"forward": 277_523_456, "evaluation": 277_539_328}),
        (
            "--task grpo --max-completion-tokens 4 --num-generations 2",
            {"forward": 277_467_648, "evaluation": 277_475_840},
        ),
    ],
)
def test_a_forward_begins_by_the_order_that_the_last_one_has_recorded(
    options: str, rehearsed: dict[str, int], tmp_path: Path
):
    """A Qwen2 of 88 M parameters with LoRA on 4 GPUs, as rehearsed. Until the first adapter comes, or is missing,
    DeepSpeed prefetches by the order of a forward without adapters, or with them."""
    config = {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 4,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 16_000,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32_768,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:4", "--zero-stage", "3", "--method", "lora")
    words += ("--reference", "adapter-off", "--seq-len", "160", "--micro-batch", "2", *options.split())
    words += ("--eval-batch", "2", "--eval-samples", "64")
    planned = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words, "--json").document["phases"]}
    for name, num_bytes in rehearsed.items():
        assert planned[name] == pytest.approx(num_bytes, rel=0.001), name


@pytest.mark.parametrize(
    ("options", "step_bytes"),
    [
        ("--zero-stage 2 --task dpo --seq-len 256", 159_496_192),
        (
            "--zero-stage 1 --task grpo --grad-accum 2 --num-generations 2 --max-completion-tokens 4 --seq-len 256"
            " --no-activation-checkpointing",
            149_914_624,
        ),
        ("--zero-stage none --task dpo --seq-len 256", 139_369_472),
    ],
)
def test_inputs_of_8_bit_layers_stay_through_deepspeeds_step_which_is_part_of_backward(
    options: str, step_bytes: int, tmp_path: Path
):
    """SmolLM2 135M with three layers on two GPUs, as rehearsed: accelerate steps while the trainer names the loss, but
    for DDP, whose step comes when that is gone."""
    write_model({"alias": "smollm2-135m", "config": {"num_hidden_layers": 3}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--method", "lora-8bit", "--micro-batch", "2")
    answer = call("estimate", *words, *options.split(), "--no-expandable-segments", "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["step"] == pytest.approx(step_bytes, rel=0.0005)


@pytest.mark.parametrize(
    ("options", "name", "num_bytes"),
    [
        ("--reference adapter-off", "reference", 272_247_296),
        ("--num-iterations 2 --grad-accum 2", "reference", 272_251_392),
    ],
)
def test_one_gpu_copies_a_head_that_is_read_outside_of_its_module_the_first_time(
    options: str, name: str, num_bytes: int, tmp_path: Path
):
    """GPT-2 with three layers, LoRA and GRPO under ZeRO-3 on one GPU, as rehearsed: nothing else is gathered there."""
    write_model({"alias": "gpt2", "config": {"n_layer": 3}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "3", "--method", "lora", "--task", "grpo")
    words += ("--num-generations", "2", "--max-completion-tokens", "4", "--seq-len", "64", "--micro-batch", "2")
    words += ("--no-activation-checkpointing", "--no-expandable-segments", "--json")
    answer = call("estimate", *words, *options.split()).document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned[name] == pytest.approx(num_bytes, rel=0.0005)
    assert answer["peak_reserved_bytes"] == 322_961_408


def test_small_weights_are_gathered_with_the_others_of_their_modules_behind_answers(tmp_path: Path):
    """GPT-2 with three layers, whose Linears have biases, LoRA and GRPO on four GPUs, as rehearsed: generating has
    gathered and sharded all weights, so that looking answers up makes a matrix out of what came with its bias."""
    write_model({"alias": "gpt2", "config": {"n_layer": 3}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:4", "--zero-stage", "3", "--method", "lora", "--task", "grpo")
    words += ("--reference", "adapter-off", "--num-iterations", "2", "--num-generations", "4", "--micro-batch", "1")
    words += ("--max-completion-tokens", "8", "--seq-len", "64", "--json")
    planned = {phase["name"]: phase["peak_bytes"] for phase in call("estimate", *words).document["phases"]}
    assert planned["reference"] == pytest.approx(188_736_512, rel=0.001)


@pytest.mark.parametrize(
    ("options", "forward_bytes", "evaluation_bytes"),
    [("--eval-on-start", 3_426_653_696, 4_103_647_232), ("", 4_065_742_848, 3_464_564_736)],
)
def test_one_gpu_copies_experts_that_adapters_read_in_the_first_forward_of_all(
    options: str, forward_bytes: int, evaluation_bytes: int, tmp_path: Path
):
    """OLMoE with two layers, LoRA and DPO under ZeRO-3 on one GPU, as rehearsed: the first forward is of the evaluation
    before training, or of the first step."""
    write_model({"alias": "olmoe-1b-7b", "config": {"num_hidden_layers": 2}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "3", "--method", "lora", "--task", "dpo")
    words += ("--seq-len", "128", "--micro-batch", "1", "--eval-batch", "2", "--eval-samples", "64", *options.split())
    answer = call("estimate", *words, "--no-expandable-segments", "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["forward"] == pytest.approx(forward_bytes, rel=0.0005)
    assert planned["evaluation"] == pytest.approx(evaluation_bytes, rel=0.0005)
    assert answer["peak_reserved_bytes"] == 4_190_109_696


@pytest.mark.parametrize(
    ("case", "options", "phase", "num_bytes", "error"),
    [
        (
            {"alias": "phi-1.5", "config": {"num_hidden_layers": 2}},
            "--gpu h100-sxm:2 --train-embeddings --reference none --num-generations 2 --num-iterations 2 "
            "--seq-len 64 --activation-checkpointing --offload-optimizer cpu --host-ram 2000 --expandable-segments",
            "reference",
            1_224_604_160,
            0.002,
        ),
        (
            {"alias": "starcoder2-3b", "config": {"num_hidden_layers": 2}},
            "--gpu h100-sxm:4 --use-dora --reference adapter-off --num-generations 4 --grad-accum 2 --optimizer sgd "
            "--seq-len 160 --no-activation-checkpointing --no-expandable-segments",
            "forward",
            1_511_791_104,
            0.02,
        ),
    ],
    ids=["one forward behind generated answers knows no order", "DoRA does not run with adapters off"],
)
def test_forwards_of_grpo_go_by_the_order_that_was_recorded_last(
    tmp_path: Path, case: dict[str, Any], options: str, phase: str, num_bytes: int, error: float
):
    """LoRA under ZeRO-3 with TRL 1.16, of two layers of these models, rehearsed."""
    write_model(case, tmp_path)
    words = ("--model", str(tmp_path), "--method", "lora", "--zero-stage", "3", "--task", "grpo", *options.split())
    words += ("--micro-batch", "2", "--max-completion-tokens", "16")
    planned = {one["name"]: one["peak_bytes"] for one in call("estimate", *words, "--json").document["phases"]}
    assert planned[phase] == pytest.approx(num_bytes, rel=error)


def test_hugging_faces_trainer_steps_within_backward_too(tmp_path: Path):
    """A script of transformers' Trainer with 8-bit layers and LoRA under ZeRO-2 on 2 GPUs, rehearsed: what they hold of
    their inputs stays through the step, while ``training_step`` names the loss."""
    write_model(
        {
            "alias": "smollm2-135m",
            "config": SMALL_LLAMA,
        },
        tmp_path,
    )
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "2", "--method", "lora-8bit")
    words += ("--seq-len", "512", "--micro-batch", "4", "--batches-on-gpu", "step-float32", "--loss", "model")
    planned = call("estimate", *words, "--no-activation-checkpointing", "--json").document["phases"]
    peaks = {phase["name"]: phase["peak_bytes"] for phase in planned}
    assert peaks["step"] == pytest.approx(201_086_976, rel=0.0005)
