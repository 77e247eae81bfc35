"""What a product has at once under autocast, as torch has it."""

import torch
from torch import nn
from torch_probe import FAKE_MODE, ByteCounter

from vlmplan.architecture.ops.matmuls import linear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

TOKENS, IN_WIDTH, OUT_WIDTH = 64, 8, 16


def test_what_autocast_casts_is_there_until_the_product_has_been_made():
    """``module(x * 2)``: the call holds its argument in float32 beside both casts and the result."""
    tape = Tape(autocast=DType.BFLOAT16)
    weight = Parameter(OUT_WIDTH, IN_WIDTH)
    weight.dtype, weight.requires_grad = DType.FLOAT32, False
    with tape.section("product"):
        out = linear(tape.tensor((TOKENS, IN_WIDTH), DType.FLOAT32), weight)
        del out
    spans = [one for one in tape.trace().sections["product"].forward if isinstance(one, Span)]

    with FAKE_MODE, ByteCounter(FAKE_MODE) as counter:
        module = nn.Linear(IN_WIDTH, OUT_WIDTH, bias=False).requires_grad_(False)
        x = torch.empty(TOKENS, IN_WIDTH)
        before = counter.live_bytes
        counter.reset_peak()
        with torch.autocast("cpu", torch.bfloat16):
            module(x * 2)

    expected = TOKENS * IN_WIDTH * (4 + 2) + OUT_WIDTH * IN_WIDTH * 2 + TOKENS * OUT_WIDTH * 2
    assert counter.peak_bytes - before == expected
    assert max(span.peak_bytes for span in spans) == expected
