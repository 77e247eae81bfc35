"""Bytes per weight of each optimizer, in arithmetic that is not reduced."""

import pytest

from vlmplan.engines.optimizer_states import norm_sizes, paged_bytes, state_bytes, update_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind
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
        (OptimizerKind.PAGED_ADAMW, DType.BFLOAT16, 0),
        (OptimizerKind.PAGED_ADAMW_8BIT, DType.FLOAT32, 2 * 4 * (NUMEL // 256)),
        (OptimizerKind.LION, DType.BFLOAT16, 4 * NUMEL),
        (OptimizerKind.LION_8BIT, DType.FLOAT32, 1 * NUMEL + 4 * (NUMEL // 256)),
        (OptimizerKind.PAGED_LION, DType.BFLOAT16, 0),
        (OptimizerKind.PAGED_LION_8BIT, DType.FLOAT32, 4 * (NUMEL // 256)),
        (OptimizerKind.ANY_PRECISION_ADAMW, DType.BFLOAT16, (2 + 2 + 2) * NUMEL),
        (OptimizerKind.TORCHAO_ADAMW, DType.BFLOAT16, (2 + 2) * NUMEL),
        (OptimizerKind.TORCHAO_ADAMW_8BIT, DType.FLOAT32, 2 * (NUMEL + 4 * (NUMEL // 256) + 4 * 256)),
        (OptimizerKind.TORCHAO_ADAMW_4BIT, DType.BFLOAT16, 2 * (NUMEL // 2 + 4 * (NUMEL // 256) + 4 * 16)),
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
    wide = recipe(OptimizerKind.PAGED_ADAMW)
    assert paged_bytes(wide, [(99_999,), (100_000,)]) == 2 * 4 * 100_000
    assert state_bytes(wide, [(99_999,), (100_000,)], DType.BFLOAT16) == 2 * 4 * 99_999
    assert paged_bytes(recipe(OptimizerKind.PAGED_LION), [(100_000,)]) == 4 * 100_000


def test_foreach_adamw_copies_one_state_in_its_update_and_the_fused_kernel_none():
    foreach = recipe(OptimizerKind.ADAMW, fuses_optimizer=False)
    assert update_bytes(foreach, [MATRIX, (11008,)], DType.BFLOAT16) == 2 * (NUMEL + 11008)
    assert update_bytes(recipe(OptimizerKind.ADAMW), [MATRIX], DType.BFLOAT16) == 0


def test_norms_of_gradients_take_a_number_for_each_piece_of_the_largest_of_a_type_and_as_many_for_every_other():
    by_dtype = {DType.FLOAT32: [(7, 65_536), (7, 65_536 + 1), (5,)], DType.BFLOAT16: [(65_536,), (3,)]}
    assert norm_sizes(recipe(OptimizerKind.ADAMW), by_dtype) == [3 * (7 + 1) * 4, 2 * 1 * 4]
    assert norm_sizes(recipe(OptimizerKind.ADAMW, gradient_clipping=0.0), by_dtype) == []


def test_adafactor_updates_one_tensor_at_a_time_in_float32():
    kind = recipe(OptimizerKind.ADAFACTOR)
    assert update_bytes(kind, [MATRIX, (8,)], DType.FLOAT32) == 2 * 4 * NUMEL
    assert update_bytes(kind, [MATRIX, (8,)], DType.BFLOAT16) == (2 + 2) * 4 * NUMEL
    assert update_bytes(kind, [MATRIX, MATRIX], DType.FLOAT32) == (2 + 1) * 4 * NUMEL  # that of the one before
    assert update_bytes(kind, [(8,), MATRIX], DType.BFLOAT16) == (2 + 2) * 4 * NUMEL + 4 * 8


@pytest.mark.parametrize("kind", [OptimizerKind.TORCHAO_ADAMW_8BIT, OptimizerKind.TORCHAO_ADAMW_4BIT])
def test_torchao_quantises_whole_blocks_alone(kind):
    for numel in (4096 - 256, 4096 + 128):
        assert state_bytes(recipe(kind), [(numel,)], DType.FLOAT32) == (4 + 4) * numel
        assert update_bytes(recipe(kind), [(numel,)], DType.FLOAT32) == 0
    assert state_bytes(recipe(kind), [(4096,)], DType.FLOAT32) < (1 + 1) * 4096 + 2 * 4 * (16 + 256) + 1


def test_four_bits_are_packed_from_codes_of_64_bits_of_one_tensor_at_a_time():
    kind = recipe(OptimizerKind.TORCHAO_ADAMW_4BIT)
    one = 2 * (4 * (NUMEL // 256) + 4 * NUMEL + 8 * NUMEL)
    assert update_bytes(kind, [MATRIX, (4096,), MATRIX], DType.FLOAT32) == one
    assert update_bytes(recipe(OptimizerKind.TORCHAO_ADAMW_8BIT), [MATRIX], DType.FLOAT32) == 0


@pytest.mark.parametrize("kind", [OptimizerKind.TORCHAO_ADAMW_8BIT, OptimizerKind.TORCHAO_ADAMW_4BIT])
@pytest.mark.parametrize("shape", [(64, 64), (65, 64), (63, 64), (4096 + 1,)])
def test_states_are_those_that_torchao_makes(kind, shape):
    torch = pytest.importorskip("torch")
    optim = pytest.importorskip("torchao.optim")
    made = optim.AdamW8bit if kind is OptimizerKind.TORCHAO_ADAMW_8BIT else optim.AdamW4bit
    weight = torch.zeros(shape, dtype=torch.bfloat16)
    buffers = [made([weight], block_size=256)._new_buffer(weight, signed) for signed in (True, False)]
    parts = [getattr(one, name) for one in buffers for name in getattr(one, "tensor_attrs", ["data"])]
    assert sum(part.numel() * part.element_size() for part in parts) == state_bytes(
        recipe(kind), [shape], DType.BFLOAT16
    )
