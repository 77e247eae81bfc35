"""Operations that captured programs have: what they keep for backward, beside what torch keeps of the same call."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from vlmplan.architecture.captured.operations import Call, run_operation
from vlmplan.architecture.captured.program import Instruction, Output
from vlmplan.architecture.captured.tensors import picked
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType

BAGS, IDS_PER_BAG, ROWS, WIDTH = 48, 16, 64, 32
POINTS, SIDE = 80, 12
EXPERTS, OUT = 4, 96
OFFSETS = 4 * EXPERTS
"""Bytes of where each expert's rows end, which a plan leaves out."""


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16, learns: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=learns)


def kept_by_torch(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> int:
    """Bytes of what autograd saves of a call on tensors without data, each storage once."""
    storages: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*operands)
    assert result.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


def kept(result: Tensor) -> int:
    """Bytes of what an operation on the tape has saved."""
    assert result.node is not None
    storages = {id(one.storage): one.storage for one in result.node.saved if isinstance(one, Tensor)}
    return sum(storage.num_bytes for storage in storages.values())


def run(tape: Tape, op: str, operands: list[Tensor | None], shape: tuple[int, ...], **values: Any) -> Tensor:
    instruction = Instruction(op, tuple(range(len(operands))), (Output(99, shape, "bfloat16"),), values)
    return run_operation(Call(tape, instruction, list(operands), DType.BFLOAT16), [DType.BFLOAT16])[0]


def leaf(tape: Tape, *shape: int) -> Tensor:
    return tape.leaf(tape.tensor(shape, DType.BFLOAT16))


def test_bags_of_embeddings_keep_ids_weights_and_where_bags_begin():
    tape = Tape()
    with tape.section("bags"):
        weights = tape.tensor((BAGS * IDS_PER_BAG,), DType.BFLOAT16)
        operands = [leaf(tape, ROWS, WIDTH), None, None, weights]
        made = run(tape, "_embedding_bag", operands, (BAGS, WIDTH), ids_per_bag=IDS_PER_BAG)
        kept_by_plan = kept(made)

    def bags(table: torch.Tensor, ids: torch.Tensor, of_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(ids, table, per_sample_weights=of_ids, mode="sum")

    ids = meta(BAGS, IDS_PER_BAG, dtype=torch.int64)
    assert kept_by_plan == kept_by_torch(bags, meta(ROWS, WIDTH, learns=True), ids, meta(BAGS, IDS_PER_BAG))


def test_points_of_a_grid_keep_the_grid_and_where_they_lie():
    tape = Tape()
    with tape.section("points"):
        made = run(tape, "grid_sampler_2d", [leaf(tape, 1, WIDTH, SIDE, SIDE), None], (1, WIDTH, POINTS, 1))
        kept_by_plan = kept(made)

    def points(table: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(table, grid, mode="bicubic", align_corners=False)

    assert kept_by_plan == kept_by_torch(points, meta(1, WIDTH, SIDE, SIDE, learns=True), meta(1, POINTS, 1, 2))


def test_products_of_experts_keep_rows_and_weights():
    tape = Tape()
    with tape.section("experts"):
        operands: list[Tensor | None] = [leaf(tape, ROWS, WIDTH), leaf(tape, EXPERTS, WIDTH, OUT), None]
        kept_by_plan = kept(run(tape, "_grouped_mm", operands, (ROWS, OUT)))
    weight, ends = meta(EXPERTS, WIDTH, OUT, learns=True), meta(EXPERTS, dtype=torch.int32)
    by_torch = kept_by_torch(
        lambda x, weight, ends: functional.grouped_mm(x, weight, offs=ends),
        meta(ROWS, WIDTH, learns=True),
        weight,
        ends,
    )
    assert kept_by_plan + OFFSETS == by_torch


def test_tokens_that_a_mask_picks_keep_the_mask():
    tape = Tape()
    with tape.section("picked"):
        mask = tape.tensor((2, ROWS), DType.BOOL)
        made = picked(leaf(tape, 2, ROWS, WIDTH), mask, (ROWS, WIDTH))
        assert made.shape == (ROWS, WIDTH)
        assert kept(made) == mask.num_bytes


def run_of_float32(tape: Tape, op: str, operands: list[Tensor | None], shape: tuple[int, ...]) -> Tensor:
    """As with weights in float32, in the place of the captured model's bfloat16."""
    instruction = Instruction(op, tuple(range(len(operands))), (Output(99, shape, "bfloat16"),))
    return run_operation(Call(tape, instruction, list(operands), DType.FLOAT32), [DType.FLOAT32])[0]


def test_a_copy_has_the_element_type_that_autocast_gave_what_it_copies():
    tape = Tape(autocast=DType.BFLOAT16)
    with tape.section("copy"):
        made = run_of_float32(tape, "clone", [leaf(tape, ROWS, WIDTH)], (ROWS, WIDTH))
        assert made.dtype is DType.BFLOAT16


@pytest.mark.parametrize("autocast", [None, DType.BFLOAT16])
def test_products_of_batches_are_what_autocast_makes_of_them(autocast: DType | None):
    tape = Tape(autocast=autocast)
    with tape.section("product"):
        x, y = (tape.leaf(tape.tensor((2, *sizes), DType.FLOAT32)) for sizes in ((ROWS, WIDTH), (WIDTH, OUT)))
        made = run_of_float32(tape, "bmm", [x, y], (2, ROWS, OUT))
        assert made.dtype is (autocast or DType.FLOAT32)
        assert kept(made) == 2 * (ROWS * WIDTH + WIDTH * OUT) * made.dtype.num_bytes
