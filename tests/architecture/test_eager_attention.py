"""What transformers' eager attention has at once while it makes weights of scores."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import Scores
from vlmplan.architecture.attention_kernels import eager_attention, product
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.units import DType

HEADS, TOKENS, WIDTH = 2, 64, 4
SCORES = HEADS * TOKENS * TOKENS


def peak_per_score(dtype: DType, rules: Scores) -> float:
    """Bytes for each score at the most, where no backward follows and all else is small."""
    tape = Tape()
    with tape.section("attention"):
        q, k, v = (tape.tensor((1, HEADS, TOKENS, WIDTH), dtype) for _ in range(3))
        out = eager_attention(q, k, v, mask=None, is_masked=False, rules=rules, num_kv_heads=HEADS)
        tape.layer_locals.clear()
        del out, q, k, v
    spans = [one for one in tape.trace().sections["attention"].forward if isinstance(one, Span)]
    return max(span.peak_bytes for span in spans) / SCORES


def test_scores_are_there_until_the_softmax_of_them_has_been_cast_to_their_type():
    """``attn_weights = softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)`` gives the name away last.
    The kernel casts float16 by itself, and of bfloat16 there is a cast before. Beside them the queries, keys and
    values, which take far less."""
    assert 2 + 4 + 2 <= peak_per_score(DType.FLOAT16, Scores()) < 2 + 4 + 2 + 0.5
    assert 2 + 4 + 4 <= peak_per_score(DType.BFLOAT16, Scores()) < 2 + 4 + 4 + 0.5
    assert 2 + 4 <= peak_per_score(DType.FLOAT16, Scores(casts_back=False)) < 2 + 4 + 0.5


def test_what_autocast_casts_for_a_product_is_there_beside_the_copies_until_it_returns():
    """Heads of two samples that lie apart are copied, of casts that are arguments of the same call."""
    tape = Tape(autocast=DType.BFLOAT16)
    shape = (2, HEADS, TOKENS, WIDTH)
    with tape.section("attention"):
        x, y = (tape.tensor(shape, DType.FLOAT32) for _ in range(2))
        out = product(x, y, (2, HEADS, TOKENS, TOKENS), WIDTH, copies=(False, True))
        del out, x, y
    spans = [one for one in tape.trace().sections["attention"].forward if isinstance(one, Span)]
    numel = 2 * HEADS * TOKENS * WIDTH
    scores = 2 * SCORES * DType.BFLOAT16.num_bytes
    assert max(span.peak_bytes for span in spans) == numel * (4 + 4 + 2 + 2 + 2) + scores


@pytest.mark.parametrize("is_joined", [False, True])
def test_heads_that_were_put_together_of_parts_are_not_copied_for_products_of_several_samples(is_joined: bool):
    """``torch.cat`` of the rotated part of each head and the rest lies head after head; values do not."""
    few, wide, half = 2, 1024, 512
    tape = Tape()
    with tape.section("attention"):
        q, k, v = (tape.tensor((2, HEADS, few, wide), DType.BFLOAT16) for _ in range(3))
        if is_joined:
            parts = tape.tensor((2, HEADS, few, half), DType.BFLOAT16)
            q, k = (ops.concatenate([parts, parts], q.shape) for _ in range(2))
            del parts
        out = eager_attention(q, k, v, mask=None, is_masked=False, rules=Scores(), num_kv_heads=HEADS)
        tape.layer_locals.clear()
        del out, q, k, v
    moved = tape.trace().sections["attention"].forward_work.elementwise_bytes
    whole, joined = 2 * HEADS * few * wide * DType.BFLOAT16.num_bytes, 2 if is_joined else 0
    copies = 4 - joined  # queries, keys, values and what is returned
    assert 2 * whole * (copies + joined) <= moved < 2 * whole * (copies + joined) + whole / 2
