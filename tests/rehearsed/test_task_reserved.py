"""Reserved bytes of DPO, KTO, GRPO and reward models with torch's native allocator beside those of TRL's own trainers.

Rehearsed with TRL 1.16, transformers 5.23 and DeepSpeed 0.19.8: ``vlmplan rehearse`` with these options, whose events
go through the same model of the allocator. Up to two thirds of what is reserved are no tensors at the peak.
"""

import json
from pathlib import Path

import pytest
from rehearsed_cases import SMALL_LLAMA, write_model

from cli_calls import call

CONFIG = {"model_type": "llama", **SMALL_LLAMA, "max_position_embeddings": 4096}
ADAPTERS = "--method lora --reference adapter-off"
RESERVED = {
    f"1 --zero-stage none {ADAPTERS} --task dpo --micro-batch 2": 278_921_216,
    f"4 --zero-stage 3 {ADAPTERS} --task dpo --micro-batch 2": 325_058_560,
    f"4 --zero-stage 3 {ADAPTERS} --task dpo --micro-batch 2 --eval-batch 2 --eval-on-start": 325_058_560,
    "2 --zero-stage 3 --method full --task dpo --reference copy --micro-batch 2 --eval-batch 4 --eval-on-start": (
        1_224_736_768
    ),
    "2 --zero-stage none --method full --task dpo --reference copy --micro-batch 2 --grad-accum 2": 1_432_354_816,
    "2 --zero-stage 3 --method lora --reference precomputed --task dpo --micro-batch 2 --eval-batch 4": 517_996_544,
    "2 --zero-stage 2 --method full --reference precomputed --task dpo --micro-batch 2": 1_090_519_040,
    "1 --zero-stage 3 --method full --reference precomputed --task dpo --micro-batch 2": 1_499_463_680,
    f"2 --zero-stage 3 {ADAPTERS} --task kto --micro-batch 4 --no-activation-checkpointing": 427_819_008,
    "2 --zero-stage 2 --method full --task kto --reference copy --micro-batch 4": 1_115_684_864,
    "2 --zero-stage 3 --method full --task dpo --reference copy --micro-batch 2": 1_113_587_712,
    "1 --zero-stage 3 --method full --task kto --reference copy --kto-loss apo-zero-unpaired --micro-batch 4 "
    "--eval-batch 2 --eval-on-start": 1_639_972_864,
    "2 --zero-stage 3 --method full --task dpo --reference copy --micro-batch 2 --eval-batch 4": 1_283_457_024,
    "2 --zero-stage 3 --method lora --task reward --micro-batch 4": 247_463_936,
    "1 --zero-stage none --method lora --task grpo --micro-batch 4": 230_686_720,
    "2 --zero-stage 2 --method full --task grpo --reference copy --micro-batch 4 --grad-accum 2": 1_138_753_536,
    f"2 --zero-stage 3 {ADAPTERS} --task grpo --micro-batch 4": 329_252_864,
    f"2 --zero-stage 3 {ADAPTERS} --task grpo --micro-batch 4 --eval-batch 4 --eval-on-start": 329_252_864,
    "1 --zero-stage none --method lora --task grpo --micro-batch 4 --eval-batch 8": 264_241_152,
}


