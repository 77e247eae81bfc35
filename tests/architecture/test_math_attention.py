"""torch's fallback for attention: what is there while its softmax runs."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.attention import attend
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.units import DType

HEADS, KV_HEADS, TOKENS, WIDTH = 6, 2, 35, 11
VOLTA = AttentionBackend(compute_capability=(7, 0))
SCORES = HEADS * TOKENS * TOKENS
ROWS = HEADS * TOKENS * WIDTH


class Live(LoggingTape):
    """The most bytes that were there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.most = 0

    def log_allocation(self, num_bytes: int) -> int:
        handle = super().log_allocation(num_bytes)
        self.sizes[handle] = num_bytes
        self.most = max(self.most, sum(self.sizes.values()))
        return handle

    def log_deallocation(self, handle: int) -> None:
        super().log_deallocation(handle)
        del self.sizes[handle]


def most_bytes(batch: int, dtype: DType, *, kv_heads: int = KV_HEADS, joins: bool = False) -> int:
    """Of a call beyond q, k and v; ``joins``: q comes out of ``torch.cat``, as where a part of each head is rotated."""
    tape = Live()
    with tape.section("attention"):
        q, k, v = (
            tape.leaf(tape.tensor((batch, heads, TOKENS, WIDTH), dtype)) for heads in (HEADS, kv_heads, kv_heads)
        )
        q = ops.concatenate([q], q.shape) if joins else q
        given = sum(tape.sizes.values())
        attend(VOLTA, q, k, v, is_causal=True)
    return tape.most - given


def of_softmax(batch: int) -> int:
    """Scores before and after, a byte of each, and the causal mask in float32."""
    return batch * SCORES * (4 + 4 + 1) + 4 * TOKENS * TOKENS


def test_products_of_several_samples_copy_heads_that_lie_apart():
    scaled = 4 * ROWS  # q, and in order k, v and scaled k
    assert most_bytes(1, DType.FLOAT32) == of_softmax(1) + 4 * scaled
    assert most_bytes(3, DType.FLOAT32) == of_softmax(3) + 3 * (4 + 1) * scaled
    assert most_bytes(3, DType.FLOAT32, joins=True) == of_softmax(3) + 3 * 4 * scaled


@pytest.mark.parametrize("kv_heads", [KV_HEADS, HEADS])
def test_what_is_cast_to_float32_stays_beside_what_is_made_of_it(kv_heads):
    wide = 4 * (HEADS + 2 * kv_heads) * TOKENS * WIDTH
    made = 4 * ROWS * (2 + (3 if kv_heads < HEADS else 1))  # q scaled and copied; k and v written out, and scaled k
    assert most_bytes(3, DType.BFLOAT16, kv_heads=kv_heads) == of_softmax(3) + 3 * (wide + made)
