"""Falcon, GPT-J, CodeGen, GPT-Neo, BLOOM and MPT, whose models hold a layer's attention weights through the next."""

from itertools import pairwise

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.evaluation import generation_pass
from vlmplan.architecture.families import build_model
from vlmplan.architecture.storage_log import EngineEvent, LoggingTape, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS
from vlmplan.units import DType

TOKENS = {"vocab_size": 2048, "bos_token_id": 1, "eos_token_id": 2}
FALCON = {"model_type": "falcon", **TOKENS, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
NEW = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
BLOOM = {"model_type": "bloom", "vocab_size": 2048, "hidden_size": 512, "n_layer": 4, "n_head": 8}
MPT = {"model_type": "mpt", "vocab_size": 2048, "d_model": 512, "n_layers": 4, "n_heads": 8}
GPTJ = {**TOKENS, "n_embd": 512, "n_layer": 4, "n_head": 8, "rotary_dim": 32, "n_positions": 512}
NEO = {"model_type": "gpt_neo", "vocab_size": 2048, "hidden_size": 512, "num_layers": 4, "num_heads": 8}
NEO |= {"attention_types": [[["global", "local"], 2]]}
DROPOUTS = {"attn_pdrop": 0.1, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
CONFIGS = {
    "falcon 7b": FALCON,
    "falcon 40b": NEW,
    "falcon 11b": {**NEW, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False, "ffn_hidden_size": 1024},
    "falcon rw": {**FALCON, "alibi": True, "bias": True, "multi_query": False, "parallel_attn": False},
    "falcon, a key head for each query head": {**FALCON, "bias": True, "multi_query": False},
    "falcon, an MLP behind attention of one key head": {**FALCON, "parallel_attn": False, "bias": True},
    "falcon 40b with one key head": {**NEW, "num_kv_heads": 1},
    "falcon 40b, a key head for each query head": {**NEW, "num_kv_heads": None},
    "bloom": BLOOM,
    "bloom with dropout, norms as the residual, untied": {
        **BLOOM,
        "attention_dropout": 0.1,
        "hidden_dropout": 0.1,
        "apply_residual_connection_post_layernorm": True,
        "tie_word_embeddings": False,
    },
    "mpt": MPT,
    "mpt clipped, untied": {**MPT, "attn_config": {"clip_qkv": 6.0}, "tie_word_embeddings": False},
    "gpt_neo": NEO,
    "gpt_neo with dropout, all global, untied": {
        **NEO,
        "attention_types": [[["global"], 4]],
        "attention_dropout": 0.1,
        "resid_dropout": 0.1,
        "embed_dropout": 0.1,
        "intermediate_size": 1024,
        "tie_word_embeddings": False,
    },
    "gptj": {"model_type": "gptj", **GPTJ},
    "gptj with dropout, whole heads rotated, tied": {
        "model_type": "gptj",
        **GPTJ,
        **DROPOUTS,
        "rotary_dim": 64,
        "n_inner": 1024,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
    },
    "codegen": {"model_type": "codegen", **GPTJ},
    "codegen with dropout, whole heads rotated": {"model_type": "codegen", **GPTJ, **DROPOUTS, "rotary_dim": 64},
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("checkpoints", [False, True])
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step(config, attention="eager", checkpoints=checkpoints)


HAVE_SDPA = ("falcon", "gptj", "codegen") if PLANNED_TRANSFORMERS.shares_gptj_positions else ("falcon",)
FUSED = {
    name: config for name, config in CONFIGS.items() if config["model_type"] in HAVE_SDPA and "attn_pdrop" not in config
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("config", FUSED.values(), ids=FUSED)
def test_a_step_with_sdpa_keeps_and_peaks_as_in_transformers(config):
    assert_step(config)


WRITTEN_OUT = {name: config for name, config in FUSED.items() if config.get("new_decoder_architecture")}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("config", WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_a_checkpointed_step_with_sdpa_keeps_and_peaks_as_in_transformers(config):
    # Of a single key head CUDA finds out in torch's fallback which scores are masked, a byte for each.
    assert_step(config, checkpoints=True)


@EACH
def test_keys_and_values_of_every_layer_are_kept_while_text_is_generated(config):
    tape = Tape(follows_weights=False, is_evaluating=True)
    found = generation_pass(build_model(config), tape, BATCH, AttentionBackend(implementation="eager"))
    written_out = config.get("new_decoder_architecture", config.get("multi_query") is False)
    num_heads = 8 if config["model_type"] != "falcon" or written_out else 1
    per_layer = 2 * BATCH.micro_batch * BATCH.num_tokens * num_heads * 64 * DType.BFLOAT16.num_bytes
    assert found.cache_bytes == 4 * per_layer


def test_products_that_are_cut_are_refused():
    with pytest.raises(InputError, match="slow_but_exact"):
        predicted_step({**BLOOM, "slow_but_exact": True, "pretraining_tp": 4}, BATCH, implementation="eager")


@pytest.mark.parametrize("types", [[[["global", "local"], 3]], [[["global"], 3], [["other"], 1]], "global", 4])
def test_other_kinds_of_attention_than_gpt_neo_has_are_refused(types):
    with pytest.raises(InputError, match="attention_types"):
        predicted_step({**NEO, "attention_types": types}, BATCH, implementation="eager")


def test_positions_end_where_the_table_does():
    with pytest.raises(InputError, match="learned positions for 128 tokens"):
        predicted_step({"model_type": "gptj", **GPTJ, "n_positions": 128}, BATCH, implementation="eager")


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_a_layer_returns_is_one_storage_until_the_next_has_returned(checkpoints: bool):
    """A copy in its place would lie elsewhere, and leave the allocator other gaps: every layer makes as many tensors as
    the first, and the weights of a checkpointed one go when the layer behind it is done."""
    model = build_model(BLOOM)
    for _, stack in model.stacks():
        stack.checkpoints = checkpoints
    trace = model.run(LoggingTape(), BATCH, AttentionBackend(implementation="eager"), loss=LossKind.FULL)
    operations = expanded(trace)
    layers = [
        operations.forward[start:end]
        for run, (start, end) in zip(operations.schedule, pairwise((0, *operations.forward_ends)), strict=True)
        if run.layer is not None
    ]
    made = [[one for one in layer if not isinstance(one, EngineEvent) and one[1]] for layer in layers]
    assert len(made) == BLOOM["n_layer"]
    assert len({tuple(num_bytes for _, num_bytes in layer) for layer in made}) == 1
    freed = [{one[0] for one in layer if not isinstance(one, EngineEvent) and not one[1]} for layer in layers]
    freed_later = [{handle for handle, _ in of_one} & of_next for of_one, of_next in zip(made, freed[1:], strict=False)]
    assert [len(handles) for handles in freed_later] == ([1, 1, 1] if checkpoints else [0, 0, 0])
