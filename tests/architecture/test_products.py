"""The gradients of a product of two types: both are made before the first of them is summed or cast."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

ROWS, WIDTH = 64, 32
WIDE = ROWS * WIDTH * DType.FLOAT32.num_bytes


def highest_bytes_of_backward(*, y_is_first: bool) -> int:
    """Of a 16-bit tensor by a float32 vector, as DoRA's magnitudes scale what adapters give."""
    tape = Tape(follows_weights=False)
    vector = Parameter(WIDTH)
    vector.dtype = DType.FLOAT32
    with tape.section("product"):
        x = ops.copy(tape.leaf(tape.tensor((ROWS, WIDTH), DType.BFLOAT16)))
        product = ops.mul(x, vector, y_is_first=y_is_first)
        del x
        loss = ops.total(product, ())
        del product
    tape.run_backward(loss)
    live = peak = 0
    for event in tape.trace().sections["product"].backward:
        if isinstance(event, Span):
            peak = max(peak, live + event.peak_bytes)
            live += event.delta_bytes
    return peak


def test_the_first_factors_gradient_is_whole_before_that_of_the_second_is_cast():
    first, second = (highest_bytes_of_backward(y_is_first=is_first) for is_first in (True, False))
    sum_bytes = WIDTH * DType.FLOAT32.num_bytes
    assert second - first == WIDE // 2 - sum_bytes


@pytest.mark.parametrize("y_is_first", [False, True])
def test_torch_does(y_is_first):
    torch = pytest.importorskip("torch")
    x = torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True) * 1
    vector = torch.ones(1, WIDTH, requires_grad=True)
    product = vector * x if y_is_first else x * vector
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        product.backward(torch.ones_like(product))
    at_top = (event.name for event in profiled.events() if event.cpu_parent and event.cpu_parent.name != "aten::mul")
    steps = [name for name in at_top if name in ("aten::sum", "aten::to")]
    assert steps[:2] == (["aten::sum", "aten::to"] if y_is_first else ["aten::to", "aten::sum"])
