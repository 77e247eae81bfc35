"""OpenRLHF's log-probabilities of the labels: float32 logits of all tokens, and flash-attn's cross entropy.

In bytes, with T tokens and V of the vocabulary, w a logit as the model makes it: wTV + 4TV while logits are cast, then
4TV, which the cross entropy keeps with a number of each token. In backward their gradient is as large again, 8TV, and
then that of the model's own logits, 4TV + wTV beside what is held.

The training loop of samples has the model's output under a name (``per_token_log_probs, output = self.model(...)``),
which the next micro batch's output takes when it is there: 4TV are held through backward, through the optimizer's step
and through the forward of the next micro batch, beside which its own logits are cast. So is the graph, without what
it has saved: where a hook makes the embedding's result need a gradient, that result and its gradient stay. That of
preferences holds no logits, but the graph in the same way, until the reference has run and the loss is made.

Sources: ``Actor.forward`` in ``openrlhf/models/actor.py``, ``log_probs_from_logits`` in ``models/utils.py`` and ``fit``
in ``trainer/sft_trainer.py`` and ``trainer/dpo_trainer.py`` of OpenRLHF@3c3be623; ``CrossEntropyLoss`` in flash-attn
2.8.3 ``flash_attn/ops/triton/cross_entropy.py``, which OpenRLHF imports whatever attention runs.
"""

from typing import Any

from vlmplan.architecture.batch import Batch
from vlmplan.architecture.losses.cross_entropy import whole_gradient
from vlmplan.architecture.losses.log_softmax import METRICS, widened
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def openrlhf_loss(tape: Tape, made: list[Tensor]) -> Tensor:
    """The loss of logits that are ``made`` and leave that list. What the loop keeps of the micro batch before goes when
    its like is there: of samples behind the logits, of preferences behind the reference (``METRICS``)."""
    with tape.section("loss"):
        wide = widened(made)
        total = cross_entropy(wide)
        if tape.keeps_logits:
            tape.kept_outputs[:] = [wide.detached()]
        del wide
        tape.end_forward()
    if tape.kept_outputs and not tape.keeps_logits:
        with tape.section(METRICS):
            tape.kept_outputs.clear()
    return total


def outputs_before(tape: Tape, batch: Batch, head: Any, embedding: Any) -> list[Tensor]:
    """What is held of the micro batch before ``batch``, which is like it: its float32 logits, and of a graph that goes
    on to the embedding's result (``ForwardTape.leaf``) that and its gradient."""
    held: list[Tensor] = []
    if batch.keeps_logits:
        with tape.charged_to(Kind.LOGITS):
            held.append(tape.tensor((*batch.token_shape, head.weight.shape[0]), DType.FLOAT32))
    if batch.keeps_graph and tape.input_gradients[0] and not embedding.weight.requires_grad:
        held += [tape.tensor((*batch.token_shape, embedding.weight.shape[1]), embedding.weight.dtype) for _ in range(2)]
    return held


def cross_entropy(logits: Tensor) -> Tensor:
    """One kernel reads the logits; it saves them, the labels and the logarithm of each token's sum."""
    tape, num_tokens = logits.tape, logits.numel // logits.shape[-1]
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((logits,), whole_gradient, meta=(logits.shape, logits.dtype, 2))
        labels = tape.tensor((num_tokens,), DType.INT64)
        sums = tape.tensor((num_tokens,), DType.FLOAT32)
        losses = [tape.tensor((num_tokens,), DType.FLOAT32) for _ in range(2)]  # and those of z, which are 0
        tape.move(logits.num_bytes)
        if node is not None:
            tape.save(node, logits.detached(), labels, sums)
        del labels, sums, losses
        return tape.tensor((), DType.FLOAT32, node)
