import pytest

from model_table import assert_counts_match_the_table, packaged_config
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model, llama
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.recipe.choices import LossKind

PHI3 = packaged_config("phi-3-mini", num_hidden_layers=3, vocab_size=8192, pad_token_id=0)
PARTIAL = {key: value for key, value in PHI3.items() if key != "rope_scaling"} | {"partial_rotary_factor": 0.75}
GROUPED = {**PHI3, "num_key_value_heads": 8, "sliding_window": 128, "resid_pdrop": 0.1}
ALTERED = {
    "partial rotary": PARTIAL,
    "grouped heads, window, dropout": GROUPED,
    "tied, narrow": {**PHI3, "tie_word_embeddings": True, "intermediate_size": 512, "num_hidden_layers": 2},
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("phi-3-mini")


@pytest.mark.parametrize("config", [PHI3, *ALTERED.values()], ids=["published", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [PHI3, PARTIAL, GROUPED], ids=["full rotary", "partial rotary", "grouped"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_embeddings_keep_what_transformers_keeps(checkpoints):
    assert_step(PHI3, frozen=["model.embed_tokens", "lm_head"], checkpoints=checkpoints)


def test_queries_and_keys_are_cut_before_either_is_put_together(monkeypatch):
    """Of which backward begins with the keys' rotation and ends with the gradients of all four slices."""
    done: list[str] = []
    for name in ("slice_last", "rotate", "concatenate"):
        operation = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *args, name=name, run=operation: (done.append(name), run(*args))[1])
    model = build_model({**PARTIAL, "num_hidden_layers": 1})
    model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    assert done[:3] == ["slice_last"] * 3  # of the fused projection
    assert done[3:11] == ["slice_last"] * 4 + ["rotate", "concatenate"] * 2


@pytest.mark.parametrize("model_type", ["phi3", "llama"])
def test_masks_are_made_before_positions(monkeypatch, model_type):
    done: list[str] = []
    masks, positions = llama.causal_masks, llama.Decoder.positions
    monkeypatch.setattr(llama, "causal_masks", lambda *args: (done.append("mask"), masks(*args))[1])
    monkeypatch.setattr(llama.Decoder, "positions", lambda *args: (done.append("positions"), positions(*args))[1])
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 100}
    model = build_model({"model_type": model_type, **sizes, "num_key_value_heads": 2, "intermediate_size": 96})
    model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    assert done == ["mask", "mask", "positions"]  # first those that no layer sees
