"""Log-probabilities of labels, row by row, of all logits at once: ``selective_log_softmax`` of TRL before 1.9.

In bytes, with R rows of S tokens that the head is called for and V of the vocabulary:

- logits in 16 bit, which nothing casts: 2RSV, and 2SV for each row's logarithms of probabilities, which stay for
  backward; the logits go when the log-probabilities are there. In backward a row of zeros for each token, into which
  the gradient of one word is put, the gradient of a row, and at the end all rows in one, 4RSV; without a graph
  two rows are there at once;
- logits in float32, as accelerate makes them under autocast (``ConvertOutputsToFp32``): 2RSV + 4RSV while they are
  cast; then 4RSV, which ``gather`` keeps until its backward has run, the last, and 4SV while the exponentials of a row
  are added up. In backward three such rows while the gradient of one is made (``logsumexp_backward`` in torch 2.13
  ``FunctionsManual.cpp``), then all rows in one, and zeros as large, into which the gradients of the labels are put:
  12RSV.

ms-swift 4.6 ``rlhf_trainers/rlhf_mixin.py`` (``get_per_token_logps``) calls it in ``dpo_trainer.py``
(``concatenated_forward``), for the tokens from one before the first label on (``prepare_logits_to_keep`` in
``trainers/mixin.py``); their means are looked up before, of one number a token.

Sources: TRL 0.29 ``trainer/utils.py``; ``logsumexp_out_impl`` in torch 2.13 ``ReduceOps.cpp``; ``gather_backward`` in
``TensorAdvancedIndexing.cpp``; rows of a tensor are those of ``unbind``, whose gradient is their ``stack``.
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT, widened
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def last_tokens(hidden: Tensor, count: int, *, is_masked: bool = True) -> Tensor:
    """``hidden[:, -count:]`` as a head reads it: a view, and a copy where rows do not lie in one piece. Of one row,
    whose samples lie one behind the other, those ``count`` that a mask tells, unless it is not ``is_masked``.

    ``hidden``: (rows, tokens, width)."""
    rows, tokens, width = hidden.shape
    tape = hidden.tape
    if rows == 1 and is_masked:
        node = tape.node((hidden,), _slice_gradient, meta=hidden.shape)
        tape.save(node, tape.tensor((count,), DType.INT64))
        return tape.tensor((1, min(count, tokens), width), hidden.dtype, node)
    shape = rows, min(count, tokens), width
    view = Tensor(hidden.storage, shape, hidden.dtype, tape.node((hidden,), _slice_gradient, meta=hidden.shape))
    is_cast = tape.autocast is not None and hidden.dtype is not tape.autocast
    return view if shape[1] == tokens or rows == 1 or is_cast else ops.copy(view)


def _slice_gradient(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Zeros, into which the gradient of the part is copied."""
    gradient = ops.only(grads)
    tape = gradient.tape
    whole = tape.tensor(node.meta, gradient.dtype)
    tape.move(whole.num_bytes + 2 * gradient.num_bytes, 2)
    return (whole,)


def selective_preference_loss(tape: ForwardTape, narrow: list[Tensor]) -> Tensor:
    """The loss of log-probabilities of logits that are ``narrow``, as the model has made them, and leave that list."""
    with tape.section(AUTOCAST_LEFT):
        tape.end_forward()
    with tape.section("loss"):
        return selective_loss(narrow)


def selective_loss(narrow: list[Tensor]) -> Tensor:
    """The same in the section that there is. The list's logits: (rows, tokens, vocabulary)."""
    logits = narrow.pop() if narrow[0].tape.autocast is None else widened(narrow)
    with logits.tape.charged_to(Kind.LOGITS):
        tape, (rows, tokens, _) = logits.tape, logits.shape
        labels = tape.tensor((rows, tokens), DType.INT64)
        means = tape.tensor((rows, tokens), logits.dtype)
        tape.move(logits.num_bytes)
        is_wide = logits.dtype is DType.FLOAT32
        total = of_sums(logits, labels) if is_wide else of_logarithms(logits, labels)
        del means
        return total


def _row(logits: Tensor) -> Tensor:
    """A new tensor as large as one row of logits."""
    return logits.tape.tensor(logits.shape[1:], logits.dtype)


def of_sums(logits: Tensor, labels: Tensor, *, by_token: bool = False) -> Tensor:
    """``gather``, less ``logsumexp`` of each row, which saves the row and its result. ``by_token``: rows are single
    tokens, and nothing beside the others."""
    tape, rows = logits.tape, logits.shape[0]
    node = tape.node((logits,), _gradient_of_sums, meta=by_token)
    sums = tape.tensor(labels.shape, logits.dtype)
    exponentials = None if by_token else _row(logits)
    del exponentials
    tape.move(5 * logits.num_bytes, 5 * rows)
    if node is not None:
        tape.save(node, logits.detached(), labels, sums)
    return tape.tensor((), DType.FLOAT32, node)


def _gradient_of_sums(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    del grads
    logits = next(one for one in node.saved if isinstance(one, Tensor) and len(one.shape) > 2)
    tape, shape, dtype = logits.tape, logits.shape, logits.dtype
    with tape.charged_to(Kind.LOGITS):
        made: list[Tensor] = []
        for _ in range(shape[0]):
            beside = [] if node.meta else [_row(logits), _row(logits)]  # less the sum, and the exponentials
            made.append(_row(logits))
            del beside
        stacked = tape.tensor(shape, dtype)
        made.clear()
        of_labels = tape.tensor(shape, dtype)
        del of_labels, logits
        node.saved = ()
        tape.move(12 * stacked.num_bytes, 4 * shape[0] + 4)
    return (stacked,)


def of_logarithms(logits: Tensor, labels: Tensor, *, by_token: bool = False) -> Tensor:
    """``log_softmax`` of each row, which saves its result, and ``gather``. ``by_token``: rows are single tokens, and
    nothing beside the others."""
    tape, rows = logits.tape, logits.shape[0]
    node = tape.node((logits,), _gradient_of_logarithms, meta=(logits.shape, by_token))
    before = None
    if by_token and node is None:
        rows = 0
    for _ in range(rows):
        logarithms = _row(logits)
        if node is not None:
            tape.save(node, logarithms)
        before = logarithms  # which has its name until the next row's are there
    del before
    tape.move(2 * logits.num_bytes, 2 * rows)
    if node is not None:
        tape.save(node, labels)
    return tape.tensor((), DType.FLOAT32, node)


def _gradient_of_logarithms(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The last row first; the logarithms of a row go when its gradient is there."""
    tape, (shape, by_token) = ops.only(grads).tape, node.meta
    saved = [one for one in node.saved if isinstance(one, Tensor) and one.dtype is not DType.INT64]
    dtype = saved[0].dtype
    node.saved = ()
    with tape.charged_to(Kind.LOGITS):
        made: list[Tensor] = []
        while saved:
            if by_token:
                saved.pop()
            of_labels = None if by_token else tape.tensor(shape[1:], dtype)
            made.append(tape.tensor(shape[1:], dtype))
            del of_labels
            if saved and not by_token:
                saved.pop()
        stacked = tape.tensor(shape, dtype)
        tape.move(8 * stacked.num_bytes, 4 * shape[0] + 1)
        made.clear()
    return (stacked,)
