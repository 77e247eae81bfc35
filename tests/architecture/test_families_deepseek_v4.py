"""DeepSeek-V4 against transformers: residual streams, compressed attention with and without an indexer, its experts."""

import json
from functools import partial

import pytest

from tape_probe import predicted_step
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.compressed_layers import CHOOSING, HEAVY, SLIDING, attention_kinds
from vlmplan.architecture.config import Config
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.clamped_experts import HASH, SPARSE
from vlmplan.architecture.families.deepseek_v4 import mlp_kinds
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.hardware import CPU_KERNELS
from vlmplan.models.description import files_of_texts

CONFIG = {
    "model_type": "deepseek_v4",
    "hidden_size": 128,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "head_dim": 64,
    "q_lora_rank": 48,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "vocab_size": 128,
    "pad_token_id": 0,
    "sliding_window": 32,
    "o_groups": 2,
    "o_lora_rank": 40,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "qk_rope_head_dim": 16,
    "hc_sinkhorn_iters": 3,
    "layer_types": [SLIDING, HEAVY, CHOOSING],
    "mlp_layer_types": [HASH, SPARSE, SPARSE],
    "compress_rates": {CHOOSING: 4, HEAVY: 16},
}
BARE = {key: value for key, value in CONFIG.items() if key not in ("layer_types", "mlp_layer_types", "compress_rates")}
PUBLISHED = {**BARE, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0], "num_hash_layers": 1}
NESTED = {
    **BARE,
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "compress": {"rope_type": "default", "rope_theta": 160000.0, "partial_rotary_factor": 0.5},
    },
    "compress_rate_csa": 8,
    "compress_rate_hca": 32,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "mlp_bias": True,
    "scoring_func": "sigmoid",
    "n_shared_experts": 2,
}
WIDE = {
    "indexer": {"index_n_heads": 16, "index_head_dim": 64},
    "attention": {"num_attention_heads": 16, "head_dim": 128, "hc_sinkhorn_iters": 20},
    "experts": {"moe_intermediate_size": 512, "num_experts_per_tok": 4},
    "a group for each head": {"o_groups": 4, "o_lora_rank": 256},
    "a single stream": {"hc_mult": 1, "hidden_size": 384},
}
BATCH = Batch(micro_batch=2, num_tokens=96)
ONE_SAMPLE = Batch(micro_batch=1, num_tokens=192)
"""Where ``torch.matmul`` copies less."""


@pytest.mark.parametrize(
    "config",
    [CONFIG, PUBLISHED, NESTED, {"model_type": "deepseek_v4"}],
    ids=["class's keys", "published keys", "nested positions", "defaults"],
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


step = partial(assert_step, attention="eager", tolerance=0.002)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("batch", [BATCH, ONE_SAMPLE], ids=["two samples", "one sample"])
@pytest.mark.parametrize("config", [CONFIG, NESTED], ids=["class's keys", "nested positions"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, batch, checkpoints):
    step(config, batch, checkpoints=checkpoints)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("batch", [BATCH, ONE_SAMPLE], ids=["two samples", "one sample"])
@pytest.mark.parametrize("changes", WIDE.values(), ids=WIDE)
def test_what_is_wide_peaks_as_in_transformers(changes, batch, checkpoints):
    step({**CONFIG, **changes}, batch, checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("num_tokens", [15, 50])
def test_tokens_that_fill_no_whole_window_are_left_out_of_the_keys(num_tokens):
    step(CONFIG, Batch(micro_batch=3, num_tokens=num_tokens))


@pytest.mark.parametrize("frozen", [("model.layers.0", "model.embed_tokens"), ("model.layers.2", "lm_head")], ids=str)
def test_a_step_with_frozen_layers_keeps_and_peaks_as_in_transformers(frozen):
    step(CONFIG, BATCH, frozen=frozen)


def test_whatever_attention_is_asked_for_eager_runs():
    asked, run = (predicted_step(CONFIG, BATCH, implementation=name) for name in ("sdpa", "eager"))
    assert asked.backward_peak == run.backward_peak


def test_a_cache_holds_what_transformers_holds_after_the_prompt():
    """Keys, compressed keys, and the projections of which slices wait for a window to be full."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import real_model

    model = real_model(CONFIG, attention="eager").eval()
    with torch.no_grad():
        layers = model(torch.arange(50).reshape(1, 50), use_cache=True).past_key_values.layers
    tensors = [layer.keys for layer in layers]
    for layer in layers:
        for name in ("buffer_kv", "buffer_gate", "compressed_kv"):
            tensors += getattr(layer, name, {}).values()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    tape = Tape(is_evaluating=True, follows_weights=False)
    backend = AttentionBackend(implementation="eager", compute_capability=CPU_KERNELS)
    found = generation_pass(build_model(CONFIG), tape, Batch(micro_batch=1, num_tokens=50), backend)
    assert found.cache_bytes == sum(storages.values())


def test_layers_are_those_of_the_file_or_of_the_class():
    assert list(attention_kinds(Config(PUBLISHED))) == [SLIDING, CHOOSING, HEAVY, CHOOSING]
    assert list(attention_kinds(Config(NESTED))) == [HEAVY, HEAVY, HEAVY, CHOOSING]
    assert list(mlp_kinds(Config(PUBLISHED))) == [HASH, SPARSE, SPARSE, SPARSE]
    assert list(mlp_kinds(Config(NESTED))) == [HASH, HASH, HASH, SPARSE]
    assert set(mlp_kinds(Config({**PUBLISHED, "num_hash_layers": 0}))) == {SPARSE}


def test_what_attention_targets_mean_has_a_gradient():
    assert "compressor.kv_proj" in build_model(CONFIG).attention_linears
    slides = {**CONFIG, "layer_types": [SLIDING] * 3}
    assert not any("compressor" in name for name in build_model(slides).attention_linears)


def test_a_note_tells_of_an_indexer():
    notes = [
        files_of_texts("m", {"config.json": json.dumps(config)}, source="config.json", hub_id=None).notes
        for config in (CONFIG, {**CONFIG, "layer_types": [SLIDING, HEAVY, HEAVY]})
    ]
    assert "No gradient comes to the indexers of m" in notes[0][0]
    assert notes[1] == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": [SLIDING, HEAVY, "full_attention"]}, "names out of"),
        ({"mlp_layer_types": [HASH, SPARSE, "dense"]}, "names out of hash_moe and moe"),
        ({"layer_types": None, "compress_ratios": [0, 4]}, "a number for each of 3 layers"),
        ({"layer_types": None, "compress_ratios": [0, 4, 16]}, "out of 0, 4, 128"),
        ({"scoring_func": "softmax"}, "softmax"),
        ({"o_groups": 3}, "o_groups"),
        ({"index_head_dim": 8}, "index_head_dim"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ],
    ids=str,
)
def test_layers_that_cannot_be_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**CONFIG, **changes})
