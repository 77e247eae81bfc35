"""Weights in four bits: half a byte each, and a scale per block that is quantised again or not."""

import pytest

from cli_calls import TINY
from vlmplan.architecture.prepare import prepared_model
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import Method

HIDDEN, INNER, HALF_HIDDEN = 64, 128, 64 // 2
MATRICES = (*[HIDDEN * HIDDEN] * 2, *[HIDDEN * HALF_HIDDEN] * 2, *[HIDDEN * INNER] * 3)
"""q and o, k and v, and the MLP's three: of one layer, which stands for both."""


@pytest.mark.parametrize(("doubles", "scale_bytes"), [(True, 1), (False, 4)])
def test_a_scale_is_a_byte_with_double_quantisation_and_a_float32_without(doubles: bool, scale_bytes: int):
    model = prepared_model(TINY, Recipe(method=Method.QLORA, use_double_quant=doubles))
    weights = [one for _, one in model.distinct_parameters() if one.stored_bytes is not None]
    expected = sum(
        numel // 2 + numel // 64 * scale_bytes + (4 * -(-numel // (64 * 256)) if doubles else 0) for numel in MATRICES
    )
    assert sum(weight.stored_bytes for weight in weights) == expected
