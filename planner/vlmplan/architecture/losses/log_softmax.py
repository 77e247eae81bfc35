"""LLaMA-Factory's log-probabilities of preferences: of all logits of all rows at once, in float32.

In bytes, with R rows of S tokens and V of the vocabulary, w a logit as the model makes it: wRSV + 4RSV while logits
are cast, and then 4RSV, of which ``concatenated_forward`` hands out two views, so that they stay until the reference
has run and their mean is logged. ``log_softmax`` gets all tokens of a row but the last, 4R(S-1)V, and CUDA's kernel
copies what does not lie in one piece; its result stays for backward. There a row of zeros for each token, into which
the gradient of one word is put, and the gradient of the logits are as large again; then of the whole rows, 4RSV, and as
the model made them.

In KTO those 4RSV stay while the model runs over answers to other prompts. Then the logits of good and of bad answers
are copied, 4RSV together, in place of which they stay; so it is with the reference, whose copies go at once.

Sources: ``CustomDPOTrainer`` in ``train/dpo/trainer.py``, ``CustomKTOTrainer`` in ``train/kto/trainer.py`` and
``get_batch_logps`` in ``train/trainer_utils.py`` of LLaMA-Factory 0.9.5; ``host_softmax`` in torch 2.13
``aten/src/ATen/native/cuda/SoftMax.cu`` (``input_.contiguous()``); ``gather_backward`` in
``TensorAdvancedIndexing.cpp`` and ``slice_backward`` in ``TensorShape.cpp``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.losses.cross_entropy import log_softmax, whole_gradient
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

AUTOCAST_LEFT = "autocast.left"
"""The section between a model's forward and a loss that is made outside of autocast."""
COPIES = "copies"
"""The section behind the loss of answers that are good or bad, in which the logits of both are copied apart."""
METRICS = "metrics"
"""The section behind the loss, and behind the reference's forward where there is one, to whose end logits stay."""


def preference_loss(tape: ForwardTape, narrow: list[Tensor], *, copies: bool) -> Tensor:
    """The loss of log-probabilities, of logits that are ``narrow`` and go with that list. What stays of them until the
    reference has run, themselves or ``copies``, is freed in ``METRICS``, where the means or sums of both parts are
    logged."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    total, held = _loss_and_logits(tape, narrow)
    if copies:
        with tape.section(COPIES):
            held = [copied_apart(held.pop())]
    with tape.section(METRICS):
        tape.move(held.pop().num_bytes, 2)
    return total


def _loss_and_logits(tape: ForwardTape, narrow: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the logits that it is made of, without their graph."""
    with tape.section("loss"):
        wide = widened(narrow)
        total = log_softmax_loss(wide)
        held = [wide.detached()]
        del wide
        tape.cloned.clear()
        return total, held


def look_up_answers(tape: ForwardTape, narrow: list[Tensor]) -> None:
    """The same without a loss, in a forward of answers that are good or bad."""
    _, held = _loss_and_logits(tape, narrow)
    with tape.section(COPIES):
        copied_apart(held.pop())


def copied_apart(logits: Tensor) -> Tensor:
    """Logits of good and of bad answers, as one tensor: together they are as large as all."""
    with logits.tape.charged_to(Kind.LOGITS):
        logits.tape.move(2 * logits.num_bytes, 2)
        return logits.tape.tensor(logits.shape, logits.dtype)


def widened(narrow: list[Tensor]) -> Tensor:
    """``.logits.to(torch.float32)`` of what the model has returned, ``narrow``, which is emptied: nothing else has
    it."""
    logits = narrow.pop()
    with logits.tape.charged_to(Kind.LOGITS):
        return ops.to(logits, DType.FLOAT32)


def log_softmax_loss(logits: Tensor) -> Tensor:
    """The loss of the log-probabilities of all labels, made of float32 ``logits`` of (rows, tokens, vocabulary)."""
    tape = logits.tape
    with tape.charged_to(Kind.LOGITS):
        rows, tokens, vocabulary = logits.shape
        scored = (rows, tokens - 1, vocabulary)
        labels = tape.tensor(scored[:2], DType.INT64)
        mask = tape.tensor(scored[:2], DType.BOOL)
        view = Tensor(logits.storage, scored, logits.dtype, tape.node((logits,), slice_gradient, meta=logits.shape))
        copied = tape.tensor(scored, logits.dtype) if rows > 1 else None
        tape.move(2 * view.num_bytes if rows > 1 else 0, int(rows > 1))
        logarithms = log_softmax(view)
        del copied, view
        return _sum_of_labels(logarithms, labels, mask)


def _sum_of_labels(logarithms: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """``gather``, times the mask, and its sum over each row: what follows is of one number a row."""
    tape = logarithms.tape
    node = tape.node((logarithms,), whole_gradient, meta=(logarithms.shape, logarithms.dtype, 1))
    found = [tape.tensor(labels.shape, logarithms.dtype) for _ in range(2)]  # gathered, and masked
    if node is not None:
        tape.save(node, labels, mask)
    del found
    return tape.tensor((), DType.FLOAT32, node)


def slice_gradient(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Zeros, into which the gradient of the part is copied."""
    gradient = ops.only(grads)
    tape = gradient.tape
    with tape.charged_to(Kind.LOGITS):
        whole = tape.tensor(node.meta, gradient.dtype)
        tape.move(whole.num_bytes + 2 * gradient.num_bytes, 2)
    return (whole,)
