"""TRL's fused output head: log-probabilities of the labels in tiles, computed again for the gradients in backward.

Source: TRL 1.16.0, ``trl/kernels/chunked_logprob.py`` (``ChunkedLogProbFunction``) and ``add_fused_lm_head`` in
``trl/trainer/utils.py``, with the Triton kernels that run on CUDA. Only tokens with a label are scored; where nobody
says how many they are, a plan counts all but the first of each sample. In bytes, with N of them, hidden size H and
vocabulary V:

- forward: a tile of min(N, 4,096) x 32,768 logits in 16 bit, whatever the vocabulary, and the rows of hidden states in
  a copy that stays for backward;
- backward: the tile again, of a cast head with the cast of the next tile's words, float32 gradients of those rows (4NH)
  and of a trained head (4VH), and their casts.
"""

from collections.abc import Sequence
from typing import Final

from vlmplan.architecture.ops import Grads, only
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.read_weights import ReadHead
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType

TILE_TOKENS: Final = 4096
"""``TOKEN_CHUNK_SIZE``."""
TILE_COLUMNS: Final = 32768
"""``_CHUNKED_LOGPROB_CHUNK_SIZE``: what the tile is wide, also where the vocabulary is smaller."""
INDEX_BYTES: Final = 2 * DType.INT64.num_bytes
"""What selecting by a mask of (sample, token) keeps of each place."""
STATISTICS: Final = 7
"""Running values of each token: the largest logit, sums, that of the label (``running_max`` to ``target_logit``)."""


def fused_loss(hidden: Tensor, model: ReadHead, *, scored_tokens: int | None = None) -> Tensor:
    """The loss of ``scored_tokens`` of each sample, or of every token but the first. ``hidden``: (samples, tokens,
    width) of the last norm, whose head the ``model`` reads.

    The weight is read as it lies in the module, so adapters on the head do not take part.
    """
    tape, head = hidden.tape, model.head
    dtype = tape.autocast or hidden.dtype
    with tape.charged_to(Kind.LOGITS):
        rows = scored_rows(hidden, hidden.shape[1] - 1 if scored_tokens is None else scored_tokens)
        node = tape.node((rows, head.weight), _fused_backward, meta=(rows.shape, rows.dtype, head.weight, dtype))
        if node is not None:
            node.module = model
        num_rows = rows.shape[0]
        statistics = [tape.tensor((num_rows,), DType.FLOAT32) for _ in range(STATISTICS)]
        _run_tiles(tape, rows, head.weight, dtype)
        _count_product(tape, head.weight, num_rows, dtype)
        kept = [tape.tensor((num_rows,), DType.FLOAT32) for _ in range(2)]  # log_z, and the entropy for the metrics
        tape.save(node, rows, *kept)
        del statistics, kept
        loss = tape.tensor((), DType.FLOAT32, node)
    tape.release(model)
    return loss


def scored_rows(hidden: Tensor, scored_tokens: int) -> Tensor:
    """``hidden[:, :-1][mask]``: a copy. Its gradient is written into zeros of the slice, those into zeros of all."""
    samples, tokens, width = hidden.shape
    tape = hidden.tape
    shape = samples, tokens - 1, width
    sliced = Tensor(hidden.storage, shape, hidden.dtype, tape.node((hidden,), _put_backward, meta=hidden.shape))
    node = tape.node((sliced,), _put_backward, meta=shape)
    tape.save(node, tape.tensor((samples * scored_tokens, INDEX_BYTES), DType.UINT8))
    return tape.tensor((samples * scored_tokens, width), hidden.dtype, node)


def _put_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(g.num_bytes + out.num_bytes)
    return (out,)


def _run_tiles(tape: ForwardTape, rows: Tensor, weight: Parameter, dtype: DType) -> list[Tensor]:
    """The tensors of a tile at their most: its logits, and the casts of what is multiplied."""
    num_rows, width = min(rows.shape[0], TILE_TOKENS), rows.shape[1]
    held = [tape.tensor((num_rows, TILE_COLUMNS), dtype)]
    if rows.dtype is not dtype:
        held.append(tape.tensor((num_rows, width), dtype))
    if weight.dtype is not dtype:
        held.append(tape.tensor((min(weight.shape[0], TILE_COLUMNS), width), dtype))
    num_tiles = -(-rows.shape[0] // TILE_TOKENS) * -(-weight.shape[0] // TILE_COLUMNS)
    tape.move(rows.shape[0] * weight.shape[0] * dtype.num_bytes, num_tiles)  # the kernel reads each logit once
    return held


def _columns_of_second_tile(vocab_size: int, num_rows: int) -> int:
    """Words of the tile behind the first one; that of the next rows is the first again, where all words are in one."""
    if vocab_size > TILE_COLUMNS:
        return min(vocab_size - TILE_COLUMNS, TILE_COLUMNS)
    return vocab_size if num_rows > TILE_TOKENS else 0


def _count_product(tape: ForwardTape, weight: Parameter, num_rows: int, dtype: DType) -> None:
    vocab_size, width = weight.shape
    num_bytes = (vocab_size * width + num_rows * (vocab_size + width)) * dtype.num_bytes
    tape.matmul(2 * num_rows * vocab_size * width, num_bytes, dtype)


def _fused_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Logits once more, their gradient in their place, and products that are added up in float32."""
    g = only(grads)
    shape, row_dtype, weight, dtype = node.meta
    tape = g.tape
    needs_rows, needs_weight = node.needs
    with tape.charged_to(Kind.LOGITS):
        rows = next(one for one in node.saved if isinstance(one, Tensor) and one.shape == shape)
        grad_rows = tape.tensor(shape, DType.FLOAT32) if needs_rows else None
        grad_weight = tape.gradient(weight.shape, DType.FLOAT32) if needs_weight else None
        tile = _run_tiles(tape, rows, weight, dtype)
        if weight.dtype is not dtype:  # ``w_chunk`` has its name until the next one is made
            tape.tensor((_columns_of_second_tile(weight.shape[0], shape[0]), shape[1]), dtype)
        for _ in range(1 + needs_rows + needs_weight):
            _count_product(tape, weight, shape[0], dtype)
        if grad_rows is not None and row_dtype is not DType.FLOAT32:
            grad_rows, wide_rows = tape.tensor(shape, row_dtype), grad_rows
            tile.append(wide_rows)
        if grad_weight is not None and weight.dtype is not DType.FLOAT32:
            grad_weight, wide_weight = tape.gradient(weight.shape, weight.dtype), grad_weight
            tile.append(wide_weight)
    return (grad_rows, grad_weight)
