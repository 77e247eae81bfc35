"""axolotl's log-probabilities of preferences: of all logits of all rows at once, by a kernel of its own.

In bytes, with R rows of S tokens and V of the vocabulary, w a logit as the model hands it out, which is 4 under
autocast (``ConvertOutputsToFp32``) and else 2 in 16 bit: wRSV that ``outputs`` holds until ``_compute_loss`` is over,
and wR(S-1)V, as logits of all tokens but the last are not one behind the other: they are copied, and the copy stays
for backward. The reference's are as much again, though its copy goes with its log-probabilities. Then the logits of
the chosen answers are copied, whose mean is logged; in KTO, beside the reference's (``ref_outputs``), those of good and
of bad answers, wR(S-1)V together, and of either the tokens of its answers once more. Entropies are looked up by a
kernel that copies nothing. In backward the gradient of the copy is as large as it, and then that of the logits, before
it becomes 16 bit again.

Sources: ``_compute_loss`` in TRL 1.9 ``trainer/dpo_trainer.py`` and ``kto_trainer.py``; ``selective_log_softmax`` and
``entropy_from_logits`` in axolotl 0.19 ``monkeypatch/trainer/utils.py``, which ``loaders/patch_manager.py`` puts into
TRL's ``trainer/utils.py`` before ``utils/trainer.py`` (``setup_trainer``) has ``DPOTrainer`` imported.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.batch import Batch
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, METRICS, slice_gradient, widened
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def axolotl_preference_loss(tape: ForwardTape, narrow: list[Tensor], batch: Batch) -> Tensor:
    """The loss of log-probabilities of logits that are ``narrow``, as the model has made them, and leave that list."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        logits = handed_out(narrow)
        total = axolotl_loss(logits)
        held = [logits.detached()]
        del logits
        tape.cloned.clear()
    with tape.section(METRICS):
        if batch.has_kl_rows:
            _log_means_apart(held[0], batch.scored_tokens)
        else:
            _log_means(held[0], batch.scored_tokens)
        held.clear()
    return total


def handed_out(narrow: list[Tensor]) -> Tensor:
    """Logits as accelerate's wrapper returns them, of ``narrow``, which is emptied: float32 under autocast."""
    return narrow.pop() if narrow[0].tape.autocast is None else widened(narrow)


def _log_means(logits: Tensor, scored_tokens: int | None) -> None:
    """``chosen_logits[chosen_mask].mean(-1)`` of half of the rows, which are copied. ``scored_tokens``: of a row; None:
    all but the first."""
    rows, tokens, vocabulary = logits.shape
    with logits.tape.charged_to(Kind.LOGITS):
        scored = tokens - 1 if scored_tokens is None else min(scored_tokens, tokens - 1)
        chosen = logits.tape.tensor((rows // 2 * scored, vocabulary), logits.dtype)
        logits.tape.move(6 * chosen.num_bytes, 8)


def _log_means_apart(logits: Tensor, scored_tokens: int | None) -> None:
    """The same of the answers that are good and of those that are bad, as many, each of which is copied whole before:
    ``shift_logits.detach().index_select(0, chosen_idx)``. The reference's logits are there as long."""
    rows, tokens, vocabulary = logits.shape
    with logits.tape.charged_to(Kind.LOGITS):
        of_reference = logits.tape.tensor(logits.shape, logits.dtype)
        apart = logits.tape.tensor((rows, tokens - 1, vocabulary), logits.dtype)
        logits.tape.move(2 * apart.num_bytes, 2)
    for _ in range(2):
        _log_means(logits, scored_tokens)
    del of_reference, apart


def axolotl_loss(logits: Tensor) -> Tensor:
    """The loss of the log-probabilities of all labels, made of ``logits`` of (rows, tokens, vocabulary)."""
    tape = logits.tape
    with tape.charged_to(Kind.LOGITS):
        rows, tokens, vocabulary = logits.shape
        scored = (rows, tokens - 1, vocabulary)
        view = Tensor(logits.storage, scored, logits.dtype, tape.node((logits,), slice_gradient, meta=logits.shape))
        copied = ops.copy(view)
        del view
        return kernel_loss(copied)


def kernel_loss(logits: Tensor) -> Tensor:
    """What the kernel makes of ``logits`` that lie in one piece, (rows, tokens, vocabulary), and keeps for backward."""
    tape, shape = logits.tape, logits.shape[:2]
    labels = tape.tensor(shape, DType.INT64)
    node = tape.node((logits,), _gradient_of_copy)
    found, sums = (tape.tensor(shape, DType.FLOAT32) for _ in range(2))
    tape.move(logits.num_bytes, 1)
    if node is not None:
        tape.save(node, logits.detached(), labels, sums)
    del found
    return tape.tensor((), DType.FLOAT32, node)


def _gradient_of_copy(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    del grads
    copied = next(one for one in node.saved if isinstance(one, Tensor) and len(one.shape) > 2)
    tape = copied.tape
    with tape.charged_to(Kind.LOGITS):
        gradient = tape.tensor(copied.shape, copied.dtype)
        tape.move(2 * gradient.num_bytes, 1)
    del copied
    node.saved = ()
    return (gradient,)
