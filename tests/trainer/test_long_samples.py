"""Real runs of long samples on CPU ranks: tiled MLPs train to the same losses, and take the memory that is planned.

What is shared by Ulysses has processes of its own here: DeepSpeed puts its attention into transformers for the rest of
a process, and a model that is left there is measured with the next.
"""

import json
from pathlib import Path

import pytest
from every_memory import differences
from trainer_runs import planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--learning-rate", "1e-2", "--max-steps", "2")
SEQ_LEN = 320
"""Five tiles of a model of width 64."""
LOSS_TOLERANCE = 1e-5
MEMORY_TOLERANCE = 0.005
OPTIONS = {"seq_len": SEQ_LEN, "num_samples": 16, "precision": "fp32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "llama", "llama")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Chats that fill their rows."""
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    words = [" ".join(str(place * factor % 89) for place in range(400)) for factor in range(3, 19)]
    chats = [[{"role": "user", "content": "Count"}, {"role": "assistant", "content": text}] for text in words]
    path.write_text("\n".join(json.dumps({"messages": chat}) for chat in chats))
    return path


def trained(model, data, folder, setups, num_ranks):
    jobs = {}
    for name, setup in setups.items():
        given = {"micro_batch": 1, "global_batch": num_ranks // setup.get("sequence_parallel", 1), **OPTIONS, **setup}
        jobs[name] = planned(model, num_ranks=num_ranks, **given), ("--train-data", str(data), *WORDS)
    outcomes = train_all(jobs, folder, num_ranks=num_ranks)
    for name, outcome in outcomes.items():
        assert outcome.code == 0, (name, str(outcome.code)[-3000:])
    return jobs, outcomes


SETUPS = {
    1: {"plain": {"zero_stage": "none"}},
    2: {"stage 2": {"zero_stage": "2", "grad_accum": 1}, "adapters": {"zero_stage": "3", "method": "lora"}},
    4: {"stage 3": {"zero_stage": "3"}},
}


@pytest.mark.sweep
@pytest.mark.parametrize("num_ranks", SETUPS)
def test_tiled_mlps_train_to_the_losses_of_whole_ones(num_ranks, model, data, tmp_path):
    setups = {
        f"{name}, {word}": {"method": "full", **setup, "tiled_mlp": word == "tiled"}
        for name, setup in SETUPS[num_ranks].items()
        for word in ("whole", "tiled")
    }
    _, outcomes = trained(model, data, tmp_path, setups, num_ranks)
    for name in SETUPS[num_ranks]:
        whole, tiled = outcomes[f"{name}, whole"].losses, outcomes[f"{name}, tiled"].losses
        assert tiled == pytest.approx(whole, rel=LOSS_TOLERANCE), name


@pytest.mark.sweep
def test_a_shared_sample_with_tiled_mlps_takes_what_is_planned(model, data, tmp_path):
    """Under ZeRO-3 gloo's reduce-scatter has a copy of its input, see ``every_memory.py``."""
    setup = {"zero_stage": "1", "method": "full", "sequence_parallel": 2, "tiled_mlp": True, "precision": "bf16"}
    jobs, outcomes = trained(model, data, tmp_path, {"shared": setup}, 2)
    for error, line in differences(model, "shared", jobs["shared"][0], outcomes["shared"]):
        assert abs(error) < MEMORY_TOLERANCE, line
