"""VLM-R1's and R1-V's log-probabilities of GRPO: whole logits, and of each row their ``log_softmax`` by itself.

In bytes, with R rows of S tokens, prompts with their images too, V of the vocabulary and w a logit as the model has
returned it (2 in 16 bit; 4 under autocast, whose outputs accelerate makes float32): wRSV of logits beside wR(S-1)V of
logarithms, which all stay for backward. There each row takes zeros for the gradient of its labels and that of its
logits, 2w(S-1)V, and its logarithms go; the rows' gradients are stacked when they are all there, 2wR(S-1)V, and written
into zeros of the whole, wR(S-1)V + wRSV. Without a graph two rows' logarithms are there at once, as a name has the
last ones until the next are made.

Sources: ``_get_per_token_logps`` in ``open_r1/trainer/grpo_trainer.py`` of om-ai-lab/VLM-R1 @ 90052f4 and of
Deep-Agent/R1-V @ bbbbe3d; ``gather_backward``, ``unbind_backward`` and ``slice_backward`` in torch 2.13
``torch/csrc/autograd/FunctionsManual.cpp`` and ``aten/src/ATen/native/TensorShape.cpp``.
"""

from collections.abc import Sequence
from typing import Final

from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

PASSES_FORWARD: Final = 2
"""Times that each logit is read or written beside the product."""
PASSES_BACKWARD: Final = 9
"""Zeros, ``log_softmax``'s gradient of two, the stack of it, zeros of the whole, and the copy into them."""
NAMED_ROWS: Final = 2


def row_loss(logits: Tensor) -> Tensor:
    """The loss of the log-probabilities of all tokens but the first, of ``logits`` (rows, tokens, vocabulary) that the
    model has returned."""
    tape, (num_rows, tokens, vocabulary) = logits.tape, logits.shape
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((logits,), _row_gradients, meta=(logits.shape, logits.dtype))
        of_row = (tokens - 1, vocabulary)
        if node is None:
            named = [tape.tensor(of_row, logits.dtype) for _ in range(min(num_rows, NAMED_ROWS))]
            del named
        else:
            tape.save(node, *(tape.tensor(of_row, logits.dtype) for _ in range(num_rows)))
        tape.move(PASSES_FORWARD * logits.num_bytes, num_rows)
        return tape.tensor((), DType.FLOAT32, node)


def _row_gradients(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    del grads
    (num_rows, tokens, vocabulary), dtype = node.meta
    saved = [one for one in node.saved if isinstance(one, Tensor)]
    node.saved = ()
    tape = saved[0].tape
    with tape.charged_to(Kind.LOGITS):
        of_rows: list[Tensor] = []
        for _ in range(num_rows):
            zeros = tape.tensor((tokens - 1, vocabulary), dtype)
            of_rows.append(tape.tensor((tokens - 1, vocabulary), dtype))
            del zeros
            saved.pop()
        stacked = tape.tensor((num_rows, tokens - 1, vocabulary), dtype)
        of_rows.clear()
        whole = tape.tensor((num_rows, tokens, vocabulary), dtype)
        del stacked
        tape.move(PASSES_BACKWARD * whole.num_bytes, PASSES_BACKWARD)
    return (whole,)
