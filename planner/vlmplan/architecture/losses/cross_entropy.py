"""The output head and the loss: where the vocabulary-wide tensors live.

``full`` is the plain Hugging Face path (``ForCausalLMLoss``): 16-bit logits, a float32 copy, its log-softmax, and in
backward two float32 gradients and their 16-bit cast. The logits are in the model's outputs, which a training loop
(``outputs = model(**batch)``) holds through backward: 2 bytes x tokens x vocabulary. The bundled trainer does the same
(``LossModule``).

``model`` is the same in the model's own forward, where its last hidden states are alive too; the logits go when
``Trainer.compute_loss`` returns the loss alone (transformers 5.23, ``trainer.py``). accelerate's float32 copy of the
outputs under autocast (``convert_outputs_to_fp32``) comes when the loss's own has gone, so the peak stays.

``chunked`` computes loss and gradients chunk by chunk in the forward, so that no more than one chunk of logits exists
(the trainer's ``losses/cross_entropy.py``).
"""

from collections.abc import Sequence
from typing import Any

from vlmplan.architecture import ops
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.recipe.choices import chunk_tokens
from vlmplan.units import DType

PIECES_PER_CHUNK = 8
"""The trainer's softmax runs over one of them at a time (``vlmplan_trainer.losses.cross_entropy.PIECES_PER_CHUNK``)."""
KERNELS_PER_PIECE = 13
"""Operations of the trainer's ``_Run._add_losses``, of which few are as wide as the logits."""

KERNELS_PER_SLICE = 2
"""Beside the product: zeros that it starts from, and the sum (``_Run._add_weight_gradient``)."""


def whole_logits(
    hidden: Tensor,
    head: Any,
    *,
    caps: bool = False,
    scales: bool = False,
    widens: bool = False,
    adds: DType | None = None,
) -> Tensor:
    """The logits of all tokens, capped (Gemma 2), scaled (Granite), with a constant of type ``adds`` added (BART) or
    cast to float32 (Mamba-2) where the model does that."""
    with hidden.tape.charged_to(Kind.LOGITS):
        logits = head(hidden)
        if scales:
            logits = ops.scale(logits)
        if caps:
            for change in (ops.scale, ops.tanh, ops.scale):
                logits = change(logits)  # each goes when the next one is there, unless it was saved
        if adds is not None:
            logits = ops.add(logits, _constant_row(head, adds))
        return ops.to(logits, DType.FLOAT32) if widens else logits


def _constant_row(head: Any, dtype: DType) -> Parameter:
    """A buffer of the model."""
    row = Parameter(head.weight.shape[0])
    row.requires_grad, row.dtype = False, dtype
    return row


def full_loss(logits: Tensor, *, widens: bool = True) -> Tensor:
    """The loss of all tokens at once, made of logits that the model has returned, or in their own type where that is
    not ``widens``. Then autocast casts what ``nll_loss`` gets, and not what ``log_softmax`` does, which
    ``cross_entropy_loss`` tells the type of its result (``fp32_set_opt_dtype`` in torch 2.13
    ``aten/src/ATen/autocast_mode.h``): both results stay for backward."""
    with logits.tape.charged_to(Kind.LOGITS):
        log_probabilities = log_softmax(ops.to(logits, DType.FLOAT32) if widens else logits)
        is_cast = logits.tape.autocast is not None
        return nll_loss(ops.to(log_probabilities, DType.FLOAT32) if is_cast else log_probabilities)


def log_softmax(logits: Tensor) -> Tensor:
    """It saves its result."""
    tape = logits.tape
    node = tape.node((logits,), whole_gradient, meta=(logits.shape, logits.dtype, 3))
    out = tape.tensor(logits.shape, logits.dtype, node)
    tape.move(2 * logits.num_bytes)
    tape.save(node, out)
    return out


def nll_loss(log_probabilities: Tensor) -> Tensor:
    """It saves what it is given."""
    tape, dtype = log_probabilities.tape, log_probabilities.dtype
    node = tape.node((log_probabilities,), whole_gradient, meta=(log_probabilities.shape, dtype, 1))
    tape.save(node, log_probabilities)
    return tape.tensor((), dtype, node)


