"""The loss of all logits at once, in bytes a logit."""

import pytest

from vlmplan.architecture.losses.cross_entropy import full_loss
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import packed_node
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

SHAPE = (40, 1000)


@pytest.mark.parametrize(
    ("autocast", "widens", "at_most", "kept"),
    [
        (DType.BFLOAT16, True, 4 + 4, 4),
        (DType.BFLOAT16, False, 2 + 4, 2 + 4),
        (None, True, 4 + 4, 4),
        (None, False, 2, 2),
    ],
)
def test_log_softmax_has_the_type_that_cross_entropy_asks_for(autocast, widens, at_most, kept):
    """Of 16-bit logits that nothing has widened autocast gives float32 to ``nll_loss`` alone. Beside the logits."""
    tape = Tape(autocast=autocast, follows_weights=False)
    with tape.section("before"):
        logits = tape.tensor(SHAPE, DType.BFLOAT16, packed_node())
    with tape.head():
        loss = full_loss(logits, widens=widens)
    (span,) = [event for event in tape.trace().sections["head"].forward if isinstance(event, Span)]
    num_logits = logits.numel
    assert round(span.peak_bytes / num_logits, 2) == at_most
    assert round((span.delta_bytes - loss.num_bytes) / num_logits, 2) == kept
