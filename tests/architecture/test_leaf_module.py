import pytest

from layer_events import one_layer
from vlmplan.architecture.trace import Fetch, GradientReady, Release

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 70,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
QWEN = {"model_type": "qwen3_moe", **SIZES, **EXPERTS, "intermediate_size": 7, "head_dim": 16}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 11, "layer_types": ["full_attention"] * 2}
QWEN3_5 = {"model_type": "qwen3_5_moe_text", **SIZES, **SHARED, "head_dim": 16}


def test_a_leaf_module_is_gathered_once_with_router_and_experts():
    section, names, _ = one_layer(QWEN)
    leaf = next(event.module for event in section.forward if isinstance(event, Fetch) and id(event.module) not in names)
    assert sum(weight.numel for weight in leaf.parameters_by_name.values()) == 3 * (2 * 5) * 32 + 3 * 32 * 5 + 3 * 32
    inside = [names.get(id(event.module), "") for event in section.forward if isinstance(event, Fetch)]
    assert not [name for name in inside if ".mlp." in name]


def test_gradients_of_a_leaf_module_change_hands_together_before_it_is_released():
    section, names, weights = one_layer(QWEN)
    events = [event for event in section.backward if isinstance(event, GradientReady | Fetch | Release)]
    leaf = next(
        place for place, event in enumerate(events) if isinstance(event, Fetch) and id(event.module) not in names
    )
    of_leaf = events[leaf + 1 : leaf + 4]
    assert [weights[id(event.parameter)] for event in of_leaf] == ["gate_up_proj", "down_proj", "weight"]
    assert events[leaf + 4] == Release(events[leaf].module)


@pytest.mark.parametrize(
    ("config", "asks"), [(QWEN3_5, None), ({**QWEN, "model_type": "llama", "intermediate_size": 7}, "mlp.down_proj")]
)
def test_the_module_that_asks_for_a_recomputation_is_fetched_before_it(config, asks):
    section, names, _ = one_layer(config, checkpoints=True, frozen=True)
    first = next(event for event in section.backward if isinstance(event, Fetch))
    expected = "input_layernorm" if asks is None else asks  # a block without weights asks: nothing is fetched for it
    assert names[id(first.module)].endswith(expected)


def test_frozen_weights_of_a_recomputation_outlast_the_block_that_asked_for_it():
    section, names, _ = one_layer(QWEN3_5, checkpoints=True, frozen=True)
    ended = [place for place, event in enumerate(section.backward) if getattr(event, "ends_recomputation", False)]
    events = list(enumerate(section.backward))
    used = [place for place, event in events if isinstance(event, Fetch) and ".mlp." in names[id(event.module)]]
    assert min(ended) > max(used)
    single = [event for place, event in events if isinstance(event, Release) and place < min(ended)]
    assert not [event for event in single if ".mlp." in names[id(event.module)]]
