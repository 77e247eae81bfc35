"""The output head and the loss: where the vocabulary-wide tensors live.

``full`` is the plain Hugging Face path (``ForCausalLMLoss``): 16-bit logits, a float32 copy, its log-softmax, and in
backward two float32 gradients and their 16-bit cast. ``chunked`` computes loss and gradients chunk by chunk in the
forward, so that no more than one chunk of logits exists (the trainer's ``chunked_cross_entropy``).
"""

from collections.abc import Sequence

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear, Module
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import Kind, Node, Tensor
from vlmplan.units import DType

CHUNK_ELEMENTS = 2**26
"""Logits per chunk: 256 MiB in float32. A choice: small beside a 2 B model, large enough to keep the product busy."""


def full_loss(hidden: Tensor, head: Module, *, caps: bool = False) -> tuple[Tensor, Tensor]:
    """(loss, logits). The caller holds the logits through backward, as ``outputs = model(**batch)`` does."""
    tape = hidden.tape
    with tape.charged_to(Kind.LOGITS):
        logits = head(hidden)
        if caps:
            logits = ops.scale(ops.tanh(ops.scale(logits)))
        return _cross_entropy(logits), logits.detached()


def _cross_entropy(logits: Tensor) -> Tensor:
    """``F.cross_entropy(logits.float(), labels)``: log_softmax saves its result, nll_loss saves the same."""
    logits = ops.to(logits, DType.FLOAT32)
    tape = logits.tape
    node = tape.node((logits,), _cross_entropy_backward, meta=logits.shape)
    log_probabilities = tape.tensor(logits.shape, DType.FLOAT32)
    tape.move(2 * logits.num_bytes)
    tape.save(node, log_probabilities)
    return tape.tensor((), DType.FLOAT32, node)


def _cross_entropy_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    """nll_loss writes a whole gradient, log_softmax reads it and writes another."""
    (g,) = grads
    assert g is not None
    tape = g.tape
    with tape.charged_to(Kind.LOGITS):
        grad_log_probabilities = tape.tensor(node.meta, DType.FLOAT32)
        tape.move(grad_log_probabilities.num_bytes)
        grad_logits = tape.tensor(node.meta, DType.FLOAT32)
        tape.move(3 * grad_logits.num_bytes)
    return (grad_logits,)


def chunk_tokens(vocab_size: int) -> int:
    """Tokens per chunk: the largest power of two whose logits stay within ``CHUNK_ELEMENTS``, at least 16."""
    return max(16, 2 ** (CHUNK_ELEMENTS // vocab_size).bit_length() // 2)


def chunked_loss(hidden: Tensor, head: Linear) -> Tensor:
    """Loss and gradients in one pass over chunks of tokens; only the gradients are kept until backward.

    Per chunk: logits in the model's type, their float32 copy turned into probabilities and gradient in place, the
    gradient cast back for the two products. Kept: the gradient of ``hidden`` and, where the head is trained, of its
    weight, both in the model's type.
    """
    tape = hidden.tape
    tape.fetch(head)
    vocab_size, width = head.weight.shape
    dtype = tape.autocast or hidden.dtype
    num_tokens = hidden.numel // width
    chunk = min(num_tokens, chunk_tokens(vocab_size))
    num_chunks = -(-num_tokens // chunk)
    with tape.charged_to(Kind.LOGITS):
        node = tape.node((hidden, head.weight, head.bias), _chunked_backward, meta=hidden.dtype)
        needs_hidden, needs_weight = hidden.requires_grad, head.weight.requires_grad
        weight = ops.cast_weight(head.weight, dtype, tape)
        grad_hidden = tape.tensor(hidden.shape, hidden.dtype) if needs_hidden else None
        grad_weight = tape.gradient(head.weight.shape, head.weight.dtype) if needs_weight else None
        _run_chunk(tape, (chunk, vocab_size), dtype)
        del weight
        flops = 2 * num_tokens * vocab_size * width
        hbm_bytes = (num_chunks * vocab_size * width + num_tokens * (vocab_size + width)) * dtype.num_bytes
        for _ in range(1 + needs_hidden + needs_weight):
            tape.matmul(flops, hbm_bytes)
        tape.move(num_tokens * vocab_size * (2 * dtype.num_bytes + 6 * DType.FLOAT32.num_bytes))
        if node is not None:
            saved = [grad for grad in (grad_hidden, grad_weight) if grad is not None]
            tape.save(node, *saved)
        loss = tape.tensor((), DType.FLOAT32, node)
    tape.release(head)
    return loss


def _run_chunk(tape: Tape, shape: tuple[int, int], dtype: DType) -> None:
    """The vocabulary-wide tensors of one chunk: at most twice float32 at a time."""
    logits = tape.tensor(shape, dtype)
    probabilities = tape.tensor(shape, DType.FLOAT32)
    del logits
    exponentials = tape.tensor(shape, DType.FLOAT32)  # inside torch.logsumexp
    del exponentials
    grad_logits = tape.tensor(shape, dtype)  # the probabilities became their own gradient in place
    del probabilities, grad_logits


def _chunked_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    kept = [grad for grad in node.saved if isinstance(grad, Tensor)]
    node.saved = ()
    results: list[Tensor | None] = []
    for needed in node.needs[:2]:
        results.append(kept.pop(0) if needed else None)
    results.append(results[1].tape.tensor((1,), DType.FLOAT32) if node.needs[2] and results[1] is not None else None)
    return results
