from dataclasses import replace
from typing import Any

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.audio import audio_shape
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

SMALL: dict[str, Any] = {
    "model_type": "whisper",
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 512,
    "vocab_size": 4096,
    "num_mel_bins": 40,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
    "max_source_positions": 100,
    "max_target_positions": 64,
}
CONFIGS = {
    "small": SMALL,
    "untied": {**SMALL, "tie_word_embeddings": False},
    "dropped": {**SMALL, "dropout": 0.1, "activation_dropout": 0.1},
}
SOUND = audio_shape(SMALL, {"chunk_length": 2}, seconds=1.5)
BATCH = Batch(micro_batch=3, num_tokens=100, target_tokens=40, audios_per_sample=1, audio=SOUND)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def test_more_tokens_than_positions_are_refused():
    from tape_probe import predicted_step

    batch = Batch(micro_batch=1, num_tokens=100, target_tokens=65, audios_per_sample=1, audio=SOUND)
    with pytest.raises(InputError, match="--target-len is 65"):
        predicted_step(SMALL, batch)


def assert_step(config, *, checkpoints=False, attention="sdpa", frozen=(), batch=BATCH):
    """Forward, the trainer's loss of all logits, and backward keep and peak as the real model does."""
    pytest.importorskip("transformers")
    from encoder_decoder_step import measured
    from tape_probe import predicted_step

    tree = build_model(config)
    shape = tree.spectrogram_shape(batch)
    real = measured(config, batch, checkpoints=checkpoints, attention=attention, frozen=frozen, spectrograms=shape)
    for entry in tree.parameters():
        entry.parameter.requires_grad = not entry.name.startswith(tuple(frozen)) and not entry.parameter.is_constant
    ways = {"checkpoints": checkpoints, "implementation": attention, "makes_loss_inside": False}
    found = predicted_step(tree, batch, **ways)
    assert found.end_live == 0
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(getattr(real, name), rel=0.001), name


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_sample_does_too(attention, checkpoints):
    assert_step(SMALL, attention=attention, checkpoints=checkpoints, batch=replace(BATCH, micro_batch=1))


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", ["model.encoder", "model.decoder.embed_tokens"])
def test_what_is_frozen_keeps_what_transformers_keeps(frozen, checkpoints):
    assert_step(SMALL, frozen=[frozen], checkpoints=checkpoints)
