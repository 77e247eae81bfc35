"""verl's log-probabilities of the labels: whole logits, ``div_(temperature)``, and flash-attn's cross entropy.

In bytes, with T tokens in the row, those of prompts too, and V of the vocabulary: 2TV of logits, which are divided in
place; the loss keeps them with a float32 of each token, and in backward writes their gradient over them
(``inplace_backward=True``). The division is of a view (``logits.squeeze(0)``), whose gradient torch makes in three more
tensors of that size (``CopySlices`` in ``torch/csrc/autograd/functions/tensor.cpp``): 8TV in all.

Sources: ``_forward_micro_batch`` in ``verl/workers/actor/dp_actor.py`` and ``logprobs_from_logits`` in
``verl/utils/torch_functional.py`` of verl@b178a3cd, the same of EasyR1@b44b311b; ``CrossEntropyLoss`` in flash-attn 2.8
``flash_attn/ops/triton/cross_entropy.py``. What follows is of one number a token.

From 0.9 on verl divides into another tensor (``prepare_model_outputs`` in ``verl/workers/engine/fsdp/
transformer_impl.py`` of verl@1dda039b): 4TV while the model's output is there, and in backward, where the quotient's
gradient is over it, and that of the logits beside.

``use_fused_kernels`` with its default, torch, makes no more than 512 rows of logits at once, with entropies whether or
not they are wanted (``verl/utils/experimental/torch_functional.py``): of c tokens 4cV each of float32 logits,
probabilities and their logarithms, and of one more; in backward of logits, probabilities, labels as rows, and two more,
beside 2TH for the gradient of T rows of H hidden states and 2VH for that of a trained head, whose parts take 2VH again.
"""

from collections.abc import Sequence
from typing import Any, Final

from vlmplan.architecture import ops
from vlmplan.architecture.losses.cross_entropy import count_products
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

CHUNK_TOKENS: Final = 512
"""``FusedLinearForPPO.chunk_size``."""
PASSES_FORWARD, PASSES_BACKWARD = 12, 10
"""Operations on each float32 logit that read or write it, of ``_fused_linear_for_ppo_fwd`` and ``_bwd``."""


def verl_loss(logits: Tensor) -> Tensor:
    """The loss of all tokens at once, made of logits that the model has returned."""
    with logits.tape.charged_to(Kind.LOGITS):
        return _cross_entropy(_divided_view(logits))


def _divided_view(logits: Tensor) -> Tensor:
    """``logits.squeeze(0).div_(number)``: of a view, so that its gradient is made by ``CopySlices``."""
    tape = logits.tape
    node = tape.node((logits,), _copy_slices)
    tape.move(2 * logits.num_bytes)
    return Tensor(logits.storage, logits.shape, logits.dtype, node)


