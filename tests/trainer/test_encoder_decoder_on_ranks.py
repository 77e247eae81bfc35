"""Models with an encoder and a decoder on two ranks: FSDP2 and ZeRO-3 take the steps of whole copies."""

import pytest
from speech_folders import write_whisper
from trainer_runs import planned, train_all

from encoder_decoder_folders import write_model

pytestmark = [pytest.mark.sweep, pytest.mark.long]

WORDS = ("--dummy-data", "16", "--learning-rate", "1e-3", "--max-steps", "3")
ENGINES = {"ddp": {"zero_stage": None}, "fsdp": {"zero_stage": None, "fsdp": True}, "zero3": {"zero_stage": "3"}}
MODELS = {
    "bart": ("bart", {}),
    "bart, untied": ("bart", {"tie_word_embeddings": False}),
    "marian, two tables": ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 320}),
    "t5": ("t5", {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
    "prophetnet": ("prophetnet", {}),
    "whisper": ("whisper", {}),
}
WITHOUT_CHANCE = dict.fromkeys(("dropout", "dropout_rate"), 0.0)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    jobs = {}
    for name, (kind, changes) in MODELS.items():
        place = folder / name
        lengths = {"target_len": 32} if kind == "whisper" else {"seq_len": 32, "target_len": 16}
        model = write_whisper(place) if kind == "whisper" else write_model(place, kind, **changes, **WITHOUT_CHANCE)
        for engine, options in ENGINES.items():
            plan = planned(model, num_ranks=2, method="full", micro_batch=2, precision="fp32", **lengths, **options)
            jobs[f"{name}-{engine}"] = (plan, WORDS)
    return train_all(jobs, folder / "runs", num_ranks=2)


@pytest.mark.parametrize("engine", ["fsdp", "zero3"])
@pytest.mark.parametrize("name", MODELS)
def test_sharded_weights_take_the_steps_of_whole_ones(outcomes, name, engine):
    whole, found = outcomes[f"{name}-ddp"], outcomes[f"{name}-{engine}"]
    assert (whole.code, found.code) == (0, 0), whole.err + found.err
    assert len(found.losses) == 3
    assert found.losses == pytest.approx(whole.losses, rel=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_what_fsdp_leaves_is_what_whole_weights_leave(outcomes, name):
    import torch
    from safetensors.torch import load_file

    [whole], [found] = (
        [*(outcomes[f"{name}-{engine}"].folder / "model").glob("*.safetensors")] for engine in ("ddp", "fsdp")
    )
    expected, made = load_file(whole), load_file(found)
    assert made.keys() == expected.keys()
    for key, weight in expected.items():
        torch.testing.assert_close(made[key], weight, rtol=1e-3, atol=1e-5)
