"""MLPs tile by tile: DeepSpeed's function on transformers' models, beside whole MLPs."""

from pathlib import Path

import pytest
import torch
from loss_models import batch, distance_fraction, gradients, small_model

from vlmplan.architecture.prepare import prepared_model
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.rules.tiles import TILED_TYPES
from vlmplan_trainer.losses.loss import language_loss
from vlmplan_trainer.models.parts import Parts
from vlmplan_trainer.models.tiling import gated_mlps, tile_mlps
from vlmplan_trainer.models.tiny import write_tiny_model

MICRO_BATCH, NUM_TOKENS = 2, 150
TOLERANCE = 2e-6
TILED = Recipe(tiled_mlp=True)
SMALL = sorted(TILED_TYPES - {"gemma3", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_text", "qwen3_vl"})
"""Those that are language models by themselves."""


def step(model, num_tokens):
    """(loss, gradients)"""
    loss = language_loss(model, batch(MICRO_BATCH, num_tokens), kind=LossKind.FULL)
    return float(loss.detach()), gradients(model, loss)


def tiled_model(kind, seq_len=NUM_TOKENS, **options):
    model = small_model(kind, **options)
    tile_mlps(model, TILED, seq_len)
    return model


@pytest.mark.parametrize("kind", SMALL)
def test_losses_and_gradients_are_those_of_whole_mlps(kind):
    (loss, found), (expected_loss, expected) = step(tiled_model(kind), NUM_TOKENS), step(small_model(kind), NUM_TOKENS)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert distance_fraction(found, expected) < TOLERANCE


@pytest.mark.parametrize("num_tokens", [9, 22])
def test_short_samples_have_as_many_tiles_as_long_ones(num_tokens):
    """torch.chunk would make fewer, whose gradients DeepSpeed would never hand over."""
    found, expected = step(tiled_model("llama", seq_len=999), num_tokens), step(small_model("llama"), num_tokens)
    assert distance_fraction(found[1], expected[1]) < TOLERANCE


def test_the_first_tile_makes_weights_wait_and_the_last_hands_them_over():
    seen = []
    model = tiled_model("llama")
    weight = model.model.layers[0].mlp.down_proj.weight
    weight.register_post_accumulate_grad_hook(lambda one: seen.append(one.ds_grad_is_ready))
    step(model, 22)
    count = -(-NUM_TOKENS // model.config.hidden_size)
    assert seen == [False] * (count - 1) + [True]


def test_weights_behind_frozen_ones_get_their_gradients():
    """The input of the first MLP needs no gradient by itself."""
    found, expected = tiled_model("llama"), small_model("llama")
    for model in (found, expected):
        for name, weight in model.named_parameters():
            weight.requires_grad_("mlp" in name)
    assert distance_fraction(step(found, 99)[1], step(expected, 99)[1]) < TOLERANCE


@pytest.mark.parametrize("kind", ["llama", "qwen2_vl"])
def test_trainer_and_planner_mean_the_same_mlps(kind, tmp_path: Path):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(write_tiny_model(tmp_path / kind, kind))
    auto = AutoModelForCausalLM if kind == "llama" else AutoModelForImageTextToText
    with torch.device("meta"):
        model = auto.from_config(config)
    named = {id(module): name for name, module in model.named_modules()}
    tree = prepared_model(config.to_dict(), Recipe())
    planned = {name for name, module in tree.named_modules() if module.can_be_tiled}
    assert {named[id(one)] for one in gated_mlps(model, Parts(model))} == planned
    assert planned


def test_models_without_a_gated_mlp_are_refused():
    with pytest.raises(InputError, match="has no MLP that can be tiled"):
        tile_mlps(small_model("gpt2"), TILED, 99)
