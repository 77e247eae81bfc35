"""Functions of single elements: what they save and what their backward makes at once, beside torch's own."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from storages import Live
from vlmplan.architecture import ops
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

ROWS, WIDTH = 64, 48
TYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}
Operation = Callable[..., Any]
CASES: dict[str, tuple[Operation, Operation, str]] = {
    "where, both need a gradient": (ops.where, torch.where, "mxx"),
    "where, the first alone": (ops.where, torch.where, "mxc"),
    "where, the second alone": (ops.where, torch.where, "mcx"),
    "maximum": (ops.maximum, lambda x: torch.maximum(x, torch.zeros((), dtype=x.dtype)), "x"),
    "power": (ops.power, lambda x: x.pow(3), "x"),
    "subtract": (ops.subtract, torch.subtract, "xx"),
    "subtract, the second alone": (ops.subtract, torch.subtract, "cx"),
    "scale": (ops.scale, lambda x: x * 3, "x"),
    "shift": (ops.shift, lambda x: x + 3, "x"),
}
"""Ours, torch's, and its operands: ``m`` a mask, ``x`` a tensor that needs a gradient, ``c`` one that needs none."""


def planned(operation: Operation, operands: str, dtype: DType) -> tuple[int, int]:
    """Bytes that are saved, and the most that backward has beside those and the gradient it gets."""
    tape = Tape(follows_weights=False)
    with tape.section("leaves"):
        leaves = [tape.leaf(tape.tensor((ROWS, WIDTH), dtype)) for kind in operands if kind == "x"]
    with tape.section("operation"):
        given = [ops.copy(leaves.pop()) if kind == "x" else _constant(tape, kind, dtype) for kind in operands]
        result = operation(*given)
        del given
    result_bytes = result.num_bytes
    with tape.section("total"):
        loss = ops.total(result, ())
        del result
    tape.run_backward(loss)
    section = tape.trace().sections["operation"]
    (forward,) = [event for event in section.forward if isinstance(event, Span)]
    backward = [event.peak_bytes for event in section.backward if isinstance(event, Span)]
    return forward.delta_bytes - result_bytes, max(backward, default=0)


def _constant(tape: Tape, kind: str, dtype: DType) -> Tensor:
    return tape.tensor((ROWS, WIDTH), DType.BOOL if kind == "m" else dtype)


def measured(operation: Operation, operands: str, dtype: Any) -> tuple[int, int]:
    shape = (ROWS, WIDTH)
    leaves = [torch.ones(shape, dtype=dtype, requires_grad=True) for kind in operands if kind == "x"]
    with Live(leaves) as live:
        gradient = torch.ones(shape, dtype=dtype)
        rest = iter(leaves)
        given = [
            next(rest).clone() if kind == "x" else torch.ones(shape, dtype=torch.bool if kind == "m" else dtype)
            for kind in operands
        ]
        result = operation(*given)
        del given
        saved = live.live - 2 * result.untyped_storage().nbytes()
        live.most = before = live.live
        torch.autograd.grad(result, leaves, gradient)
    return saved, live.most - before


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_an_operation_saves_and_makes_the_bytes_of_torchs(case: str, dtype: DType):
    """But for a number that torch makes, which no plan counts."""
    ours, real, operands = CASES[case]
    expected = measured(real, operands, TYPES[dtype])
    assert planned(ours, operands, dtype) == tuple(num_bytes - num_bytes % WIDTH for num_bytes in expected)
