"""Zamba2 against transformers: blocks that layers share, low-rank changes of them, a checkpoint within a checkpoint."""

import pytest

from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.zero3 import Zero3
from vlmplan.errors import InputError
from vlmplan.memory.peaks import PeakTracker
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method

TYPES = ["mamba", "hybrid", "mamba", "hybrid", "hybrid", "mamba", "hybrid", "mamba"]
TWO_BLOCKS = {
    "model_type": "zamba2",
    "hidden_size": 96,
    "num_hidden_layers": len(TYPES),
    "layers_block_type": TYPES,
    "num_attention_heads": 4,
    "intermediate_size": 144,
    "vocab_size": 100,
    "pad_token_id": 0,
    "n_mamba_heads": 6,
    "mamba_d_state": 24,
    "chunk_size": 32,
    "num_mem_blocks": 2,
    "adapter_rank": 8,
}
ROTATED = {
    **TWO_BLOCKS,
    "num_mem_blocks": 1,
    "use_mem_rope": True,
    "use_shared_attention_adapter": True,
    "add_bias_linear": True,
    "mamba_ngroups": 2,
    "num_key_value_heads": 4,
}
UNTIED = {**ROTATED, "num_mem_blocks": 2, "tie_word_embeddings": False, "hidden_act": "silu", "mamba_expand": 4}
CONFIGS = {"two blocks": TWO_BLOCKS, "rotated": ROTATED, "untied": UNTIED}
BATCH = Batch(micro_batch=2, num_tokens=80)
"""Three chunks of 32 tokens, the last not full."""
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
ATTENTION = pytest.mark.parametrize("attention", ["sdpa", "eager"])
FROZEN = pytest.mark.parametrize("frozen", [(), ("model.embed_tokens",)], ids=["all", "no embeddings"])


@pytest.mark.parametrize("config", [*CONFIGS.values(), {"model_type": "zamba2"}], ids=[*CONFIGS, "by default"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(3)
@FROZEN
@ATTENTION
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, frozen):
    assert_step(config, BATCH, attention=attention, frozen=frozen)


@pytest.mark.one_in(3)
@ATTENTION
@EACH
def test_a_checkpointed_step_peaks_as_in_transformers(config, attention):
    assert_checkpointed_step(config, BATCH, attention=attention, tolerance=0.005)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", [TWO_BLOCKS, ROTATED], ids=["two blocks", "rotated"])
def test_layers_share_the_one_cast_that_autocast_keeps_of_a_shared_weight(config, checkpoints):
    pytest.importorskip("transformers")
    from family_checks import assert_autocast_step_matches, text_inputs

    allowed = {"forward_live": 0.003, "backward_peak": 0.001} if checkpoints else None
    assert_autocast_step_matches(
        config, BATCH, text_inputs(BATCH), checkpoints=checkpoints, caches_casts=True, allowed=allowed
    )


def test_layers_of_a_block_hold_its_weights_and_each_has_a_change_of_its_own():
    tree = build_model(TWO_BLOCKS)
    layers = tree.module("model.layers")
    blocks = [layers.kinds[layers.pattern[index]].shared_transformer for index in (1, 3, 4, 6)]
    weights = [block.self_attn.q_proj.weight for block in blocks]
    assert weights[0] is weights[2] is not weights[1] is weights[3]
    assert [weight.shared_uses for weight in weights] == [2] * 4
    changes = [list(block.feed_forward.gate_up_proj_adapter_list.modules_by_name) for block in blocks]
    assert changes == [["0", "2"], ["1", "3"]] * 2
    change = blocks[0].feed_forward.gate_up_proj_adapter_list["2"].modules_by_name["0"]
    assert change.weight.shared_uses == 1


def test_layers_of_a_block_have_its_packed_weights_too():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    pytest.importorskip("transformers")
    import torch
    from transformers import BitsAndBytesConfig

    from family_checks import real_model
    from vlmplan_trainer.models.adapters import quantize

    model = real_model(TWO_BLOCKS)
    before = [name for name, _ in model.named_parameters()]
    quantize(model, BitsAndBytesConfig(load_in_4bit=True), torch.device("cpu"))
    assert [name for name, _ in model.named_parameters()] == before
    first, further = (model.model.layers[index].shared_transformer.feed_forward.down_proj for index in (1, 4))
    assert isinstance(further, bitsandbytes.nn.Linear4bit)
    assert further is not first
    x = torch.ones(1, 3, TWO_BLOCKS["intermediate_size"], dtype=torch.bfloat16)
    assert torch.equal(first(x), further(x))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_each_layer_has_weights_of_its_own_until_they_are_tied(config):
    """ZeRO-3 holds these while it loads: changes of low rank too, of which each layer uses one alone."""
    pytest.importorskip("transformers")
    import torch

    from family_checks import real_model

    with torch.device("meta"):
        model = real_model(config)
    held = sum(parameter.numel() for _, parameter in model.named_parameters(remove_duplicate=False))
    tied = sum(parameter.numel() for parameter in model.parameters())
    recipe = Recipe(method=Method.FULL, zero_stage=3)
    table = ParameterTable(prepared_model(config, recipe))
    assert sum(table.numels_before_tying) == held - tied
    found = PeakTracker()
    Zero3(table, recipe, num_ranks=2, sink=found).load(is_on_cpu=False)
    num_weights = len(table.entries) + len(table.numels_before_tying)
    assert 0 <= found.now().total - held * 2 // 2 <= 2 * num_weights  # halves of two bytes each, padded


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers_block_type": ["mamba"] * 8}, "the latter one of them"),
        ({"layers_block_type": ["hybrid"] * 7 + ["conv"]}, "names out of"),
        ({"layers_block_type": ["hybrid"]}, "a list of 8 names"),
        ({"layers_block_type": None}, "num_hidden_layers"),
        ({"n_mamba_heads": 7}, "what 7 heads make 192 of"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**TWO_BLOCKS, **changes})
