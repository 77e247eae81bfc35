"""What transformers' eager attention has at once while it makes weights of scores."""

import pytest

from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend, Scores
from vlmplan.architecture.attention_kernels import eager_attention, product
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.recipe.choices import LossKind
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


def test_the_gradient_of_a_result_is_copied_for_the_products_of_several_samples():
    """``transpose(1, 2).contiguous()`` gives it back token after token, of which samples and heads are no batch."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    moved = list[int]()
    for micro_batch in (1, 2):
        model = build_model({"model_type": "llama", **sizes, "intermediate_size": 96, "vocab_size": 100})
        for entry in model.parameters():
            entry.parameter.requires_grad = "embed_tokens" in entry.name
        backend, batch = AttentionBackend(implementation="eager"), Batch(micro_batch=micro_batch, num_tokens=TOKENS)
        trace = model.run(Tape(), batch, backend, loss=LossKind.FULL)
        (layer,) = (section for key, section in trace.sections.items() if key.startswith("layers."))
        moved.append(layer.backward_work.elementwise_bytes)
    result = 2 * TOKENS * 64 * DType.BFLOAT16.num_bytes
    assert moved[1] == 2 * moved[0] + 2 * result