def whole_gradient(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """One as large as the logits, made by reading and writing so many of its size."""
    tape = ops.only(grads).tape
    shape, dtype, num_passes = node.meta
    with tape.charged_to(Kind.LOGITS):
        gradient = tape.tensor(shape, dtype)
        tape.move(num_passes * gradient.num_bytes)
    return (gradient,)


def _dropped(hidden: Tensor, head: Any) -> Tensor:
    """What the head's adapter works on."""
    return ops.dropout(ops.to(hidden, head.lora_A.weight.dtype), head.dropout)


def chunked_loss(hidden: Tensor, head: Any, *, adds: DType | None = None) -> Tensor:
    """Loss and gradients in one pass over chunks of tokens; only the gradients are kept until backward.

    Per chunk: logits in the model's type, their float32 copy turned into probabilities and gradient in place, the
    gradient cast back for the products. Kept: the gradient of ``hidden`` and, where the head is trained, of its
    weight, both in the types of what they belong to. Of a head with a LoRA adapter the thin product is computed whole,
    as usual, and the wide one is a second summand of each chunk. Of a ``TrainedCopy`` the copy itself is called, as the
    trainer's loss does, so ZeRO-3 gathers the copy's weight. What is added to the logits, a constant of type ``adds``
    or a bias, is cast once for all chunks.
    """
    tape = hidden.tape
    head = getattr(head, "modules_to_save", head)
    summands: list[tuple[Tensor, Linear]] = [(hidden, head)]
    if hasattr(head, "lora_A"):
        thin: Linear = head.lora_A
        summands = [(hidden, head.base_layer), (ops.scale(thin(_dropped(hidden, head))), head.lora_B)]
    for _, layer in summands:
        tape.fetch(layer)
    first = summands[0][1]
    vocab_size, dtype = first.weight.shape[0], tape.autocast or hidden.dtype
    num_tokens = hidden.numel // hidden.shape[-1]
    chunk = min(num_tokens, chunk_tokens(vocab_size))
    with tape.charged_to(Kind.LOGITS):
        operands = [operand for x, layer in summands for operand in (x, layer.weight)]
        node = tape.node((*operands, first.bias), _chunked_backward)
        if node is not None:
            node.module = summands[-1][1]  # ZeRO-3 fetches what was called for the backward too, which does not use it
            node.gives_last_first = node.needs[-1]  # the trainer's function is given the bias first
        weights = [ops.cast_weight(layer.weight, dtype, tape) for _, layer in summands]
        added = adds or (None if first.bias is None else first.bias.dtype)
        row = None if added in (None, dtype) else tape.tensor((vocab_size,), dtype)
        kept: list[Tensor] = []
        for x, layer in summands:
            kept += [tape.tensor(x.shape, x.dtype)] if x.requires_grad else []
            weight = layer.weight
            kept += [tape.gradient(weight.shape, weight.dtype)] if _is_trained(tape, weight) else []
        if first.bias is not None and _is_trained(tape, first.bias):
            kept.append(tape.gradient(first.bias.shape, first.bias.dtype))
        _run_chunk(tape, [(x, layer.weight) for x, layer in summands], chunk, dtype)
        del weights, row
        _count_work(tape, summands, num_tokens, chunk, dtype)
        if node is not None:
            tape.save(node, *kept)
        del kept
        loss = tape.tensor((), DType.FLOAT32, node)
    for _, layer in summands:
        tape.release(layer)
    return loss


def _count_work(
    tape: ForwardTape, summands: Sequence[tuple[Tensor, Linear]], num_tokens: int, chunk: int, dtype: DType
) -> None:
    """What all chunks compute and move."""
    vocab_size, num_chunks = summands[0][1].weight.shape[0], -(-num_tokens // chunk)
    for x, layer in summands:
        is_trained = _is_trained(tape, layer.weight)
        count_products(tape, layer.weight, num_tokens, chunk, dtype, 1 + x.requires_grad + is_trained)
        if is_trained:
            _count_gradient_sums(tape, layer.weight, num_chunks, chunk, dtype)
        if x.dtype is not dtype:
            tape.move(x.numel * (x.dtype.num_bytes + dtype.num_bytes), num_chunks)
    num_kernels = num_chunks * PIECES_PER_CHUNK * KERNELS_PER_PIECE
    tape.move(num_tokens * vocab_size * _bytes_per_logit(dtype), num_kernels)


def _is_trained(tape: ForwardTape, weight: Parameter) -> bool:
    """Whether this pass makes a gradient of it."""
    return weight.requires_grad and not tape.is_evaluating


def count_products(tape: ForwardTape, weight: Parameter, num_tokens: int, chunk: int, dtype: DType, count: int) -> None:
    """The products of one summand, chunk by chunk, the last smaller: forward, and the gradients that are needed."""
    vocab_size, width = weight.shape
    full, rest = divmod(num_tokens, chunk)
    for rows, num_chunks in ((chunk, full), (rest, 1)):
        if rows and num_chunks:
            hbm_bytes = (vocab_size * width + rows * (vocab_size + width)) * dtype.num_bytes
            tape.matmul(2 * rows * vocab_size * width, hbm_bytes, dtype, count * num_chunks)


def _count_gradient_sums(tape: ForwardTape, weight: Parameter, num_chunks: int, chunk: int, dtype: DType) -> None:
    """Adding each chunk's part to the head's gradient (``_Run._add_weight_gradient`` of the trainer).

    The product reads a gradient of its own type. To one of another type a product is added, slice by slice: the slice
    is read, the gradient read and written.
    """
    if weight.dtype is dtype:
        tape.move(num_chunks * weight.numel * dtype.num_bytes, 0)
        return
    vocab_size, width = weight.shape
    slices = -(-vocab_size // max(1, chunk * vocab_size // width))
    moved = dtype.num_bytes + 2 * weight.dtype.num_bytes
    tape.move(num_chunks * weight.numel * moved, num_chunks * slices * KERNELS_PER_SLICE)


def _bytes_per_logit(dtype: DType) -> int:
    """Read and written by the trainer's ``_Run.add`` beside the products.

    The cast to float32 and that of the gradient back; the logarithm of the sum of exponentials, in which torch finds
    the largest, writes the differences to it, their exponentials in place, and adds them up; then four in place: minus
    that logarithm, exponential, times the mask, times the slope.
    """
    wide = DType.FLOAT32.num_bytes
    casts = 0 if dtype is DType.FLOAT32 else 2 * (dtype.num_bytes + wide)
    log_sum = wide + (wide + wide) + (wide + wide) + wide
    return casts + log_sum + 4 * (wide + wide)


def _run_chunk(tape: ForwardTape, summands: Sequence[tuple[Tensor, Parameter]], num_rows: int, dtype: DType) -> None:
    """The tensors of one chunk of ``num_rows`` tokens (``_Run.add`` of the trainer).

    Vocabulary-wide, in bytes a logit: 2 + 4 as 16-bit logits become float32 and again as the gradient becomes 16-bit,
    and 4 + 4/8 in between, since softmax runs over an eighth of the chunk at a time. In float32 nothing is cast: 4.5.
    """
    vocab_size = summands[0][1].shape[0]
    casts = [tape.tensor((num_rows, x.shape[-1]), dtype) for x, _ in summands if x.dtype is not dtype]
    logits = _cast(tape.tensor((num_rows, vocab_size), dtype), DType.FLOAT32)
    exponentials = tape.tensor((-(-num_rows // PIECES_PER_CHUNK), vocab_size), DType.FLOAT32)  # torch.logsumexp's
    del exponentials
    if not any(x.requires_grad or _is_trained(tape, weight) for x, weight in summands):
        return
    grad_logits = _cast(logits, dtype)  # the logits became probabilities and then their own gradient in place
    del logits
    for x, weight in summands:
        if x.requires_grad:
            _hold(tape.tensor((num_rows, x.shape[-1]), dtype))
        if _is_trained(tape, weight) and weight.dtype is not dtype:
            # The product is added to a gradient of another type, in slices no larger than the chunk.
            width = weight.shape[1]
            _hold(tape.tensor((min(vocab_size, max(1, grad_logits.numel // width)), width), dtype))
    del grad_logits, casts


def _cast(x: Tensor, dtype: DType) -> Tensor:
    """``x.to(dtype)`` outside the graph: itself, or a copy beside it."""
    return x if x.dtype is dtype else x.tape.tensor(x.shape, dtype)


def _hold(x: Tensor) -> None:
    """``x`` lives for the moment of this call."""


def _chunked_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    kept = [grad for grad in node.saved if isinstance(grad, Tensor)]
    node.saved = ()
    return [kept.pop(0) if needed else None for needed in node.needs]
