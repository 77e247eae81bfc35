"""The gradients of a product, that of the second factor first: both are made before one of them is summed or cast."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Allocation, Deallocation, Span
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


@pytest.mark.parametrize("y_is_first", [False, True])
def test_the_second_factors_gradient_is_made_first(y_is_first: bool):
    """A vector's is as large as the product before it is summed, and goes then; which of two it was, blocks know."""
    tape = LoggingTape(follows_weights=False)
    vector = Parameter(WIDTH)
    vector.dtype = DType.FLOAT32
    with tape.section("product"):
        x = ops.copy(tape.leaf(tape.tensor((ROWS, WIDTH), DType.FLOAT32)))
        product = ops.mul(x, vector, y_is_first=y_is_first)
        del x
        loss = ops.total(product, ())
        del product
    tape.run_backward(loss)
    events = tape.trace().sections["product"].backward
    products = [one.handle for one in events if isinstance(one, Allocation) and one.num_bytes == WIDE]
    first_freed = next(one.handle for one in events if isinstance(one, Deallocation) and one.handle in products)
    assert products.index(first_freed) == (1 if y_is_first else 0)


@pytest.mark.parametrize("y_is_first", [False, True])
def test_torch_makes_it_first_too(y_is_first: bool):
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    x, vector = torch.ones(ROWS, WIDTH, requires_grad=True), torch.ones(WIDTH, requires_grad=True)
    factors = [x.data_ptr(), vector.data_ptr()]
    multiplied: list[int] = []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mul.Tensor:
                multiplied.append(args[1].data_ptr())
            return func(*args, **(kwargs or {}))

    product = vector * x if y_is_first else x * vector
    with Watched():
        torch.autograd.grad(product, (x, vector), torch.ones_like(product))
    assert multiplied == (factors[::-1] if y_is_first else factors)
