"""Unsloth's log-probabilities of GRPO: the gradient of hidden states is made with them, a chunk of logits at a time.

In bytes, with T scored tokens in all rows, H wide, and V words: 2TH of that gradient, which stays until backward scales
it into another 2TH (float32 of hidden states in fp16, 4TH); while the loss is made a chunk of c tokens beside it: 4cV
of logits in float32, over which their gradient is written, and 4cH of what that is multiplied to. From 4,096 tokens and
more than 32,768 words on the chunk is 4,096 tokens by 16,384 words: 256 MiB and 4 x 4,096 x H, whatever the vocabulary.

Source: ``fused_linear_logprobs`` of a frozen head in ``unsloth_zoo/fused_losses/fused_linear.py`` of unsloth_zoo
2026.10.9, as it runs with Triton on GPUs that multiply 16 bits to float32 (bf16 from compute capability 8.0 on), and
``grpo_accumulated_loss`` in ``unsloth_zoo/rl_replacements.py``. Cards of up to 24.5 GiB take the narrow chunk of fewer
tokens too, which is less than is planned (``_flash_min_rows_auto``); where less than 4 GiB are free, chunks are smaller
(``_budget_bytes``). Up to unsloth_zoo 2026.10.8 all 2TV of logits stayed until backward.

Rows without images are packed (``UNSLOTH_GRPO_SEQ_PACKING``), and the first ones that are so long are looked up once
more, each row by itself, beside what is saved.
"""

from collections.abc import Sequence
from typing import Final

from vlmplan.architecture.losses.cross_entropy import count_products
from vlmplan.architecture.losses.fused_head import scored_rows
from vlmplan.architecture.ops import Grads, only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

LOGITS: Final = DType.FLOAT32
"""``_logits_mode``: products of 16-bit operands with results in float32."""
MOST_ROWS: Final = 4096
"""``_MAX_ROWS``, ``_BWD_ROWS`` and ``_flash_min_rows_auto``."""
COLUMNS: Final = 16384
"""``_SPLIT_COLS``: of the narrow chunk, and of a part of the vocabulary that has statistics of its own."""
LEAST_ROWS: Final = 512
LEAST_LOGITS: Final = LEAST_ROWS * 151_936
"""``_MIN_LOGITS`` of a chunk, with no fewer than so many rows."""
MOST_BYTES: Final = 2 * 1024**3
"""``_CHUNK_GB``: of a chunk's logits."""
ALIGNED: Final = 8
"""``_Buffers``: words of a chunk are a multiple of this."""
STATISTICS: Final = 8
"""Of a row in each part of the vocabulary (``part`` in ``_tiled_forward``)."""
LEAST_PACKED: Final = 2
"""Rows, as fewer prove nothing of packing."""
MOVED, MOVED_WITH_GRADIENT = 2 + 4, 2 + 4 + 4 + 2
"""Bytes for each logit: float32 is written where a product in 16 bits is counted, and read for the statistics; then it
is read again and the gradient written in 16 bits."""
KERNELS, KERNELS_OF_GRADIENT = 2, 1


def unsloth_loss(hidden: Tensor, model: ReadHead, *, scored_tokens: int, packs: bool) -> Tensor:
    """The loss of ``scored_tokens`` of each sample. ``hidden``: (samples, tokens, width) of the last norm, whose head
    the ``model`` reads as it lies in the module. ``packs``: samples have no images."""
    tape, weight = hidden.tape, model.head.weight
    samples, tokens, width = hidden.shape
    with tape.charged_to(Kind.LOGITS):
        rows = scored_rows(hidden, scored_tokens)
        dtype = tape.autocast or hidden.dtype
        node = tape.node((rows, weight), _unsloth_backward, meta=(rows.shape, rows.dtype))
        _look_up(rows, weight, dtype, node)
        if packs and samples >= LEAST_PACKED:
            chunk = chunk_shape(tokens - 1, width, weight.shape[0])
            alone = tape.tensor(chunk, LOGITS)
            del alone
        loss = tape.tensor((), DType.FLOAT32, node)
    tape.release(model)
    return loss


def chunk_shape(num_rows: int, width: int, vocab_size: int) -> tuple[int, int]:
    """Rows and words of a chunk of logits (``_tiled_layout``, ``fused_linear_rows``).

    >>> chunk_shape(1551, 64, 5003), chunk_shape(2048, 4096, 128256), chunk_shape(8192, 4096, 32000)
    ((1551, 5008), (512, 128256), (2048, 32000))
    >>> chunk_shape(8192, 4096, 128256)
    (4096, 16384)
    """
    if num_rows >= MOST_ROWS and vocab_size > 2 * COLUMNS:
        return MOST_ROWS, COLUMNS
    least = min(max(_power_below(LEAST_LOGITS // vocab_size), LEAST_ROWS), MOST_ROWS)
    rows = min(max(_power_below(num_rows * width // vocab_size), least), MOST_ROWS)
    rows = min(rows, max(MOST_BYTES // (vocab_size * LOGITS.num_bytes), 2))
    return min(rows, num_rows), -(-vocab_size // ALIGNED) * ALIGNED


def _power_below(number: int) -> int:
    return 1 << number.bit_length() - 1 if number else 0


def _look_up(rows: Tensor, weight: Parameter, dtype: DType, node: GraphNode | None) -> None:
    """The gradient of ``rows`` before it is scaled, if one is asked for, and a chunk of logits after another."""
    tape, (num_rows, width), vocab_size = rows.tape, rows.shape, weight.shape[0]
    chunk_rows, columns = chunk_shape(num_rows, width, vocab_size)
    places = tape.tensor((num_rows,), DType.INT64)
    statistics = [tape.tensor((num_rows,), DType.FLOAT32) for _ in range(2)]  # logps, lse
    if node is not None:
        tape.save(node, tape.tensor(rows.shape, DType.FLOAT32 if rows.dtype is DType.FLOAT16 else rows.dtype))
    held = [tape.tensor((chunk_rows, columns), LOGITS), *_casts(tape, rows, weight, dtype, chunk_rows)]
    held.append(tape.tensor((STATISTICS, -(-vocab_size // COLUMNS), chunk_rows), DType.FLOAT32))
    if node is not None:
        held.append(tape.tensor((chunk_rows, width), DType.FLOAT32))
    count_products(tape, weight, num_rows, chunk_rows, dtype, 1 if node is None else 2)
    num_chunks = -(-num_rows // chunk_rows) * -(-vocab_size // columns)
    num_bytes, num_kernels = (MOVED, KERNELS) if node is None else (MOVED_WITH_GRADIENT, KERNELS + KERNELS_OF_GRADIENT)
    tape.move(num_bytes * num_rows * vocab_size, num_kernels * num_chunks)
    del held, places, statistics


def _casts(tape: ForwardTape, rows: Tensor, weight: Parameter, dtype: DType, chunk_rows: int) -> list[Tensor]:
    """Of what is multiplied: the whole head, and the rows of a chunk."""
    casts = [] if weight.dtype is dtype else [tape.tensor(weight.shape, dtype)]
    return casts if rows.dtype is dtype else [*casts, tape.tensor((chunk_rows, rows.shape[1]), dtype)]


def _unsloth_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """``fused_linear_scale_rows``: the saved gradient times that of each log-probability."""
    shape, dtype = node.meta
    tape = only(grads).tape
    (saved,) = (one for one in node.saved if isinstance(one, Tensor))
    with tape.charged_to(Kind.LOGITS):
        gradient = tape.tensor(shape, dtype)
        tape.move(saved.num_bytes + gradient.num_bytes)
    return (gradient, None)
