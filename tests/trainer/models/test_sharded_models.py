"""ZeRO-3 on two CPU ranks: nobody holds the whole model, and the chunked loss trains as it does at stage 0."""

from functools import cache

import pytest
import sharded_trainer_probe

from vlmplan_trainer.models.tiny import write_tiny_model

CASES = {
    "full": {"method": "full", "is_tied": False},
    "full, tied": {"method": "full", "is_tied": True, "activation_checkpointing": False},
    "lora on the head": {"method": "lora", "is_tied": False, "lora_targets": "lm_head,q_proj"},
    "copied embeddings, tied": {"method": "lora", "is_tied": True, "train_embeddings": True},
    "random": {"method": "full", "is_tied": False, "random_weights": True},
}
PRETRAINED = [name for name, case in CASES.items() if not case.get("random_weights")]


IN_EVERY_RUN = ("full, tied", "lora on the head", "random")
IN_SWEEPS = tuple(name for name in CASES if name not in IN_EVERY_RUN)


def swept(*names):
    return [pytest.param(name, marks=[pytest.mark.sweep] if name in IN_SWEEPS else []) for name in names]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each case was found to do; those of every run share their processes, and so do those of sweeps."""
    folder = tmp_path_factory.mktemp("llama")
    for is_tied in (False, True):
        write_tiny_model(folder / str(is_tied), "llama", ties_weights=is_tied)

    @cache
    def found(names):
        return sharded_trainer_probe.run(folder, {name: CASES[name] for name in names})

    return lambda name: found(IN_SWEEPS if name in IN_SWEEPS else IN_EVERY_RUN)[name]


@pytest.mark.parametrize("name", swept(*PRETRAINED))
def test_the_chunked_loss_under_zero_3_trains_as_the_plain_one_under_stage_0(outcomes, name):
    for rank in outcomes(name):
        plain = rank["plain"]["losses"]
        assert len(set(plain)) == sharded_trainer_probe.NUM_STEPS
        assert rank["sharded"]["losses"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("name", swept(*CASES))
def test_every_rank_has_its_half_of_every_weight(outcomes, name):
    for rank in outcomes(name):
        sharded = rank["sharded"]
        assert sharded["num_sharded"] == sharded["num_base"] > 0
        # Each weight is padded to a multiple of the ranks by itself, at most by one float32 for two of them.
        most = sharded["base_bytes"] / sharded_trainer_probe.NUM_RANKS + 4 * sharded["num_base"]
        assert sharded["shard_bytes"] <= most


@pytest.mark.parametrize("name", swept("full", "full, tied", "random"))
def test_no_rank_ever_has_the_whole_model_while_it_is_loaded(outcomes, name):
    """transformers lets rank 0 read the checkpoint for all, so only the others are held to it where there is one."""
    for rank in outcomes(name) if name == "random" else outcomes(name)[1:]:
        assert rank["sharded"]["load_peak_bytes"] < rank["sharded"]["base_bytes"]
