"""In which order the gradients of an operation are handed on."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, Span
from vlmplan.units import DType

torch = pytest.importorskip("torch")
WIDTH, ROWS = 32, 64


def live_bytes_at_last_handover_but_one(*, follows_weights: bool) -> int:
    """Of two Linears that read the result of a third: when the gradient of the one whose backward is later is there."""
    tape = Tape(follows_weights=follows_weights)
    before, first, second = (Linear(WIDTH, WIDTH) for _ in range(3))
    with tape.section("products"):
        x = before(tape.tensor((1, ROWS, WIDTH), DType.BFLOAT16))
        loss = ops.total(ops.add(first(x), second(x)), ())
        del x
    tape.run_backward(loss)
    live, found = 0, dict[int, int]()
    for event in tape.trace().sections["products"].backward:
        if isinstance(event, Span):
            live += event.delta_bytes
        elif isinstance(event, GradientReady):
            found[id(event.parameter)] = live
            live -= event.num_bytes
    return found[id(first.weight)]


def test_under_zero_3_a_modules_input_gets_its_gradient_when_those_of_its_weights_are_gone():
    """Until then it lies beside the one that it is added to."""
    gradient = ROWS * WIDTH * 2
    added_at_once, waiting = (live_bytes_at_last_handover_but_one(follows_weights=one) for one in (False, True))
    assert waiting - added_at_once == gradient


@pytest.mark.parametrize("casts", [False, True])
def test_the_gradient_of_a_bias_comes_before_that_of_its_weight_where_neither_is_cast(casts: bool):
    """Torch's own order: that of a weight comes by way of ``t``, of a bias at once."""
    arrived: list[str] = []
    real = torch.nn.Linear(8, 8)
    for name, parameter in real.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=casts):
        real(torch.ones(2, 4, 8)).sum().backward()

    tape = Tape(autocast=DType.BFLOAT16 if casts else None)
    linear = Linear(8, 8, bias=True)
    for parameter in linear.parameters_by_name.values():
        parameter.dtype = DType.FLOAT32
    with tape.section("product"):
        loss = ops.total(linear(tape.tensor((2, 4, 8), DType.FLOAT32)), ())
    tape.run_backward(loss)
    events = tape.trace().sections["product"].backward
    names = {id(parameter): name for name, parameter in linear.parameters_by_name.items()}
    assert [names[id(event.parameter)] for event in events if isinstance(event, GradientReady)] == arrived
