"""ms-swift's ORPO, CPO and SimPO: log-probabilities of all logits, row by row, and the cross-entropy of the chosen
answers.

In bytes, with R rows of S tokens and V of the vocabulary, w a logit as the model hands it out (4 under autocast, else 2
in 16 bit): wRSV of logits, to whose views the means stay that are logged. Of the half of the rows that are chosen all
logits but the last token's are copied, wR(S-1)V/2, unless there is one such row, and their ``log_softmax``, as large,
stays for backward. Then log-probabilities of all tokens but the last are looked up as in ``selective``, of a view:
with w = 2 their logarithms stay, 2R(S-1)V, with w = 4 the logits themselves, until ``gather`` has had its backward.
Backward comes to these first, and then to the cross-entropy.

Sources: ``concatenated_forward`` in ms-swift 4.6 ``rlhf_trainers/rlhf_mixin.py``, which calls the model and then those
of TRL 0.29 ``experimental/orpo/orpo_trainer.py`` and ``experimental/cpo/cpo_trainer.py``, with their
``get_batch_logps`` and ``get_batch_loss_metrics``; ``selective_log_softmax`` in ``trainer/utils.py`` there.
"""

from vlmplan.architecture.losses.axolotl import handed_out
from vlmplan.architecture.losses.axolotl_odds import likelihood_of_chosen, to_both
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, METRICS, slice_gradient
from vlmplan.architecture.losses.selective import of_logarithms, of_sums
from vlmplan.architecture.tensor import ForwardTape, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def selective_odds_loss(tape: ForwardTape, narrow: list[Tensor]) -> Tensor:
    """The loss of logits that are ``narrow``, as the model has made them, and leave that list: (rows, tokens,
    vocabulary), the chosen rows first."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        logits = handed_out(narrow)
        likelihood = likelihood_of_chosen(logits)
        odds = _of_all(logits)
        held = [logits.detached()]
        del logits
        total = tape.tensor((), DType.FLOAT32, tape.node((likelihood, odds), to_both))
        del likelihood, odds
    with tape.section(METRICS):
        tape.move(held.pop().num_bytes, 2)
    return total


def _of_all(logits: Tensor) -> Tensor:
    """``get_batch_logps``."""
    tape, (rows, tokens, vocabulary) = logits.tape, logits.shape
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((logits,), slice_gradient, meta=logits.shape)
        view = Tensor(logits.storage, (rows, tokens - 1, vocabulary), logits.dtype, node)
        labels = tape.tensor((rows, tokens - 1), DType.INT64)
        look_up = of_sums if logits.dtype is DType.FLOAT32 else of_logarithms
        return look_up(view, labels)
