"""ZeRO-3 on two CPU ranks: nobody holds the whole model, and the chunked loss trains as it does at stage 0."""

import pytest
import sharded_trainer_probe

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = pytest.mark.sweep

CASES = {
    "full": {"method": "full", "is_tied": False},
    "full, tied": {"method": "full", "is_tied": True, "activation_checkpointing": False},
    "lora on the head": {"method": "lora", "is_tied": False, "lora_targets": "lm_head,q_proj"},
    "copied embeddings, tied": {"method": "lora", "is_tied": True, "train_embeddings": True},
    "random": {"method": "full", "is_tied": False, "random_weights": True},
}
PRETRAINED = [name for name, case in CASES.items() if not case.get("random_weights")]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each case was found to do: all of them by the same two processes."""
    folder = tmp_path_factory.mktemp("llama")
    for is_tied in (False, True):
        write_tiny_model(folder / str(is_tied), "llama", ties_weights=is_tied)
    return sharded_trainer_probe.run(folder, CASES)


@pytest.mark.long
@pytest.mark.parametrize("name", PRETRAINED)
def test_the_chunked_loss_under_zero_3_trains_as_the_plain_one_under_stage_0(outcomes, name):
    for rank in outcomes[name]:
        plain = rank["plain"]["losses"]
        assert len(set(plain)) == sharded_trainer_probe.NUM_STEPS
        assert rank["sharded"]["losses"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_rank_has_its_half_of_every_weight(outcomes, name):
    for rank in outcomes[name]:
        sharded = rank["sharded"]
        assert sharded["num_sharded"] == sharded["num_base"] > 0
        # Each weight is padded to a multiple of the ranks by itself, at most by one float32 for two of them.
        most = sharded["base_bytes"] / sharded_trainer_probe.NUM_RANKS + 4 * sharded["num_base"]
        assert sharded["shard_bytes"] <= most


@pytest.mark.parametrize("name", ["full", "full, tied", "random"])
def test_no_rank_ever_has_the_whole_model_while_it_is_loaded(outcomes, name):
    """transformers lets rank 0 read the checkpoint for all, so only the others are held to it where there is one."""
    for rank in outcomes[name] if name == "random" else outcomes[name][1:]:
        assert rank["sharded"]["load_peak_bytes"] < rank["sharded"]["base_bytes"]