def _copy_slices(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Beside the gradient that comes a copy for the whole, one of the view, and its quotient, which is copied into the
    first."""
    gradient = ops.only(grads)
    tape, shape, dtype = gradient.tape, gradient.shape, gradient.dtype
    with tape.charged_to(Kind.LOGITS):
        whole = tape.tensor(shape, dtype)
        view = tape.tensor(shape, dtype)
        quotient = tape.tensor(shape, dtype)
        tape.move(8 * gradient.num_bytes, 4)
    del view, quotient
    return (whole,)


def verl_quotient_loss(logits: Tensor, *, with_entropy: bool = False) -> Tensor:
    """The loss of ``logits / temperature``, which is the temperature of each token."""
    with logits.tape.charged_to(Kind.LOGITS):
        tape = logits.tape
        quotient = tape.tensor(logits.shape, logits.dtype, tape.node((logits,), _quotient_gradient))
        tape.move(2 * logits.num_bytes)
        if with_entropy:
            look_up_entropy(quotient)
        return _cross_entropy(quotient)


def _quotient_gradient(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    gradient = ops.only(grads)
    tape = gradient.tape
    with tape.charged_to(Kind.LOGITS):
        found = tape.tensor(gradient.shape, gradient.dtype)
        tape.move(2 * gradient.num_bytes)
    return (found,)


def look_up_entropy(logits: Tensor) -> None:
    """verl's entropy of every token without a graph (``entropy_from_logits``, which torch compiles): one float32 of
    each logit.

    Source: the code that torch 2.13's inductor makes of it with autocast, on a CPU; verl's own pages say so too
    (``docs/perf/perf_tuning.rst``: 4 bytes a logit beside the logits, and 1 that is not seen there).
    """
    tape = logits.tape
    with tape.charged_to(Kind.LOGITS):
        wide = tape.tensor(logits.shape, DType.FLOAT32)
        tape.move(2 * logits.num_bytes + 2 * wide.num_bytes)


def _cross_entropy(logits: Tensor) -> Tensor:
    """One kernel reads the logits; it saves them and the logarithm of each token's sum."""
    tape, num_tokens = logits.tape, logits.numel // logits.shape[-1]
    node = tape.node((logits,), _gradient_in_place)
    statistics = [tape.tensor((num_tokens,), DType.FLOAT32) for _ in range(2)]  # losses, and their sums
    tape.move(logits.num_bytes)
    if node is not None:
        tape.save(node, logits.detached(), *statistics)
    del statistics
    return tape.tensor((), DType.FLOAT32, node)


def _gradient_in_place(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    del grads
    logits = next(one for one in node.saved if isinstance(one, Tensor) and len(one.shape) > 1)
    node.saved = ()
    logits.tape.move(2 * logits.num_bytes)
    return (logits,)


def verl_fused_loss(hidden: Tensor, head: Any) -> Tensor:
    """The loss of all tokens, chunk by chunk. ``hidden``: (samples, tokens, width) of the last norm. The head's weight
    is read as it lies in the module, so adapters on it do not take part."""
    tape, weight = hidden.tape, ReadHead(head).head.weight
    num_tokens = hidden.numel // hidden.shape[-1]
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((hidden, weight), _fused_backward, (hidden.detached(),), weight)
        results = [tape.tensor((num_tokens,), hidden.dtype) for _ in range(2)]
        _look_at_chunk(hidden, weight, min(num_tokens, CHUNK_TOKENS))
        _count(hidden, weight, 1, PASSES_FORWARD)
        del results
        return tape.tensor((), DType.FLOAT32, node)


def _chunk_of_logits(hidden: Tensor, weight: Any, num_rows: int) -> Tensor:
    """Divided by the temperature, and in float32."""
    tape, shape = hidden.tape, (num_rows, weight.shape[0])
    product = tape.tensor(shape, hidden.dtype)
    divided = tape.tensor(shape, hidden.dtype)
    del product
    return ops.to(divided, DType.FLOAT32)


def _look_at_chunk(hidden: Tensor, weight: Any, num_rows: int) -> None:
    logits = _chunk_of_logits(hidden, weight, num_rows)
    held = [hidden.tape.tensor(logits.shape, DType.FLOAT32) for _ in range(2)]  # probabilities and their logarithms
    held.append(hidden.tape.tensor(logits.shape, DType.FLOAT32))  # exponentials, and then products


def _count(hidden: Tensor, weight: Any, num_products: int, num_passes: int) -> None:
    tape, (vocab_size, width) = hidden.tape, weight.shape
    num_tokens = hidden.numel // width
    chunk = min(num_tokens, CHUNK_TOKENS)
    count_products(tape, weight, num_tokens, chunk, hidden.dtype, num_products)
    tape.move(num_passes * num_tokens * vocab_size * DType.FLOAT32.num_bytes, num_passes * -(-num_tokens // chunk))


def _parts(hidden: Tensor, weight: Any, num_rows: int) -> list[Tensor]:
    """The gradients of a chunk's rows and of the head, which have names until those of the next are there."""
    tape = hidden.tape
    return [tape.tensor((num_rows, hidden.shape[-1]), hidden.dtype), tape.gradient(weight.shape, weight.dtype)]


def _fused_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    tape = ops.only(grads).tape
    hidden = next(one for one in node.saved if isinstance(one, Tensor))
    weight, (needs_hidden, needs_weight) = node.meta, node.needs
    num_rows = min(hidden.numel // hidden.shape[-1], CHUNK_TOKENS)
    with tape.charged_to(Kind.LOGITS):
        grad_hidden = tape.tensor(hidden.shape, hidden.dtype) if needs_hidden else None
        grad_weight = tape.gradient(weight.shape, weight.dtype) if needs_weight else None
        before = _parts(hidden, weight, num_rows) if num_rows < hidden.numel // hidden.shape[-1] else None
        logits = _chunk_of_logits(hidden, weight, num_rows)
        wide = [tape.tensor(logits.shape, DType.FLOAT32) for _ in range(2)]  # probabilities, labels
        difference = tape.tensor(logits.shape, DType.FLOAT32)
        product = tape.tensor(logits.shape, DType.FLOAT32)
        del difference
        gradient = tape.tensor(logits.shape, DType.FLOAT32)  # 0 + the product
        del product
        narrow = tape.tensor(logits.shape, hidden.dtype)
        del gradient
        divided = tape.tensor(logits.shape, hidden.dtype)
        del narrow
        parts = _parts(hidden, weight, num_rows)
        del before, parts, divided, wide, logits
        _count(hidden, weight, 3, PASSES_BACKWARD)
    node.saved = ()
    return (grad_hidden, grad_weight)
