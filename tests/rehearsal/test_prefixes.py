"""A model told from its first layers: where it is cut, and what a layer of each kind adds."""

from hypothesis import given
from hypothesis import strategies as st

from vlmplan.rehearsal.prefixes import MOST_LAYERS, by_kind, lengths, num_layers_of, shortened

KIND_BYTES = {0: 7_000, 1: 1_100, 2: 130}
AROUND = 17
"""Bytes of what stands around the layers."""


def test_a_shorter_configuration_keeps_everything_but_layers():
    text = {"num_hidden_layers": 4, "layer_types": ["a", "b", "a", "b"], "rope": [1, 2, 3], "hidden_size": 8}
    whole = {"model_type": "x", "text_config": text, "vision_config": {"num_hidden_layers": 4}}
    assert shortened(whole, 1) == {
        "model_type": "x",
        "text_config": {"num_hidden_layers": 1, "layer_types": ["a"], "rope": [1, 2, 3], "hidden_size": 8},
        "vision_config": {"num_hidden_layers": 4},
    }
    assert text["num_hidden_layers"] == 4
    assert num_layers_of({"n_layer": 3}) == 3
    assert num_layers_of({"model_type": "x"}) is None


def test_what_some_layers_have_by_number_is_cut():
    whole = {"num_hidden_layers": 5, "per_layer_config": {"0": "a", "3": "b"}, "id2label": {"4": "no"}}
    assert shortened(whole, 3) == {"num_hidden_layers": 3, "per_layer_config": {"0": "a"}, "id2label": {"4": "no"}}


def test_a_text_with_a_letter_for_each_layer_is_cut_and_no_other_of_its_length():
    whole = {"model_type": "abcde", "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*E"}
    assert shortened(whole, 2) == {
        "model_type": "abcde",
        "num_hidden_layers": 2,
        "hybrid_override_pattern": "M-",
    }


@given(st.lists(st.integers(0, 2), min_size=1, max_size=MOST_LAYERS), st.integers(1, MOST_LAYERS))
def test_layers_that_add_up_are_told_from_their_prefixes(pattern: list[int], asked: int):
    """The shortest prefix has as many layers as are asked for: what comes with those adds nothing to others."""
    num_first = min(asked, len(pattern))

    def measured(count: int) -> int:
        return AROUND + sum(KIND_BYTES[kind] for kind in pattern[:count]) - 5 * (count < num_first)

    found = by_kind(pattern, {count: measured(count) for count in lengths(pattern, num_first)})
    assert found.of(pattern) == measured(len(pattern))
    assert all(found.further[kind] == KIND_BYTES[kind] for kind in pattern[num_first:])


def test_no_more_layers_are_rehearsed_than_allowed():
    assert lengths([0] * MOST_LAYERS + [1]) == [1, 2]
    assert lengths([0] * (MOST_LAYERS - 1) + [1]) == [1, 2, MOST_LAYERS]
