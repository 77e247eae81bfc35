"""``clamp``: its backward compares with as many limits as there are, and takes a mask for each."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

ROWS, WIDTH = 64, 48
NUMEL = ROWS * WIDTH


def mask_bytes(num_limits: int, *, in_place: bool) -> int:
    """What backward has at its highest beside the gradient that it makes, and the one that it gets of a sum: a
    number."""
    tape = Tape(follows_weights=False)
    with tape.section("clamp"):
        x = ops.copy(tape.leaf(tape.tensor((ROWS, WIDTH), DType.BFLOAT16)))
        clamped = ops.clamp_in_place(x) if in_place else ops.clamp(x, num_limits=num_limits)
        loss = ops.total(clamped, ())
        del x, clamped
    tape.run_backward(loss)
    spans = [event for event in tape.trace().sections["clamp"].backward if isinstance(event, Span)]
    assert len(spans) == 1
    return spans[0].peak_bytes - (NUMEL + 1) * DType.BFLOAT16.num_bytes


@pytest.mark.parametrize(
    ("limits", "in_place"), [((0.0, None), False), ((None, 1.0), False), ((0.0, 1.0), False), ((0.0, 1.0), True)]
)
def test_backward_takes_a_mask_for_each_limit_as_torch_does(limits, in_place):
    torch = pytest.importorskip("torch")
    x = torch.ones(ROWS, WIDTH, dtype=torch.bfloat16, requires_grad=True) * 2
    y = x.clamp_(*limits) if in_place else x.clamp(*limits)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        y.backward(torch.ones_like(y))
    num_masks = sum(event.count for event in profiled.key_averages() if event.key in ("aten::ge", "aten::le"))
    assert mask_bytes(2 - limits.count(None), in_place=in_place) == num_masks * NUMEL
