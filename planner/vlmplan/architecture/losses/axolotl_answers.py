"""axolotl's log-probabilities of GRPO: logits of answers alone, divided in place, and a copy of them for its kernel.

In bytes, with R rows, k tokens of an answer and V of the vocabulary, w a logit as the model hands it out, which is 4
under autocast (``ConvertOutputsToFp32``) and else 2 in 16 bit: wR(k+1)V for the answer and the token before it
(``logits_to_keep``), of which all but the last are divided by the temperature, and wRkV for a copy of these, as they do
not lie in one piece: it stays for backward when the logits have gone. Of one row there is no copy, and the logits stay
themselves. In backward the gradient of the copy, wRkV, is written into zeros of the logits' size (``AsStridedBackward``
of what was divided in place), and torch's ``CopySlices`` makes a copy of those and, of its part, two more:
2wR(k+1)V + 2wRkV at once.

Entropies are looked up of the divided logits as they lie, and take a number a token. Where several micro batches are
generated together, log-probabilities are looked up of one after the other, and the loop holds the logits of the one
before until those of the next are there.

Sources: ``_get_per_token_logps_and_entropies`` in TRL 1.9 ``trainer/grpo_trainer.py``; ``selective_log_softmax`` and
``entropy_from_logits`` in axolotl 0.19 ``monkeypatch/trainer/utils.py``; ``CopySlices`` in torch 2.13
``torch/csrc/autograd/functions/tensor.cpp``, ``as_strided_backward`` in ``FunctionsManual.cpp``.
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.batch import Batch
from vlmplan.architecture.losses.axolotl import handed_out, kernel_loss
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, slice_gradient
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def axolotl_answers_loss(tape: ForwardTape, narrow: list[Tensor]) -> Tensor:
    """The loss of logits that are ``narrow``, as the model has made them, and leave that list."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        return answers_loss(narrow)


def answers_loss(narrow: list[Tensor]) -> Tensor:
    """The same in the section that there is. The last of the list is logits, (rows, tokens of an answer and the one
    before, vocabulary); what is before it goes when they have been handed out."""
    logits = handed_out(narrow)
    narrow.clear()
    tape = logits.tape
    with tape.charged_to(Kind.LOGITS):
        rows, tokens, vocabulary = logits.shape
        shape = (rows, tokens - 1, vocabulary)
        whole = tape.node((logits,), _copy_slices, meta=shape)
        strided = tape.node((_as(logits, logits.shape, whole),), slice_gradient, meta=logits.shape)
        divided = _as(logits, shape, strided)
        tape.move(2 * divided.num_bytes)
        flat = ops.copy(divided) if rows > 1 else divided
        del divided
        total = kernel_loss(flat)
        tape.move(logits.num_bytes)
        return total


def logits_before(tape: Tape, batch: Batch, head: Any) -> list[Tensor]:
    """The logits of a micro batch like ``batch``, as its model has handed them out."""
    assert batch.scored_tokens is not None
    dtype = head.weight.dtype if tape.autocast is None else DType.FLOAT32
    with tape.section("logits before"), tape.charged_to(Kind.LOGITS):
        return [tape.tensor((batch.micro_batch, batch.scored_tokens + 1, head.weight.shape[0]), dtype)]


def _as(logits: Tensor, shape: tuple[int, ...], node: GraphNode | None) -> Tensor:
    """A view of ``logits`` that ``node`` has made."""
    return Tensor(logits.storage, shape, logits.dtype, node)


def _copy_slices(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Beside the gradient that comes a copy of it, one of the part that was divided, and its quotient, which is copied
    into the first."""
    gradient = ops.only(grads)
    tape = gradient.tape
    with tape.charged_to(Kind.LOGITS):
        whole = tape.tensor(gradient.shape, gradient.dtype)
        part, quotient = (tape.tensor(node.meta, gradient.dtype) for _ in range(2))
        tape.move(8 * gradient.num_bytes, 4)
    del part, quotient
    return (whole,)