@pytest.mark.parametrize("options", RESERVED)
def test_reserved_bytes_of_tasks_are_the_rehearsed_ones(options: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    num_gpus, words = options.split(maxsplit=1)
    samples = ("--eval-samples", "64") if "--eval-batch" in words else ()
    if "grpo" in words:
        samples = ("--max-completion-tokens", "64", "--num-generations", "4")
    own = ("--model", str(tmp_path), "--gpu", f"h100-sxm:{num_gpus}", "--seq-len", "256", "--no-expandable-segments")
    answer = call("estimate", *own, *words.split(), *samples, "--json").document
    assert answer["peak_reserved_bytes"] == RESERVED[options]
    assert not [note for note in answer["notes"] if "keeps unused" in note]


def test_reserved_bytes_of_a_model_that_sees_are_the_rehearsed_ones(tmp_path: Path):
    """SmolVLM of few layers by KTO with a second model: the batch is there before all four forwards, biases of the
    vision encoder come and go with their weights, and which tiles are not empty is counted in 64 bit."""
    layers = {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 3}}
    write_model({"alias": "smolvlm-256m", "config": layers}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--method", "full", "--task", "kto")
    words += ("--reference", "copy", "--micro-batch", "2", "--seq-len", "1300", "--image-size", "512x512")
    answer = call("estimate", *words, "--images-per-sample", "1", "--no-expandable-segments", "--json").document
    assert answer["peak_reserved_bytes"] == 3_351_248_896


def test_generation_encodes_images_before_it_embeds_words(tmp_path: Path):
    """InternVL3 of few layers by GRPO: ``generate`` runs the vision encoder itself, and what that returns stays."""
    layers = {"text_config": {"num_hidden_layers": 3}, "vision_config": {"num_hidden_layers": 3}}
    write_model({"alias": "internvl3-1b", "config": layers}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "1", *ADAPTERS.split(), "--task", "grpo")
    words += ("--micro-batch", "4", "--num-generations", "2", "--max-completion-tokens", "4", "--seq-len", "1500")
    words += ("--images-per-sample", "1", "--image-size", "448x448", "--no-expandable-segments")
    assert call("estimate", *words, "--json").document["peak_reserved_bytes"] == 1_520_435_200


@pytest.mark.parametrize(("num_gpus", "rehearsed"), [(1, 830_472_192), (2, 1_077_936_128)])
def test_what_autocast_casts_comes_anew_for_each_token_and_is_not_kept(num_gpus: int, rehearsed: int, tmp_path: Path):
    """Only keys and values grow by tokens. Of two GPUs, DDP makes its buckets anew behind the first backward."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = ("--model", str(tmp_path), "--gpu", f"h100-sxm:{num_gpus}", "--zero-stage", "none", "--method", "full")
    words += ("--task", "grpo", "--reference", "none", "--micro-batch", "4", "--num-generations", "4")
    words += ("--seq-len", "256", "--max-completion-tokens", "64", "--no-expandable-segments", "--json")
    assert call("estimate", *words).document["peak_reserved_bytes"] == pytest.approx(rehearsed, rel=0.005)


def test_adapters_that_are_looked_at_stay_whole_while_the_reference_is_looked_up(tmp_path: Path):
    """Of the first rollout DeepSpeed remembers that there was nothing to release, as no adapter had been read yet."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", "--seq-len", "256")
    words += (*ADAPTERS.split(), "--task", "grpo", "--micro-batch", "4", "--grad-accum", "4", "--num-generations", "4")
    words += ("--max-completion-tokens", "4", "--no-activation-checkpointing", "--no-expandable-segments")
    answer = call("estimate", *words, "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["reference"] == pytest.approx(185_417_216, rel=0.0001)
    assert answer["peak_reserved_bytes"] == 438_304_768


@pytest.mark.parametrize(
    ("further", "rehearsed"), [((), 1_470_103_552), (("--use-dora", "--optimizer", "lion"), 1_342_177_280)]
)
def test_a_head_beside_its_trained_copy_is_read_when_adapters_are_off_for_the_first_time(further, rehearsed, tmp_path):
    """A Llama of two layers and 64,001 words: until then forwards gather the copy alone."""
    changes = {"num_hidden_layers": 2, "vocab_size": 64_001}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--zero-stage", "3", *ADAPTERS.split(), *further)
    words += ("--train-embeddings", "--task", "dpo", "--micro-batch", "4", "--seq-len", "64")
    words += ("--activation-checkpointing", "--no-expandable-segments", "--json")
    assert call("estimate", *words).document["peak_reserved_bytes"] == rehearsed


@pytest.mark.parametrize(
    ("options", "rehearsed"),
    [
        ("h100-sxm:1 --micro-batch 2", 213_909_504),
        ("h100-sxm:2 --micro-batch 4 --use-dora --train-embeddings", 1_052_770_304),
    ],
)
def test_shards_of_a_head_that_is_read_for_the_first_time_come_from_the_host_beside_it(options, rehearsed, tmp_path):
    """A Llama of two layers and 64,001 words by DPO with parameters on the host."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 2, "vocab_size": 64_001}))
    words = ("--model", str(tmp_path), "--gpu", *options.split(), "--zero-stage", "3", *ADAPTERS.split())
    words += ("--task", "dpo", "--seq-len", "64", "--activation-checkpointing", "--no-expandable-segments")
    words += ("--offload-optimizer", "cpu", "--offload-params", "cpu", "--host-ram", "2000", "--json")
    assert call("estimate", *words).document["peak_reserved_bytes"] == rehearsed


def test_the_first_forward_of_all_holds_the_head_twice_where_the_host_has_its_parameters(tmp_path: Path):
    """Aya Vision of two layers by GRPO: its table of words is 2.1 GB, and answers are scored before a step."""
    layers = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
    write_model({"alias": "aya-vision-8b", "config": layers}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:1", "--zero-stage", "3", *ADAPTERS.split(), "--task", "grpo")
    words += ("--num-generations", "2", "--max-completion-tokens", "16", "--num-iterations", "2", "--micro-batch", "2")
    words += ("--offload-optimizer", "cpu", "--offload-params", "cpu", "--host-ram", "2000", "--seq-len", "1100")
    words += ("--images-per-sample", "1", "--image-size", "224x224", "--no-expandable-segments", "--json")
    answer = call("estimate", *words, "--activation-checkpointing").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["reference"] == pytest.approx(4_292_112_384, rel=1e-3)
    assert answer["peak_reserved_bytes"] == 6_075_449_344


def test_forwards_for_old_log_probabilities_decide_what_later_ones_keep(tmp_path: Path):
    """Qwen1.5-MoE of two layers by GRPO, whose answers last for two steps: forwards over them are the first that go by
    an order of modules, which ends with forward, so that no later forward keeps a layer for its backward."""
    write_model({"alias": "qwen1.5-moe-a2.7b", "config": {"num_hidden_layers": 2}}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:1", "--method", "full", "--task", "grpo", "--zero-stage", "3")
    words += ("--num-generations", "2", "--max-completion-tokens", "32", "--steps-per-generation", "4")
    words += ("--micro-batch", "1", "--grad-accum", "2", "--seq-len", "768", "--activation-checkpointing")
    words += ("--offload-optimizer", "cpu", "--offload-params", "cpu", "--host-ram", "2000", "--expandable-segments")
    answer = call("estimate", *words, "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["reference"] == pytest.approx(3_744_125_952, rel=1e-4)
    assert answer["peak_reserved_bytes"] == 6_517_948_416


def test_a_checkpointed_layer_stays_whole_until_dora_has_the_gradients_of_its_factors(tmp_path: Path):
    """LLaVA-1.5 of two layers by GRPO: the head's gradient is reduced when those of the first factor come."""
    layers = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 2}}
    write_model({"alias": "llava-1.5-7b", "config": layers}, tmp_path)
    words = ("--model", str(tmp_path), "--gpu", "h100-sxm:2", "--method", "lora", "--task", "grpo", "--use-dora")
    words += ("--zero-stage", "3", "--train-embeddings", "--lora-rank", "32", "--num-generations", "4")
    words += ("--max-completion-tokens", "32", "--micro-batch", "4", "--grad-accum", "2", "--seq-len", "900")
    words += ("--activation-checkpointing", "--offload-optimizer", "cpu", "--offload-params", "cpu", "--host-ram")
    words += ("2000", "--train-projector", "--images-per-sample", "1", "--image-size", "224x224", "--json")
    answer = call("estimate", *words, "--reference", "none", "--expandable-segments").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned["backward"] == pytest.approx(4_031_990_272, rel=0.01)


