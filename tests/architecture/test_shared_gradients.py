"""A weight whose gradient is another tensor's too: learned positions of one image, added to its patches."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import GradientReady, Span
from vlmplan.units import DType

WIDTH, ROWS = 32, 64
GRADIENT_BYTES = ROWS * WIDTH * 2


def test_the_weight_gets_a_copy_and_nothing_is_freed_twice():
    tape = Tape(follows_weights=False)
    patches, after, positions = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH), Parameter(1, ROWS, WIDTH)
    with tape.section("embedding"):
        x = ops.add(patches(tape.tensor((1, ROWS, WIDTH), DType.BFLOAT16)), positions)
        loss = ops.total(after(x), ())
        del x
    tape.run_backward(loss)
    del loss
    section, live, at_positions = tape.trace().sections["embedding"], 0, None
    for event in section.forward + section.backward:
        if isinstance(event, Span):
            live += event.delta_bytes
        elif isinstance(event, GradientReady):
            if event.parameter is positions:
                at_positions = live
            live -= event.num_bytes
    assert at_positions is not None
    pixels, shared, copied, loss_gradient = ROWS * WIDTH * 2, GRADIENT_BYTES, GRADIENT_BYTES, 2
    assert at_positions == pixels + shared + copied + loss_gradient
    assert live == 0


def test_torch_copies():
    torch = pytest.importorskip("torch")
    positions = torch.nn.Parameter(torch.ones(1, ROWS, WIDTH))
    patches = torch.ones(1, ROWS, WIDTH, requires_grad=True) * 2
    seen = []
    patches.register_hook(lambda gradient: seen.append(gradient))
    (patches + positions).sum().backward()
    assert positions.grad.data_ptr() != seen[0].data_ptr()
