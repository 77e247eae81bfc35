"""The gradients of a tensor that several Linears take: summed in place, or not, as torch's engine sums them."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

WIDTH, OUT, ROWS = 5 * 32, 3, 14
FLAT, DEEP = (ROWS, WIDTH), (2, ROWS // 2, WIDTH)


def highest_bytes_of_backward(shape: tuple[int, ...], *, in_place: bool = True) -> int:
    """Of two frozen Linears that read the result of a third operation."""
    tape = Tape(follows_weights=False, accumulates_in_place=in_place)
    first, second = Linear(WIDTH, OUT), Linear(WIDTH, OUT)
    first.weight.requires_grad = second.weight.requires_grad = False
    with tape.section("products"):
        x = ops.copy(tape.leaf(tape.tensor(shape, DType.BFLOAT16)))
        loss = ops.total(ops.add(first(x), second(x)), ())
        del x
    tape.run_backward(loss)
    live = peak = 0
    for event in tape.trace().sections["products"].backward:
        if isinstance(event, Span):
            peak = max(peak, live + event.peak_bytes)
            live += event.delta_bytes
    return peak


def test_a_flattened_input_gets_views_to_which_nothing_is_added_in_place():
    gradient = ROWS * WIDTH * 2
    assert 2 * gradient <= highest_bytes_of_backward(FLAT) < 2.1 * gradient
    assert highest_bytes_of_backward(DEEP) == highest_bytes_of_backward(FLAT, in_place=False) == 3 * gradient


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("shape", "sums"), [(FLAT, {"aten::add_"}), (DEEP, {"aten::add"})])
def test_torch_does(shape, sums, bias):
    torch = pytest.importorskip("torch")
    first, second = (torch.nn.Linear(WIDTH, OUT, bias=bias).requires_grad_(False) for _ in range(2))
    x = torch.ones(*shape, requires_grad=True) * 2
    y = first(x) + second(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
        y.backward(torch.ones_like(y))
    events = profiled.key_averages(group_by_input_shape=True)
    assert {e.key for e in events if e.key.startswith("aten::add") and e.input_shapes[0] == list(shape)} == sums
