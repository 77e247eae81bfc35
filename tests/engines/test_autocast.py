"""Copies of weights that autocast keeps: of those that an operation which it casts for uses."""

import pytest

from tape_probe import predicted_step
from vlmplan.architecture.adapters import AdapterSettings, add_lora
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.generic.groups import ExpertsGroup
from vlmplan.architecture.model import Batch
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import KeptCast
from vlmplan.engines.autocast import cached_casts
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

WIDTH, INNER, EXPERTS = 16, 24, 4
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
RECIPE = Recipe(zero_stage=None, uses_autocast=True, caches_casts=True, activation_checkpointing=True)
ATTENTION = 4 * WIDTH * WIDTH


def cached_elements(config):
    model = build_model({**SIZES, **config})
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
    return sum(cached_casts(ParameterTable(model), RECIPE)) // DType.BFLOAT16.num_bytes


def test_experts_of_grouped_products_are_not_cast():
    moe = {"model_type": "qwen3_moe", "num_experts": EXPERTS, "moe_intermediate_size": INNER}
    assert cached_elements(moe) == ATTENTION + EXPERTS * WIDTH  # and the router


def test_experts_of_batched_products_are_cast():
    llama4 = {"model_type": "llama4_text", "num_local_experts": EXPERTS, "intermediate_size": INNER}
    experts, shared = EXPERTS * 3 * WIDTH * INNER, 3 * WIDTH * INNER
    assert cached_elements(llama4) == ATTENTION + EXPERTS * WIDTH + experts + shared


def test_layers_that_never_run_again_leave_their_copies_to_the_graph():
    """Mergers of features are a list like layers, and no ``GradientCheckpointingLayer``."""
    model = build_model({**SIZES, "model_type": "llama"})
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
    assert cached_casts(ParameterTable(model), RECIPE)
    for _, stack in model.stacks():
        stack.can_checkpoint = False
    assert not cached_casts(ParameterTable(model), RECIPE)


def test_experts_of_models_without_a_family_are_not_cast_either():
    stacked = {"gate_up_proj": Parameter(EXPERTS, 2 * INNER, WIDTH), "down_proj": Parameter(EXPERTS, WIDTH, INNER)}
    router = Parameter(EXPERTS, WIDTH)
    ExpertsGroup({**stacked, "weight": router}, experts_per_token=2, activation="silu")
    assert [one.meets_autocast for one in (*stacked.values(), router)] == [False, False, True]


def casts_of_adapted_experts(targets: str, frozen_dtype: DType = DType.BFLOAT16) -> list[int]:
    """Bytes of what autocast keeps of the layer's adapters, which run again."""
    model = build_model({**SIZES, "model_type": "qwen3_moe", "num_experts": EXPERTS, "moe_intermediate_size": INNER})
    frozen = {id(entry.parameter): entry.parameter for entry in model.parameters()}
    add_lora(model, AdapterSettings(rank=2), targets=targets)
    for entry in model.parameters():
        is_adapter = id(entry.parameter) not in frozen
        entry.parameter.requires_grad = is_adapter
        entry.parameter.dtype = DType.FLOAT32 if is_adapter else frozen_dtype
    for _, stack in model.stacks():
        stack.checkpoints = True
    tape = Tape(autocast=DType.BFLOAT16, caches_casts=True)
    trace = model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    events = [event for section in trace.sections.values() for event in section.forward]
    assert [event.num_bytes for event in events if isinstance(event, KeptCast)] == cached_casts(
        ParameterTable(model), RECIPE
    )
    return cached_casts(ParameterTable(model), RECIPE)


def test_factors_of_adapted_experts_are_cast_by_peft_and_not_kept():
    assert casts_of_adapted_experts("gate_proj,up_proj,down_proj") == []


