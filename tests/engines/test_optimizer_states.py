"""Bytes per weight of each optimizer, in arithmetic that is not reduced."""

import pytest

from vlmplan.engines.optimizer_states import paged_bytes, state_bytes, update_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import OptimizerKind
from vlmplan.units import DType

MATRIX = (4096, 11008)
NUMEL = 4096 * 11008


def recipe(kind: OptimizerKind, **changes) -> Recipe:
    return Recipe(optimizer=kind, **changes)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        (OptimizerKind.ADAMW, DType.FLOAT32, (4 + 4) * NUMEL),
        (OptimizerKind.ADAMW, DType.BFLOAT16, (2 + 2) * NUMEL),
        (OptimizerKind.SGD, DType.FLOAT32, 4 * NUMEL),
        (OptimizerKind.ADAFACTOR, DType.FLOAT32, 4 * (4096 + 11008)),
        (OptimizerKind.ADAMW_8BIT, DType.FLOAT32, (1 + 1) * NUMEL + 2 * 4 * (NUMEL // 256)),
        (OptimizerKind.PAGED_ADAMW_8BIT, DType.FLOAT32, 2 * 4 * (NUMEL // 256)),
        (OptimizerKind.LION, DType.BFLOAT16, 4 * NUMEL),
        (OptimizerKind.LION_8BIT, DType.FLOAT32, 1 * NUMEL + 4 * (NUMEL // 256)),
        (OptimizerKind.PAGED_LION_8BIT, DType.FLOAT32, 4 * (NUMEL // 256)),
    ],
)
def test_states_of_a_matrix(kind, dtype, expected):
    assert state_bytes(recipe(kind), [MATRIX], dtype) == expected


def test_adafactor_keeps_a_whole_state_for_what_is_one_dimensional():
    assert state_bytes(recipe(OptimizerKind.ADAFACTOR), [(1000,)], DType.FLOAT32) == 4 * 1000


def test_8bit_moments_start_at_4096_elements():
    kind = recipe(OptimizerKind.ADAMW_8BIT)
    assert state_bytes(kind, [(4095,)], DType.FLOAT32) == (4 + 4) * 4095
    assert state_bytes(kind, [(4096,)], DType.FLOAT32) == (1 + 1) * 4096 + 2 * 4 * 16


def test_paged_moments_are_on_the_host_from_100_000_elements_on():
    kind = recipe(OptimizerKind.PAGED_ADAMW_8BIT)
    assert paged_bytes(kind, [(99_999,), (100_000,)]) == 2 * 100_000
    assert state_bytes(kind, [(99_999,)], DType.FLOAT32) == 2 * 99_999 + 2 * 4 * 391


def test_foreach_adamw_copies_one_state_in_its_update_and_the_fused_kernel_none():
    foreach = recipe(OptimizerKind.ADAMW, fuses_optimizer=False)
    assert update_bytes(foreach, [MATRIX, (11008,)], DType.BFLOAT16) == 2 * (NUMEL + 11008)
    assert update_bytes(recipe(OptimizerKind.ADAMW), [MATRIX], DType.BFLOAT16) == 0


def test_adafactor_updates_one_tensor_at_a_time_in_float32():
    kind = recipe(OptimizerKind.ADAFACTOR)
    assert update_bytes(kind, [MATRIX, (8,)], DType.FLOAT32) == 2 * 4 * NUMEL
    assert update_bytes(kind, [MATRIX, (8,)], DType.BFLOAT16) == (2 + 2) * 4 * NUMEL
