"""Copies of the model under FSDP2 and FSDP1 on four ranks: the steps of one copy, a checkpoint of one, and a run that
goes on."""

import pytest
import torch
from safetensors.torch import load_file
from trainer_runs import planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = [pytest.mark.sweep, pytest.mark.long]

WORDS = ("--dummy-data", "64", "--learning-rate", "1e-3", "--save-every", "2")
SHARED = {"num_samples": 64, "global_batch": 16, "micro_batch": 2, "zero_stage": None, "fsdp": True}
FLAT = {"flat_parameters": "backward-pre", "shard_units": "layers"}
COPIES = {
    "mixed": {},
    "lora": {"method": "lora"},
    "flat": FLAT | {"sync_each_batch": False},
    "flat lora": FLAT | {"method": "lora", "reshard_after_forward": False, "uses_orig_params": False},
}
RUNS = {
    "together": {"precision": "fp32"},
    "copies": {"precision": "fp32", "dp_shard_size": 2},
    "flat copies": FLAT | {"precision": "fp32", "dp_shard_size": 2},
    **{name: {**more, "dp_shard_size": 2} for name, more in COPIES.items()},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    model = write_tiny_model(folder / "llama", "llama")
    plans = {name: planned(model, num_ranks=4, **{"method": "full", **SHARED, **more}) for name, more in RUNS.items()}
    jobs = {name: (plan, WORDS) for name, plan in plans.items()}
    places = {}
    for name in COPIES:
        jobs |= {f"{name}-stopped": (plans[name], WORDS), f"{name}-resumed": (plans[name], (*WORDS, "--resume"))}
        places[f"{name}-resumed"] = f"{name}-stopped"
    stop_after = dict.fromkeys(places.values(), 2)
    return train_all(jobs, folder / "runs", num_ranks=4, places=places, stop_after=stop_after)


@pytest.mark.parametrize("name", ["copies", "flat copies"])
def test_copies_take_the_steps_of_one_model_that_all_ranks_share(outcomes, name):
    together, copies = outcomes["together"], outcomes[name]
    assert (together.code, copies.code) == (0, 0), copies.err
    assert len(copies.losses) == 4
    assert copies.losses == pytest.approx(together.losses, rel=1e-5)
    left, expected = (load_file(run.folder / "model" / "model.safetensors") for run in (copies, together))
    assert left.keys() == expected.keys()
    for name, weight in left.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["mixed", "flat"])
def test_a_checkpoint_has_the_shards_of_one_copy(outcomes, name):
    checkpoint = outcomes[name].folder / "checkpoints" / "step-00000004"
    names = {file.name for file in checkpoint.rglob("rank-*")}
    assert names == {"rank-00000-of-00002.pt", "rank-00001-of-00002.pt"}


@pytest.mark.parametrize("name", COPIES)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(outcomes, name):
    resumed = outcomes[f"{name}-resumed"]
    assert resumed.code == 0, resumed.err
    assert resumed.losses == outcomes[name].losses


@pytest.mark.parametrize("name", COPIES)
def test_what_a_rank_holds_is_what_is_planned(outcomes, name):
    lines = {line["name"]: line for line in outcomes[name].report["planned_and_measured"]}
    for phase in ("forward", "backward", "step"):
        assert lines[f"{phase}, peak"]["error"] == pytest.approx(0, abs=0.03)