@pytest.mark.parametrize("frozen_dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_factors_of_an_adapted_router_are_multiplied_and_their_copies_kept(frozen_dtype: DType):
    assert casts_of_adapted_experts("gate", frozen_dtype) == [2 * 2 * WIDTH, 2 * EXPERTS * 2]


def test_each_layer_that_runs_again_leaves_its_own_copies_when_it_runs():
    model = build_model({**SIZES, "num_hidden_layers": 3, "model_type": "llama"})
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
    for _, stack in model.stacks():
        stack.checkpoints = True
    tape = Tape(autocast=DType.BFLOAT16, caches_casts=True)
    trace = model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    by_run = {
        run.layer: [event.num_bytes for event in trace.sections[run.key].forward if isinstance(event, KeptCast)]
        for run in trace.schedule
    }
    linears = [WIDTH * WIDTH] * 4 + [WIDTH * SIZES["intermediate_size"]] * 3
    assert by_run.pop(None) == []  # those around the layers are the graph's
    assert by_run == {layer: [2 * numel for numel in linears] for layer in range(3)}
    assert sum(map(sum, by_run.values())) == sum(cached_casts(ParameterTable(model), RECIPE))
    assert not any(isinstance(event, KeptCast) for section in trace.sections.values() for event in section.backward)


def test_weights_of_positions_leave_their_copies_to_the_cache_of_autocast_where_their_tower_runs():
    """Their input has no gradient, so that no graph holds what they are cast to; the layers do not run again."""
    audio = {"model_type": "gemma4_audio", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**SIZES, "model_type": "gemma4_text", "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64}
    model = build_model({"model_type": "gemma4", "text_config": text, "vision_config": {}, "audio_config": audio})
    for entry in model.parameters():
        entry.parameter.dtype = DType.FLOAT32
        entry.parameter.requires_grad = "audio_tower" in entry.name
    table = ParameterTable(model)
    assert cached_casts(table, RECIPE) == [64 * 64 * DType.BFLOAT16.num_bytes] * 2
    table.idle = frozenset(range(len(table.trained_entries)))
    assert not cached_casts(table, RECIPE)


def test_adapters_of_the_first_layer_leave_their_copies_to_the_cache_of_autocast():
    """Where adapters alone are trained the first layer's input has no gradient, so that the graph holds what is
    multiplied with lora_A's copy, and not the copy: those of queries, keys and values wait for the end of forward."""
    rank, grown = 4, {}
    for caches in (False, True):
        model = build_model({**SIZES, "num_hidden_layers": 3, "model_type": "llama"})
        for entry in model.parameters():
            entry.parameter.requires_grad = False
        add_lora(model, AdapterSettings(rank=rank), targets="q_proj,k_proj,v_proj,o_proj")
        for entry in model.parameters():
            entry.parameter.dtype = DType.FLOAT32 if entry.parameter.requires_grad else DType.BFLOAT16
        batch = Batch(micro_batch=1, num_tokens=8)
        grown[caches] = predicted_step(model, batch, autocast=DType.BFLOAT16, caches_casts=caches)
    assert grown[True].forward_peak - grown[False].forward_peak == 3 * rank * WIDTH * DType.BFLOAT16.num_bytes
    assert grown[True].forward_live == grown[False].forward_live
    assert grown[True].end_live == grown[False].end_live


def test_where_a_layer_runs_again_each_factor_of_dora_is_cast_once():
    """For the unit matrix and for what the layer gets: autocast's cache has it as long as the layer runs."""
    moved, rank = dict[bool, int](), 2
    for caches in (False, True):
        model = build_model({**SIZES, "num_hidden_layers": 3, "model_type": "llama"})
        frozen = {id(entry.parameter) for entry in model.parameters()}
        add_lora(model, AdapterSettings(rank=rank, use_dora=True), targets="down_proj")
        for entry in model.parameters():
            entry.parameter.requires_grad = id(entry.parameter) not in frozen
            entry.parameter.dtype = DType.BFLOAT16 if id(entry.parameter) in frozen else DType.FLOAT32
        for _, stack in model.stacks():
            stack.checkpoints = True
        tape = Tape(autocast=DType.BFLOAT16, caches_casts=caches)
        trace = model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
        moved[caches] = trace.sections["layers.0"].recompute_work.elementwise_bytes
    numel = rank * (WIDTH + SIZES["intermediate_size"])
    assert moved[False] - moved[True] == numel * (DType.FLOAT32.num_bytes + DType.BFLOAT16.num_bytes)
