"""Qwen4-Exp against transformers: gated residual streams, an indexer of blocks, embeddings of n-grams."""

import json
from functools import partial

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.ngram_embedding import NGramLayer, ngram_shape
from vlmplan.architecture.families.qwen4_exp import FULL, INDEXED, LINEAR, decoder
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.hardware import CPU_KERNELS
from vlmplan.models.description import files_of_texts
from vlmplan.rules import default_lora_exclude, model_facts
from vlmplan.units import DType

CONFIG = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 64,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "vocab_size": 128,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "hc_count": 4,
    "hc_lowrank": 24,
    "layer_types": [LINEAR, LINEAR, INDEXED],
    "ple_layer_ids": [2],
    "ngram_vocab_size_base": 50,
    "make_ngram_vocab_size_divisible_by": 16,
    "ple_embed_dim": 96,
    "output_gate_type": "sigmoid",
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": False,
}
ALONE = {
    "streams and gated delta nets": {"layer_types": [LINEAR] * 3, "ple_layer_ids": []},
    "embeddings of n-grams": {"layer_types": [LINEAR] * 3, "ple_layer_ids": [1, 3]},
    "indexers": {"layer_types": [INDEXED] * 3, "ple_layer_ids": []},
}
ALTERED = {
    "another gate, tied": {"output_gate_type": "silu", "tie_word_embeddings": True},
    "two streams": {"hc_count": 2, "hc_lowrank": 40},
    "longer n-grams": {"ngram_size": 4, "heads_per_ngram": 2, "ple_conv_kernel_size": 3},
    "blocks of 6 tokens": {"indexer_budget": 24, "indexer_compress_ratio": 6, "indexer_n_heads": 4},
    "scores as they are": {"norm_topk_prob": False},
}
BATCH = Batch(micro_batch=2, num_tokens=48)
FLASH_NEXT = {
    **{key: value for key, value in CONFIG.items() if key not in ("pad_token_id", "norm_topk_prob")},
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "layer_types": [LINEAR, LINEAR, LINEAR, FULL] * 12,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "num_attention_heads": 24,
    "head_dim": 256,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "vocab_size": 248320,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "hc_lowrank": 320,
    "ngram_vocab_size_base": 20_000_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "ple_embed_dim": 2560,
    "indexer_n_heads": 4,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
}
"""Qwen3.8-Flash-Next as its serving recipes quote it: 125B of weights, and 51B of embeddings of n-grams."""


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        *({**CONFIG, **changes} for changes in (*ALONE.values(), *ALTERED.values())),
        FLASH_NEXT,
        {**CONFIG, "layer_types": [LINEAR, FULL, LINEAR], "ple_layer_ids": None, "ple_embed_dim": None},
    ],
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def test_the_embedding_of_ngrams_is_what_its_model_card_counts_apart():
    entries = list(build_model(FLASH_NEXT).parameters())
    ngrams = sum(entry.parameter.numel for entry in entries if "ngram_embedding" in entry.name)
    assert ngrams == 320_001_536 * 2560 // 16
    assert round(ngrams / 1e9, 1) == 51.2
    assert 125e9 < sum(entry.parameter.numel for entry in entries) - ngrams < 126e9


step = partial(assert_step, tolerance=0.001)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("batch", [BATCH, Batch(micro_batch=1, num_tokens=50)], ids=["two samples", "one sample"])
@pytest.mark.parametrize("changes", [{}, *ALONE.values()], ids=["all", *ALONE])
def test_a_step_keeps_and_peaks_as_in_transformers(changes, batch, attention):
    step({**CONFIG, **changes}, batch, attention=attention)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("changes", ALTERED.values(), ids=ALTERED)
def test_what_a_file_says_otherwise_keeps_and_peaks_as_in_transformers(changes):
    step({**CONFIG, **changes}, BATCH)


@pytest.mark.parametrize("changes", [{}, *ALONE.values()], ids=["all", *ALONE])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(changes):
    step({**CONFIG, **changes}, BATCH, checkpoints=True, tolerance=0.01, backward_tolerance=0.001)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("frozen", [("model.layers.0", "model.embed_tokens"), ("model.layers.2", "lm_head")], ids=str)
def test_a_step_with_frozen_layers_keeps_and_peaks_as_in_transformers(frozen, checkpoints):
    step(CONFIG, BATCH, frozen=frozen, checkpoints=checkpoints, tolerance=0.01)


@pytest.mark.parametrize("num_tokens", [3, 50])
def test_tokens_that_fill_no_whole_block_are_seen_anyway(num_tokens):
    step(CONFIG, Batch(micro_batch=3, num_tokens=num_tokens), tolerance=0.003)


