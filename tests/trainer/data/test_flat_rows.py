"""Samples in one row: what a model makes of it is what it makes of the samples alone, and takes what is planned."""

from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_models import gradients, small_model

from planned import BUNDLED_LOSSES
from vlmplan.recipe.choices import LossKind
from vlmplan.rules.batches import TYPES_WITHOUT_PADDING
from vlmplan.sampler import packed
from vlmplan_trainer.data.flat_batches import filled
from vlmplan_trainer.data.flat_rows import flat_row
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.labels import IGNORED_LABEL

LENGTHS = (7, 19, 11)
OTHERS = {
    "glm4_moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "gpt2": {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48},
    "gpt_bigcode": {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48},
    "minicpm3": {"num_key_value_heads": 4},
    "modernbert-decoder": {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 16},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
}


def samples(lengths=LENGTHS):
    rows = []
    for seed, length in enumerate(lengths):
        ids = torch.randint(3, 307, (1, length), generator=torch.Generator().manual_seed(seed))
        labels = ids.clone()
        labels[:, 0] = IGNORED_LABEL
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return rows


def losses(kind, loss=LossKind.FULL):
    """(of the samples alone, of the row) with the gradients of each."""
    model = small_model(kind, **OTHERS.get(kind, {})).eval()
    module = LossModule(model, loss=loss)
    alone = sum(module(row, 1) for row in samples())
    their_gradients = gradients(model, alone)
    together = module(flat_row(samples(), pad_id=0), 1)
    return float(alone.detach()), float(together.detach()), their_gradients, gradients(model, together)


@pytest.mark.parametrize("loss", BUNDLED_LOSSES)
def test_a_row_of_samples_has_the_loss_and_the_gradients_of_the_samples_alone(loss):
    alone, together, theirs, ours = losses("llama", loss)
    assert together == pytest.approx(alone, rel=1e-6)
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


@pytest.mark.sweep
@pytest.mark.parametrize("kind", sorted(TYPES_WITHOUT_PADDING))
def test_every_text_model_that_is_allowed_keeps_samples_apart(kind):
    from vlmplan.architecture.families.text import TEXT_FAMILIES

    if kind not in TEXT_FAMILIES:
        pytest.skip("a model that sees")
    alone, together, *_ = losses(kind)
    assert together == pytest.approx(alone, rel=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["opt", "lfm2", "qwen3_5_text", "qwen3_next"])
def test_samples_of_a_refused_model_and_of_one_with_a_caution_see_each_other(kind):
    alone, together, *_ = losses(kind)
    assert together != pytest.approx(alone, rel=1e-3)


def test_no_first_token_is_a_label_and_positions_begin_anew():
    row = flat_row(samples((3, 2)), pad_id=0)
    assert row["position_ids"].tolist() == [[0, 1, 2, 0, 1]]
    assert [place for place, label in enumerate(row["labels"][0].tolist()) if label == IGNORED_LABEL] == [0, 3]
    assert "attention_mask" not in row


def test_the_last_sample_of_a_row_is_padded_where_rows_are_to_be_full():
    rows = samples((3, 2, 4))
    assert filled(rows, [2, 1], 8) == [3, 2 + 3, 4 + 4]
    row = flat_row(rows, pad_id=9, lengths=filled(rows, [2, 1], 8))
    assert row["input_ids"].shape == row["position_ids"].shape == (1, 8 + 8)
    assert row["input_ids"][0, -4:].tolist() == [9] * 4
    assert row["labels"][0, -4:].tolist() == [IGNORED_LABEL] * 4


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 100))
def test_packed_rows_hold_every_sample_once_within_the_limit(lengths, limit):
    rows = packed(lengths, limit)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    totals = [sum(lengths[index] for index in row) for row in rows]
    assert all(total <= limit for total in totals)
    # Best fit: no two rows fit into one.
    assert all(sum(pair) > limit for pair in zip(sorted(totals), sorted(totals)[1:], strict=False))


@pytest.mark.parametrize("lengths", [(5, 5, 5), (9, 4, 2)])
def test_a_step_of_a_row_keeps_and_peaks_as_in_transformers(lengths):
    from family_checks import assert_step_matches
    from vlmplan.architecture.model import Batch
    from vlmplan.architecture.packed_lengths import PackedLengths

    scale = 24
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 200}
    config = {"model_type": "llama", **sizes, "num_attention_heads": 8, "num_key_value_heads": 2}
    runs = tuple((scale * length, 1) for length in lengths)
    batch = Batch(micro_batch=1, num_tokens=sum(length for length, _ in runs), sequences=PackedLengths(runs))
    ids = torch.arange(batch.num_tokens)[None] % 100
    ends = [0, *accumulate(length for length, _ in runs)]
    positions = torch.arange(batch.num_tokens) - torch.tensor(ends[:-1]).repeat_interleave(torch.tensor(ends).diff())
    inputs = {"input_ids": ids, "labels": ids.clone(), "position_ids": positions[None]}
    assert_step_matches(config, batch, inputs, tolerance=0.01)
