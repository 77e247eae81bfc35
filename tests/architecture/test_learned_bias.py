"""Attention with a learned bias, as the towers of Segment Anything have it: by height and width of each patch."""

import pytest

from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.units import DType

BATCH, HEADS, TOKENS, WIDTH = 2, 3, 14 * 14, 64
ROWS = BATCH * HEADS * TOKENS


class Sizes(LoggingTape):
    """Keeps the bytes of every storage."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def log_allocation(self, num_bytes: int) -> int:
        self.sizes.append(num_bytes)
        return super().log_allocation(num_bytes)


def made_in_backward(*, bias_shape: tuple[int, ...] | None, learns: bool = True) -> list[int]:
    """Sizes of what the backward of one call makes, the gradient of its result left out."""
    tape = Sizes()
    with tape.section("attention"):
        q, k, v = (tape.leaf(tape.tensor((BATCH, HEADS, TOKENS, WIDTH), DType.BFLOAT16)) for _ in "qkv")
        bias = None if bias_shape is None else tape.tensor(bias_shape, DType.BFLOAT16)
        if bias is not None and learns:
            bias = tape.leaf(bias)
        out = attend(AttentionBackend(), q, k, v, is_causal=False, mask=bias)
    before = len(tape.sizes)
    tape.run_backward(out)
    return sorted(tape.sizes[before + 1 :])


PLAIN = [2 * ROWS * WIDTH] * 3 + [4 * ROWS, BATCH * HEADS * 4 * (16 + 4 * 64 * 64)]
"""dq, dk and dv; a sum of each row, and dq in float32: 196 rows are 4 tiles of 64, each behind 16 bytes."""


@pytest.mark.parametrize(
    ("shape", "of_bias"),
    [
        ((BATCH, HEADS, TOKENS, TOKENS), [2 * ROWS * 208, 2 * ROWS * 200, 2 * ROWS * 196]),
        ((1, HEADS, TOKENS, TOKENS), [2 * ROWS * 208, *(2 * HEADS * TOKENS * keys for keys in (196, 200, 196))]),
        ((BATCH, HEADS, TOKENS, 192), [2 * ROWS * 192]),
    ],
    ids=["cut out of padded rows", "shared by all samples", "rows as the kernel takes them"],
)
def test_its_gradient_is_made_for_every_head_and_row(shape, of_bias):
    """In rows of a multiple of 16, of which those that were padded to a multiple of 8 are cut, and then the padding."""
    assert made_in_backward(bias_shape=shape) == sorted([*PLAIN, *of_bias])


def test_a_bias_that_is_not_learned_has_none():
    assert made_in_backward(bias_shape=(BATCH, HEADS, TOKENS, TOKENS), learns=False) == sorted(PLAIN)


def test_without_a_bias_the_flash_kernel_has_rows_in_multiples_of_128():
    rows = BATCH * HEADS * 256
    assert made_in_backward(bias_shape=None) == sorted([*[2 * ROWS * WIDTH] * 3, 4 * rows, 4 * rows * WIDTH])
