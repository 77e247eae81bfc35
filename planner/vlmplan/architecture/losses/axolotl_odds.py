"""axolotl's ORPO and SimPO: log-probabilities of all logits by its kernel, and the cross-entropy of the chosen answers.

In bytes, with R rows of S tokens and V of the vocabulary, w a logit as the model hands it out (4 under autocast, else 2
in 16 bit): wRSV of logits, to whose views the means stay that are logged. Of the half of the rows that are chosen all
logits but the last token's are copied, wR(S-1)V/2, unless there is one such row, and their ``log_softmax``, as large,
stays for backward. Then all logits but the last token's are copied for the kernel, wR(S-1)V, which stay too: 2.5 wRSV
in forward. Backward comes to the kernel first: as much again for the gradient of its copy, then zeros of the whole that
this is written into; and with those half of it for each of the cross-entropy's two gradients, and zeros as above.

Sources: ``concatenated_forward``, ``get_batch_logps`` and ``get_batch_loss_metrics`` in TRL 1.9
``experimental/orpo/orpo_trainer.py`` and ``experimental/cpo/cpo_trainer.py``; ``selective_log_softmax`` in axolotl 0.19
``monkeypatch/trainer/utils.py``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.batch import Batch
from vlmplan.architecture.losses.axolotl import axolotl_loss, axolotl_preference_loss, handed_out
from vlmplan.architecture.losses.cross_entropy import log_softmax, nll_loss
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, slice_gradient
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def axolotl_pairs_loss(tape: ForwardTape, narrow: list[Tensor], batch: Batch) -> Tensor:
    """The loss of preferences of logits that are ``narrow`` and leave that list, with a reference or without."""
    if batch.learns_chosen:
        return axolotl_odds_loss(tape, narrow)
    return axolotl_preference_loss(tape, narrow, batch)


def axolotl_odds_loss(tape: ForwardTape, narrow: list[Tensor]) -> Tensor:
    """The loss of logits that are ``narrow``, as the model has made them, and leave that list: (rows, tokens,
    vocabulary), the chosen rows first."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        logits = handed_out(narrow)
        likelihood = likelihood_of_chosen(logits)
        odds = axolotl_loss(logits)
        return tape.tensor((), DType.FLOAT32, tape.node((likelihood, odds), to_both))


def likelihood_of_chosen(logits: Tensor) -> Tensor:
    """``cross_entropy_loss(all_logits[:len_chosen], labels)``."""
    tape, (rows, tokens, vocabulary) = logits.tape, logits.shape
    with tape.charged_to(Kind.LOGITS):
        chosen = _part(logits, (rows // 2, tokens, vocabulary))
        scored = _part(chosen, (rows // 2, tokens - 1, vocabulary))
        del chosen
        labels = tape.tensor(scored.shape[:2], DType.INT64)
        copied = ops.copy(scored) if rows > 2 else scored
        del scored
        loss = nll_loss(log_softmax(copied))
        del copied, labels
        return loss


def _part(logits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A view of the first rows or tokens."""
    node = logits.tape.node((logits,), slice_gradient, meta=logits.shape)
    return Tensor(logits.storage, shape, logits.dtype, node)


def to_both(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The gradient of a sum of two losses."""
    gradient = ops.only(grads)
    return (gradient, gradient)