def test_a_cache_holds_what_transformers_holds_after_the_prompt():
    """Keys and values, keys of the indexer, and the states of convolutions, delta nets and n-grams."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from family_checks import real_model

    model = real_model(CONFIG, attention="sdpa").eval()
    with torch.no_grad():
        layers = model(torch.arange(50).reshape(1, 50), use_cache=True).past_key_values.layers
    grown = [getattr(layer, name) for layer in layers[2:] for name in ("keys", "values", "indexer_keys")]
    states = [
        state for layer in layers[:2] for state in (*layer.conv_states.values(), *layer.recurrent_states.values())
    ]
    tape = Tape(is_evaluating=True, follows_weights=False)
    backend = AttentionBackend(implementation="sdpa", compute_capability=CPU_KERNELS)
    found = generation_pass(build_model(CONFIG), tape, Batch(micro_batch=1, num_tokens=50), backend)
    assert found.cache_bytes == sum(x.nbytes for x in grown)
    assert found.state_bytes == sum(x.nbytes for x in states if x is not None)


def test_what_attention_targets_mean_leaves_the_indexer_out():
    assert not any("indexer" in name for name in build_model(CONFIG).attention_linears)


def test_lora_leaves_out_the_indexer_where_a_layer_has_one():
    excluded = []
    for types in ([LINEAR, LINEAR, INDEXED], [LINEAR] * 3):
        text = json.dumps({**CONFIG, "layer_types": types})
        files = files_of_texts("m", {"config.json": text}, source="config.json", hub_id=None)
        excluded.append(default_lora_exclude(model_facts(files)))
    assert excluded == ["indexer.index_qk_proj", None]


def test_notes_tell_of_the_indexer_and_of_the_time_that_it_takes():
    files = files_of_texts("m", {"config.json": json.dumps(CONFIG)}, source="config.json", hub_id=None)
    assert "No gradient comes to the indexers of m" in files.notes[0]
    assert "a loop of Python over the tokens of every sample" in files.notes[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": [LINEAR, LINEAR, "sliding_attention"]}, "names out of"),
        ({"ple_layer_ids": [3]}, "ple_layer_ids"),
        ({"ple_layer_ids": [4]}, "ple_layer_ids"),
        ({"ple_embed_dim": 100}, "a multiple of 16"),
        ({"hc_count": 1}, "hc_count"),
        ({"output_gate_type": "relu"}, "sigmoid or silu"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_budget": 18}, "indexer_budget"),
        ({"indexer_head_dim": 4}, "indexer_head_dim"),
    ],
    ids=str,
)
def test_layers_that_cannot_be_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        build_model({**CONFIG, **changes})


def step_with_images(**options):
    pytest.importorskip("transformers")
    from patch_batches import TOKENS, cut
    from patch_batches import step as batch_of_images

    from family_checks import assert_step_matches

    vision = {"hidden_size": 96, "intermediate_size": 160, "num_heads": 4, "out_hidden_size": CONFIG["hidden_size"]}
    small = cut("qwen3.5-0.8b", text={}, vision=vision)
    text = {**CONFIG, "vocab_size": 1000, **{key: TOKENS[key] for key in ("pad_token_id", "eos_token_id")}}
    config = {**small, "model_type": "qwen4_exp", "text_config": text}
    config["vision_config"] = {**small["vision_config"], "model_type": "qwen4_exp_vision"}
    made = batch_of_images(config, "qwen3.5-0.8b", (160, 128), images_per_sample=2)
    return assert_step_matches(made.config, made.batch, made.inputs, made.floats, **options)


@pytest.mark.parametrize("frozen", [(), ["model.visual"], ["model.language_model", "lm_head"]], ids=str)
def test_a_step_with_images_keeps_and_peaks_as_in_transformers(frozen):
    step_with_images(frozen=frozen, tolerance=0.002)


@pytest.mark.parametrize(("autocast", "expected"), [(None, DType.BFLOAT16), (DType.BFLOAT16, DType.FLOAT32)])
def test_cudas_autocast_makes_streams_float32_that_get_embeddings_of_ngrams(autocast, expected):
    """It sums up the product of keys and streams in float32; layers behind are of another kind then."""
    tape = Tape(autocast=autocast, follows_weights=False)
    with tape.section("streams"):
        streams = tape.tensor((1, 8, 4 * CONFIG["hidden_size"]), DType.BFLOAT16)
        assert NGramLayer(ngram_shape(Config(CONFIG), 0)).forward(streams).dtype is expected
    assert len(decoder(Config({**CONFIG, "layer_types": [LINEAR] * 3})).layers.kinds) == 3
