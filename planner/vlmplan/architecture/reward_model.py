"""A model that scores rows by one number: its head, and the loss of pairs of answers.

In bytes, with R rows of S tokens, width H, and w a number as the model computes it: ``score`` reads the last hidden
states, wRSH, which stay for backward while the head is trained, and makes wRS; of each row the score of the last token
that is no padding is taken. In backward the gradient of the scores is wRS zeros with R numbers among them, and that of
the hidden states wRSH. There are no logits over the vocabulary, and no weight is shared with the embedding.

Sources: ``GenericForSequenceClassification.forward`` in transformers 5.23 ``modeling_layers.py``; ``compute_loss`` in
TRL 1.16 ``trainer/reward_trainer.py``: the logarithm of the sigmoid of chosen less rejected, as Bradley and Terry have
it, on rows of which the first half is chosen (``DataCollatorForPreference``).
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType

SCORE = "score"
"""What transformers calls the head."""


def with_score(model: Any) -> None:
    """Put ``score`` in the place of the head of a language model: its ``...ForSequenceClassification`` with one
    label."""
    width = model.head.in_features
    name, _, inside = model.HEAD.partition(".")
    assert not inside
    model.modules_by_name.pop(name)
    model.HEAD, model.scores_rows = SCORE, True
    model.score = Linear(width, 1)


def _scores_of_rows(hidden: Tensor, head: Any) -> Tensor:
    """The score of the last token of each row, (rows, 1), of hidden states (rows, tokens, width)."""
    scores = head(hidden)
    tape, (rows, tokens, _) = scores.tape, scores.shape
    places = [tape.tensor((rows, tokens), DType.INT32) for _ in range(2)]  # which is padding, times its place
    del places
    node = tape.node((scores,), _gradient_of_all, meta=scores.shape)
    last = tape.tensor((rows, 1), scores.dtype, node)
    if node is not None:
        tape.save(node, tape.tensor((2, rows), DType.INT64))
    return last


def _gradient_of_all(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Zeros, into which the gradients of the last tokens are put."""
    gradient = ops.only(grads)
    whole = gradient.tape.tensor(node.meta, gradient.dtype)
    gradient.tape.move(whole.num_bytes, 2)
    return (whole,)


def loss_of_pairs(hidden: Tensor, head: Any) -> Tensor:
    """The loss of what ``head`` makes of hidden states (rows, tokens, width), which accelerate casts to float32 under
    autocast (``ConvertOutputsToFp32``)."""
    scores = _scores_of_rows(hidden, head)
    if scores.tape.autocast is not None:
        scores = ops.to(scores, DType.FLOAT32)
    return ops.total(scores, (1,))
