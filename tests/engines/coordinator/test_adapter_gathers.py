"""What ZeRO-3 gathers for adapters of stacked experts: peft's wrappers read weights and are modules of their own."""

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Drop, Fetch, Hold, Trace
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

WIDTH, INNER, NUM_EXPERTS, RANK = 2 * 64, 3 * 32, 5, 7
EXPERTS = {
    "model_type": "lfm2_moe",
    "vocab_size": 1000,
    "hidden_size": WIDTH,
    "intermediate_size": 11 * 16,
    "moe_intermediate_size": INNER,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_dense_layers": 0,
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
    "conv_L_cache": 3,
    "use_expert_bias": True,
}
"""Whose sparse blocks are no leaf modules."""
GATE_UP, DOWN = NUM_EXPERTS * 2 * INNER * WIDTH, NUM_EXPERTS * WIDTH * INNER
GATE_UP_FACTORS = RANK * NUM_EXPERTS * WIDTH, RANK * NUM_EXPERTS * 2 * INNER
DOWN_FACTORS = RANK * NUM_EXPERTS * INNER, RANK * NUM_EXPERTS * WIDTH


def traced(*, checkpoints: bool) -> Trace:
    recipe = Recipe(
        method=Method.LORA,
        lora_rank=RANK,
        lora_targets="experts.gate_up_proj,experts.down_proj",
        zero_stage=3,
        activation_checkpointing=checkpoints,
    )
    model = prepared_model(EXPERTS, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    return model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)


def sizes_fetched(trace: Trace, *, is_late: bool) -> list[list[int]]:
    """Elements of the weights of each module that has experts' weights, in the order of their first uses."""
    sections = (trace.sections[run.key] for run in trace.schedule)
    events = [event for one in sections for event in (one.backward if is_late else one.forward)]
    modules = [event.module for event in events if isinstance(event, Fetch)]
    found = [[weight.numel for weight in module.parameters_by_name.values()] for module in modules]
    return [sizes for sizes in found if {GATE_UP, DOWN} & set(sizes)]


def test_each_wrapper_gathers_its_factors_with_the_parameter_from_outside_in_and_experts_have_both():
    wrappers = [[DOWN, *DOWN_FACTORS], [GATE_UP, *GATE_UP_FACTORS]]
    trace = traced(checkpoints=False)
    assert sizes_fetched(trace, is_late=False) == [*wrappers, [GATE_UP, DOWN]]
    assert sizes_fetched(trace, is_late=True) == [*wrappers, [GATE_UP, DOWN]]


def test_a_layer_that_runs_again_gathers_them_once_more():
    again = sizes_fetched(traced(checkpoints=True), is_late=True)
    assert again == 2 * sizes_fetched(traced(checkpoints=False), is_late=True)


def test_autograd_keeps_views_of_the_factors_until_the_weight_has_its_gradient():
    section = next(one for one in traced(checkpoints=False).sections.values() if one.forward and _factors(one.forward))
    held = [event for event in section.forward if isinstance(event, Hold)]
    assert _factors(section.forward) == [*GATE_UP_FACTORS, *DOWN_FACTORS]
    assert len({event.handle for event in held}) == len(held)
    dropped = {event.handle for event in section.backward if isinstance(event, Drop)}
    assert dropped == {event.handle for event in held}


def _factors(events) -> list[int]:
    sizes = {*GATE_UP_FACTORS, *DOWN_FACTORS}
    return [event.parameter.numel for event in events if isinstance(event, Hold) and event.parameter.numel in sizes]
