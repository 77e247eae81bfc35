"""LongCat-Flash against transformers: two blocks of latent attention in a layer, experts beside them in a loop."""

import pytest

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match, assert_step_matches, text_inputs
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.modules import DerivedLinear, Linear
from vlmplan.errors import InputError
from vlmplan.recipe.lora_targets import unpacked_linears

SMALL = {
    "model_type": "longcat_flash",
    "hidden_size": 128,
    "ffn_hidden_size": 192,
    "num_layers": 2,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "kv_lora_rank": 48,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "head_dim": 16,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "zero_expert_num": 4,
    "moe_topk": 3,
    "expert_ffn_hidden_size": 48,
}
CONFIGS = {
    "experts and identities": SMALL,
    "no identities": {**SMALL, "zero_expert_num": 0},
    "biases": {**SMALL, "attention_bias": True},
}
BATCH = Batch(micro_batch=2, num_tokens=256)
UNEVEN = Batch(micro_batch=1, num_tokens=101)
EXACT = 0.002


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_step_keeps_and_peaks_as_in_transformers(name, checkpoints):
    inputs = text_inputs(BATCH)
    assert_step_matches(CONFIGS[name], BATCH, inputs, checkpoints=checkpoints, tolerance=EXACT)


@pytest.mark.parametrize(
    "options", [{"attention": "eager"}, {"frozen": ("model.layers",)}, {"frozen": ("model.embed",)}]
)
def test_a_step_with_other_attention_or_frozen_layers_too(options):
    assert_step_matches(SMALL, BATCH, text_inputs(BATCH), tolerance=EXACT, **options)


def test_the_linear_of_the_router_which_is_read_and_not_called_stays_in_16_bit():
    router = "model.layers.0.mlp.router.classifier"
    linears = {name: module for name, module in build_model(SMALL).named_modules() if isinstance(module, Linear)}
    derived = [name for name, module in linears.items() if isinstance(module, DerivedLinear)]
    assert derived == [router, router.replace("0", "1")]
    assert unpacked_linears("longcat_flash")[-1] == router.rpartition(".")[2]


def test_experts_that_get_a_token_more_than_others_too():
    assert_step_matches(SMALL, UNEVEN, text_inputs(UNEVEN), tolerance=EXACT)


@pytest.mark.parametrize("changes", [{"qk_head_dim": 64}, {"head_dim": 64}])
def test_heads_of_another_width_than_their_parts_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        build_model({**SMALL, **changes})
