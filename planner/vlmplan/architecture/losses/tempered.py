"""ms-swift's log-probabilities of GRPO: of the answers' logits, divided by the temperature in place.

``selective`` with three differences. Logits are those of the answers and of the token before each, of which the
last is left out by a slice, and that slice is divided in place: so that its gradient is put into zeros of the whole,
which are copied, and of which the part that was divided is copied and divided once more (``CopySlices``). In bytes,
with R rows of A answered tokens, V of the vocabulary and w a logit (2; 4 under autocast): 4wRAV of gradients at the
most, beside what is saved. Samples that are one row (``padding_free``) are looked up token by token, so that no row
stands beside the others.

With entropies (``log_entropy``, ``top_entropy_quantile``) two more tensors of every logit stay until the loss is made,
as they are looked up in a forward with a graph, beside a copy of the slice where rows do not lie in one piece.

Sources: ``_get_logps_via_local_forward`` and ``_compute_loss_and_metrics`` in ``rlhf_trainers/grpo_trainer.py`` of
ms-swift 4.6.0, ``selective_log_softmax`` and ``entropy_from_logits`` in TRL 0.29 ``trainer/utils.py``;
``CopySlices::apply`` in torch 2.13 ``torch/csrc/autograd/functions/tensor.cpp``.
"""

from collections.abc import Sequence
from typing import Final

from vlmplan.architecture import ops
from vlmplan.architecture.batch import Batch
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, slice_gradient, widened
from vlmplan.architecture.losses.selective import last_tokens, of_logarithms, of_sums
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.recipe.choices import TEMPERED, LossKind
from vlmplan.units import DType

ENTROPY_ROWS: Final = 128
"""Rows of a chunk of ``entropy_from_logits``."""


def scored_hidden(hidden: Tensor, batch: Batch, loss: LossKind | None) -> Tensor:
    """The hidden states that the head is called for: in ms-swift and in axolotl's GRPO those of the answer, and of the
    token before it (``logits_to_keep``). Of ms-swift's answers that are one row all from the first one on, later
    prompts too."""
    if loss not in (LossKind.SELECTIVE, LossKind.AXOLOTL_ANSWERS, *TEMPERED) or batch.scored_tokens is None:
        return hidden
    if batch.learns_chosen:  # of whole rows
        return hidden
    if loss is LossKind.AXOLOTL_ANSWERS:
        return last_tokens(hidden, batch.scored_tokens + 1, is_masked=False)
    samples = 1 if batch.sequences is None else batch.micro_batch
    if loss is LossKind.SELECTIVE:
        return last_tokens(hidden, samples * batch.scored_tokens + 1)
    prompt = batch.num_tokens - batch.scored_tokens
    return last_tokens(hidden, samples * batch.num_tokens - prompt + 1, is_masked=False)


def tempered_answer_loss(tape: ForwardTape, narrow: list[Tensor], *, by_token: bool, with_entropy: bool) -> Tensor:
    """The loss of log-probabilities of logits that are ``narrow``, as the model has made them, and leave that list.
    ``by_token``: samples are one row."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        return tempered_loss(narrow, by_token=by_token, with_entropy=with_entropy)


def tempered_loss(narrow: list[Tensor], *, by_token: bool, with_entropy: bool = False) -> Tensor:
    """The same in the section that there is. The list's logits: (rows, tokens, vocabulary)."""
    logits = narrow.pop() if narrow[0].tape.autocast is None else widened(narrow)
    with logits.tape.charged_to(Kind.LOGITS):
        tape, scored = logits.tape, _divided_slice(logits)
        labels = tape.tensor(scored.shape[:2], DType.INT64)
        is_wide = scored.dtype is DType.FLOAT32
        of_rows = of_sums if is_wide else of_logarithms
        total = of_rows(scored, labels, by_token=by_token)
        if with_entropy and total.node is not None:
            entropies = _looked_up_entropies(scored)
            del logits, scored
            entropies.clear()
        return total


def _divided_slice(logits: Tensor) -> Tensor:
    """``logits[:, :-1].div_(temperature)``."""
    tape, (rows, tokens, vocabulary) = logits.tape, logits.shape
    shape = rows, tokens - 1, vocabulary
    divided = Tensor(logits.storage, logits.shape, logits.dtype, tape.node((logits,), _copy_slices, meta=shape))
    view = Tensor(logits.storage, shape, logits.dtype, tape.node((divided,), slice_gradient, meta=logits.shape))
    tape.move(2 * view.num_bytes)
    return view


def _copy_slices(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Beside the gradient that comes a copy of it, one of the part that was divided, and its quotient, which is copied
    into the first."""
    gradient = ops.only(grads)
    tape, dtype = gradient.tape, gradient.dtype
    with tape.charged_to(Kind.LOGITS):
        whole = tape.tensor(gradient.shape, dtype)
        part = tape.tensor(node.meta, dtype)
        quotient = tape.tensor(node.meta, dtype)
        tape.move(8 * gradient.num_bytes, 4)
    del part, quotient
    return (whole,)


def _looked_up_entropies(scored: Tensor) -> list[Tensor]:
    """What a graph of them keeps: logarithms of all probabilities and these, chunk by chunk."""
    tape, (rows, tokens, vocabulary) = scored.tape, scored.shape
    flat = tape.tensor(scored.shape, scored.dtype) if rows > 1 else None
    kept: list[Tensor] = []
    left = rows * tokens
    while left:
        shape = (min(ENTROPY_ROWS, left), vocabulary)
        kept += [tape.tensor(shape, scored.dtype) for _ in range(2)]
        product = tape.tensor(shape, scored.dtype)
        del product
        left -= shape[0]
    tape.move(9 * scored.num_bytes, 5 * len(kept) // 2)
    del flat
    return kept
