"""Copies of the model under FSDP2 on four ranks: the steps of one copy, a checkpoint of one, and a run that goes on."""

import pytest
from trainer_runs import planned, train_all

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = [pytest.mark.sweep, pytest.mark.long]

WORDS = ("--dummy-data", "64", "--learning-rate", "1e-3", "--save-every", "2")
SHARED = {"num_samples": 64, "global_batch": 16, "micro_batch": 2, "zero_stage": None, "fsdp": True}
RUNS = {
    "together": {"precision": "fp32"},
    "copies": {"precision": "fp32", "dp_shard_size": 2},
    "mixed": {"dp_shard_size": 2},
    "lora": {"method": "lora", "dp_shard_size": 2},
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copies")
    model = write_tiny_model(folder / "llama", "llama")
    plans = {name: planned(model, num_ranks=4, **{"method": "full", **SHARED, **more}) for name, more in RUNS.items()}
    jobs = {name: (plan, WORDS) for name, plan in plans.items()}
    places = {}
    for name in ("mixed", "lora"):
        jobs |= {f"{name}-stopped": (plans[name], WORDS), f"{name}-resumed": (plans[name], (*WORDS, "--resume"))}
        places[f"{name}-resumed"] = f"{name}-stopped"
    stop_after = dict.fromkeys(places.values(), 2)
    return train_all(jobs, folder / "runs", num_ranks=4, places=places, stop_after=stop_after)


def test_copies_take_the_steps_of_one_model_that_all_ranks_share(outcomes):
    together, copies = outcomes["together"], outcomes["copies"]
    assert (together.code, copies.code) == (0, 0), copies.err
    assert len(copies.losses) == 4
    assert copies.losses == pytest.approx(together.losses, rel=1e-5)


def test_a_checkpoint_has_the_shards_of_one_copy(outcomes):
    checkpoint = outcomes["mixed"].folder / "checkpoints" / "step-00000004"
    names = {file.name for file in checkpoint.rglob("rank-*")}
    assert names == {"rank-00000-of-00002.pt", "rank-00001-of-00002.pt"}


@pytest.mark.parametrize("name", ["mixed", "lora"])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(outcomes, name):
    resumed = outcomes[f"{name}-resumed"]
    assert resumed.code == 0, resumed.err
    assert resumed.losses == outcomes[name].losses


@pytest.mark.parametrize("name", ["mixed", "lora"])
def test_what_a_rank_holds_is_what_is_planned(outcomes, name):
    lines = {line["name"]: line for line in outcomes[name].report["planned_and_measured"]}
    for phase in ("forward", "backward", "step"):
        assert lines[f"{phase}, peak"]["error"] == pytest.approx(0, abs=0.03)