OF_GEMMA = {
    (
        6,
        "h100-sxm:2 --method full --zero-stage 3 --task reward --micro-batch 1 --grad-accum 2 --seq-len 512"
        " --eval-batch 1 --eval-on-start",
    ): ("evaluation", 5_250_999_296, 7_430_209_536),
    (
        2,
        "a100-sxm4-80gb:1 --method qlora --zero-stage none --task kto --reference adapter-off "
        "--max-completion-tokens 100 --micro-batch 2 --seq-len 160 --lora-rank 16 --train-embeddings --eval-batch 2",
    ): ("save", 3_070_740_480, 4_391_436_288),
}
"""Gemma 3 1B, whose table of words is far larger than its layers, with so many of these: the peak of a phase, and
reserved bytes."""


@pytest.mark.sweep
@pytest.mark.parametrize("case", OF_GEMMA)
def test_a_large_table_that_an_evaluation_fetches_ahead_or_a_checkpoint_writes_twice_is_counted(case, tmp_path: Path):
    num_layers, options = case
    name, peak_bytes, reserved_bytes = OF_GEMMA[case]
    write_model({"alias": "gemma-3-1b", "config": {"num_hidden_layers": num_layers}}, tmp_path)
    gpus, words = options.split(maxsplit=1)
    own = ("--model", str(tmp_path), "--gpu", gpus, "--eval-samples", "64")
    further = ("--no-activation-checkpointing", "--no-expandable-segments")
    answer = call("estimate", *own, *words.split(), *further, "--json").document
    planned = {phase["name"]: phase["peak_bytes"] for phase in answer["phases"]}
    assert planned[name] == pytest.approx(peak_bytes, rel=1e-4)
    assert answer["peak_reserved_bytes"] == reserved_bytes
