"""FSDP1 on two ranks: the steps, results and checkpoints of whole copies, and the bytes that are rehearsed."""

import pytest
import torch
from beside_real_runs import WORDS as MEASURED
from beside_real_runs import lines
from rehearsals import many_rehearsed, really_run, request_for
from safetensors.torch import load_file
from trainer_runs import planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = pytest.mark.sweep

WORDS = ("--dummy-data", "48", "--learning-rate", "1e-2", "--max-steps", "6", "--measured-steps", "1")
FLAT = {"zero_stage": None, "fsdp": True, "shard_units": "layers", "flat_parameters": "on-demand"}
ONCE = {"grad_accum": 3, "sync_each_batch": False}
KINDS = {
    "on demand": {},
    "float32": {"precision": "fp32"},
    "bf16 alone": {"precision": "bf16-pure"},
    "ahead": {"flat_parameters": "backward-pre", "prefetches_forward": True},
    "behind": {"flat_parameters": "backward-post", "uses_orig_params": False},
    "kept": {"reshard_after_forward": False},
    "kept, reduced once": {"reshard_after_forward": False, "flat_parameters": "backward-pre", **ONCE},
    "reduced once": ONCE,
    "reduced each time": {"grad_accum": 3},
    "unchecked": {"activation_checkpointing": False, "loss": "full"},
    "adapters": {"method": "lora"},
    "adapters ahead": {"method": "lora", "flat_parameters": "backward-pre", "uses_orig_params": False},
    "adapters in groups": {"method": "lora", "loraplus_lr_ratio": 16.0},
    "packed": {"method": "qlora", "flat_parameters": "backward-pre", "uses_orig_params": False},
    "adapters kept": {"method": "lora", "activation_checkpointing": False, "reshard_after_forward": False, **ONCE},
}
SEEN_KINDS = {
    "frozen tower": {"train_vision": False},
    "frozen tower, float32 and ahead": {
        "train_vision": False,
        "weight_dtype": "float32",
        "flat_parameters": "backward-pre",
        "prefetches_forward": True,
        **ONCE,
    },
    "frozen layers behind": {"train_language": False, "flat_parameters": "backward-post", "loss": "full"},
    "frozen tower in the root, kept": {
        "train_vision": False,
        "shard_units": "language-layers",
        "reshard_after_forward": False,
        "activation_checkpointing": False,
    },
}
"""Of a model that sees: the root has weights of every part."""
EXACT = {"precision": "fp32", "grad_accum": 2}
RUNS = {
    "whole": EXACT,
    "flat": {**FLAT, **EXACT},
    "flat views": {**FLAT, **EXACT, "sync_each_batch": False, "flat_parameters": "backward-pre"},
    "flat alone": {**FLAT, **EXACT, "uses_orig_params": False},
    "adapted": {**EXACT, "method": "lora"},
    "adapted flat": {**FLAT, **EXACT, "method": "lora"},
    "adapted flat alone": {**FLAT, **EXACT, "method": "lora", "uses_orig_params": False},
    "frozen whole": {**EXACT, "train_vision": False},
    "frozen flat": {**FLAT, **EXACT, "train_vision": False},
    "packed": {**EXACT, "method": "qlora"},
    "packed flat": {**FLAT, **EXACT, "method": "qlora"},
    "packed flat alone": {
        **FLAT,
        **EXACT,
        "method": "qlora",
        "uses_orig_params": False,
        "reshard_after_forward": False,
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama")


def plan_of(model, **options):
    fields = {"method": "full", "num_samples": 48, "micro_batch": 2, "seq_len": 64}
    return planned(model, num_ranks=2, **{**fields, **options})


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "qwen2_vl", "qwen2_vl")


@pytest.fixture(scope="module")
def outcomes(model, seeing, tmp_path_factory):
    models = {name: seeing if name.startswith("frozen") else model for name in RUNS}
    jobs = {name: (plan_of(models[name], **options), WORDS) for name, options in RUNS.items()}
    stopped = {f"{name}, stopped": jobs[name] for name in ("flat views", "flat alone")}
    again = {f"{name}, resumed": (jobs[name.split(",")[0]][0], (*WORDS, "--resume")) for name in stopped}
    places = {f"{name}, resumed": name for name in stopped}
    folder = tmp_path_factory.mktemp("runs")
    return train_all(
        {**jobs, **stopped, **again}, folder, num_ranks=2, places=places, stop_after=dict.fromkeys(stopped, 3)
    )


OF_WHOLE = {"flat": "whole", "adapted": "adapted", "packed": "packed", "frozen": "frozen whole"}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in RUNS if "flat" in name])
def test_flat_parameters_take_the_steps_of_whole_ones_and_leave_the_same(outcomes, name):
    whole, found = outcomes[OF_WHOLE[name.split()[0]]], outcomes[name]
    assert (whole.code, found.code) == (0, 0), whole.err + found.err
    assert len(found.losses) == len(whole.losses) > 3
    assert found.losses == pytest.approx(whole.losses, rel=1e-4)
    left = "model" if name.startswith(("flat", "frozen")) else "adapter"
    [expected], [made] = ([*(one.folder / left).glob("*.safetensors")] for one in (whole, found))
    expected, made = load_file(expected), load_file(made)
    assert made.keys() == expected.keys()
    for key, weight in expected.items():
        torch.testing.assert_close(made[key], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["flat views", "flat alone"])
def test_a_run_goes_on_from_its_shards(outcomes, name):
    resumed = outcomes[f"{name}, stopped, resumed"]
    assert resumed.code == 0, resumed.err
    assert resumed.losses == outcomes[name].losses


@pytest.mark.long
def test_real_ranks_hold_the_bytes_that_are_rehearsed(tmp_path):
    wide = write_tiny_model(tmp_path / "llama", "llama", hidden_size=128, vocab_size=2048)
    seeing = write_tiny_model(tmp_path / "qwen2_vl", "qwen2_vl", hidden_size=128, vocab_size=2048)
    plans = {
        name: plan_of(one, **{**FLAT, **options})
        for one, kinds in ((wide, KINDS), (seeing, SEEN_KINDS))
        for name, options in kinds.items()
    }
    real = really_run(plans, tmp_path, num_ranks=2, words=MEASURED)
    asked = [(name, rank) for name in plans for rank in range(2)]
    answers = many_rehearsed([request_for(plans[name], rank=rank) for name, rank in asked])
    for (name, rank), answer in zip(asked, answers, strict=True):
        for line in lines(name, rank, real[rank][name], answer["phases"]):
            is_of_run = line.phase != "save" or line.kind == "resident"
            assert not is_of_run or line.real_bytes == line.rehearsed_bytes, line
