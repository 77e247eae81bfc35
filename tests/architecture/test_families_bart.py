from typing import Any

import pytest

from text_steps import assert_parameters_match
from vlmplan.architecture.families import build_model, has_family
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.model_types.encoder_decoder import BART_TYPES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Precision

SMALL: dict[str, Any] = {
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 1024,
    "decoder_ffn_dim": 512,
    "vocab_size": 4096,
    "pad_token_id": 1,
    "max_position_embeddings": 256,
    "attention_dropout": 0.0,
}
TYPES = {name: {"model_type": name, **SMALL} for name in sorted(BART_TYPES)}
ALTERED = {
    "bart, untied": {**TYPES["bart"], "tie_word_embeddings": False},
    "marian, two tables": {
        **TYPES["marian"],
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 3072,
        "decoder_start_token_id": 1,
    },
    "mbart, untied, relu": {**TYPES["mbart"], "tie_word_embeddings": False, "activation_function": "relu"},
}
BATCH = Batch(micro_batch=3, num_tokens=96, target_tokens=40)


@pytest.mark.parametrize("config", [*TYPES.values(), *ALTERED.values()], ids=[*TYPES, *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def test_a_decoder_without_its_encoder_is_another_model():
    alone = {**TYPES["bart"], "is_encoder_decoder": False}
    assert has_family(TYPES["bart"])
    assert not has_family(alone)
    with pytest.raises(UnknownNameError, match="bart"):
        build_model(alone)


@pytest.mark.parametrize(
    ("num_tokens", "target_tokens", "option"), [(257, 8, "--seq-len is 257"), (8, 257, "--target-len is 257")]
)
def test_more_tokens_than_positions_are_refused(num_tokens, target_tokens, option):
    from tape_probe import predicted_step

    batch = Batch(micro_batch=1, num_tokens=num_tokens, target_tokens=target_tokens)
    with pytest.raises(InputError, match=option):
        predicted_step(TYPES["bart"], batch)


def test_positions_that_are_computed_are_never_trained():
    from vlmplan.architecture.prepare import prepared_model
    from vlmplan.recipe import Recipe
    from vlmplan.recipe.choices import Method

    tree = prepared_model(TYPES["marian"], Recipe(method=Method.FULL))
    fixed = [entry.name for entry in tree.parameters() if not entry.parameter.requires_grad]
    assert fixed == ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"]


def assert_step(config, *, checkpoints=False, attention="sdpa", frozen=(), loss=LossKind.FULL):
    """Forward, a loss of all logits, and backward keep and peak as the real model does."""
    pytest.importorskip("transformers")
    from encoder_decoder_step import measured
    from tape_probe import predicted_step

    real = measured(config, BATCH, checkpoints=checkpoints, attention=attention, frozen=frozen, loss=loss)
    tree = build_model(config)
    for entry in tree.parameters():
        entry.parameter.requires_grad = not entry.name.startswith(tuple(frozen)) and not entry.parameter.is_constant
    ways = {"checkpoints": checkpoints, "implementation": attention, "makes_loss_inside": loss is LossKind.MODEL}
    found = predicted_step(tree, BATCH, loss=loss, **ways)
    assert found.end_live == 0
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(getattr(real, name), rel=0.001), name


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [*TYPES.values(), ALTERED["marian, two tables"]], ids=[*TYPES, "two tables"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("name", ["bart", "pegasus"])
def test_the_loss_of_the_class_is_of_logits_in_their_own_type(name):
    assert_step(TYPES[name], loss=LossKind.MODEL)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_is_frozen_keeps_what_transformers_keeps(checkpoints):
    assert_step(TYPES["bart"], frozen=["model.shared", "model.encoder"], checkpoints=checkpoints)


@pytest.mark.parametrize(
    ("recipe", "num_bytes"),
    [
        (Recipe(zero_stage=2), 2),
        (Recipe(zero_stage=3), 2),
        (Recipe(zero_stage=None), 4),
        (Recipe(zero_stage=None, fsdp=True), 4),
        (Recipe(zero_stage=None, method=Method.LORA), 2),
        (Recipe(zero_stage=None, method=Method.LORA, fsdp=True), 2),
        (Recipe(zero_stage=2, precision=Precision.FP32), 4),
    ],
)
def test_what_is_added_to_logits_is_held_as_it_was_loaded_or_cast_by_deepspeed(recipe, num_bytes):
    from vlmplan.architecture.prepare import prepared_model
    from vlmplan.engines.parameters import ParameterTable

    for config in (TYPES["bart"], ALTERED["marian, two tables"]):
        table = ParameterTable(prepared_model(config, recipe))
        assert table.buffer_bytes == config.get("decoder_vocab_size", config["vocab_size"]) * num_bytes
