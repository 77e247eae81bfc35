"""Unsloth's log-probabilities of GRPO: logits of the answers in chunks, all of which stay until backward.

In bytes, with T scored tokens in all rows and V of the vocabulary: 2TV of logits in 16 bits, chunk after chunk, saved;
in backward 4cV for the c tokens of a chunk, into which the gradient of its labels is scattered, and 2TH for that of the
hidden states, while each chunk's gradient is written over its logits, which then go.

Source: ``chunked_hidden_states_selective_log_softmax`` in ``unsloth_zoo/rl_replacements.py`` of unsloth_zoo 2026.8.13
(github:unslothai/unsloth-zoo @ ce232d6cef9c), and the code that torch 2.13's inductor makes of it, which
``torch.compile`` takes whole: products are not computed twice.

Rows without images are packed (``UNSLOTH_GRPO_SEQ_PACKING``), and the first ones that are so long are looked up once
more, each row by itself and all of its logits at once, beside what is saved (``grpo_accumulated_loss``).
"""

from collections.abc import Sequence
from typing import Final

from vlmplan.architecture.fused_head import scored_rows
from vlmplan.architecture.loss import count_products
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

LEAST_CHUNKS: Final = 4
TOKENS_OF_CHUNK: Final = 4096
"""``autotune_batch_and_chunks``: chunks for each row, ``max(4, seq_len // 4096)``."""
LEAST_PACKED: Final = 2
"""Rows, as fewer prove nothing of packing."""
PASSES_FORWARD, PASSES_BACKWARD = 2, 3
"""Times that each logit is read or written beside the products, in float32's 4 bytes at most."""


def unsloth_loss(hidden: Tensor, model: ReadHead, *, scored_tokens: int, packs: bool) -> Tensor:
    """The loss of ``scored_tokens`` of each sample. ``hidden``: (samples, tokens, width) of the last norm, whose head
    the ``model`` reads as it lies in the module. ``packs``: samples have no images."""
    tape, weight = hidden.tape, model.head.weight
    samples, tokens, _ = hidden.shape
    with tape.charged_to(Kind.LOGITS):
        rows = scored_rows(hidden, scored_tokens)
        dtype = tape.autocast or hidden.dtype
        sizes = chunk_sizes(rows.shape[0], samples * max(LEAST_CHUNKS, tokens // TOKENS_OF_CHUNK))
        node = tape.node((rows, weight), _unsloth_backward, meta=(rows.shape, rows.dtype, sizes, weight))
        _look_up(rows, weight, sizes, dtype, node)
        if packs and samples >= LEAST_PACKED:
            alone = tape.tensor((tokens - 1, weight.shape[0]), dtype)
            count_products(tape, weight, tokens - 1, tokens - 1, dtype, 1)
            tape.move(PASSES_FORWARD * alone.num_bytes)
            del alone
        loss = tape.tensor((), DType.FLOAT32, node)
    tape.release(model)
    return loss


def chunk_sizes(num_rows: int, num_chunks: int) -> tuple[int, int]:
    """Rows of a chunk, and of the last one (``torch.chunk``).

    >>> chunk_sizes(103, 4), chunk_sizes(5, 8)
    ((26, 25), (1, 1))
    """
    size = -(-num_rows // num_chunks)
    return size, num_rows - (-(-num_rows // size) - 1) * size


def _look_up(rows: Tensor, weight: Parameter, sizes: tuple[int, int], dtype: DType, node: GraphNode | None) -> None:
    """All logits, where they are saved, or those of a chunk; and the logarithm of the sum of each token's."""
    tape, (num_rows, _), vocab_size = rows.tape, rows.shape, weight.shape[0]
    size, last = sizes
    sums = tape.tensor((num_rows,), DType.FLOAT32)
    if node is None:
        chunk = tape.tensor((size, vocab_size), dtype)
        del chunk
    else:
        tape.save(node, *(tape.tensor((count, vocab_size), dtype) for count in (num_rows - last, last)), sums)
    count_products(tape, weight, num_rows, size, dtype, 1)
    tape.move(PASSES_FORWARD * num_rows * vocab_size * dtype.num_bytes, PASSES_FORWARD * -(-num_rows // size))


def _unsloth_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The last chunk first, whose logits go before the others begin."""
    shape, dtype, (size, last), weight = node.meta
    others, end, sums = (one for one in node.saved if isinstance(one, Tensor))
    node.saved = ()
    tape, vocab_size = others.tape, weight.shape[0]
    with tape.charged_to(Kind.LOGITS):
        scattered = tape.tensor((last, vocab_size), DType.FLOAT32)
        del scattered
        gradient = tape.tensor(shape, dtype)
        del end
        if others.shape[0]:
            scattered = tape.tensor((size, vocab_size), DType.FLOAT32)
            del scattered
        count_products(tape, weight, shape[0], size, others.dtype, 1)
        num_bytes = shape[0] * vocab_size * DType.FLOAT32.num_bytes
        tape.move(PASSES_BACKWARD * num_bytes, PASSES_BACKWARD * -(-shape[0] // size))
    del others, sums
    return (gradient, None)
