"""Masks against transformers: one for all samples unless a mask of padding comes with them, and of a layer its own."""

import pytest

pytest.importorskip("transformers")

from family_checks import assert_step_matches, text_inputs
from vlmplan.architecture.model import Batch

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
}
WINDOWS = {
    "mistral": {"sliding_window": 256},
    "olmo3": {"sliding_window": 256, "bos_token_id": 1, "eos_token_id": 2},
    "llama4_text": {"attention_chunk_size": 256, "num_local_experts": 2, "intermediate_size_mlp": 96},
}
BATCH = Batch(micro_batch=4, num_tokens=768)
"""So many that a mask for each sample is the largest thing that a checkpointed layer keeps."""


@pytest.mark.parametrize("gets_mask", [False, True])
@pytest.mark.parametrize("model_type", WINDOWS)
def test_checkpointed_layers_keep_as_many_masks_as_in_transformers(model_type, gets_mask):
    inputs = text_inputs(BATCH)
    if not gets_mask:
        del inputs["attention_mask"]
    config = {"model_type": model_type, **SIZES, **WINDOWS[model_type]}
    assert_step_matches(config, BATCH, inputs, checkpoints=True, tolerance=0.005)


def test_a_mask_goes_when_no_layer_is_left_that_has_it():
    """The last layer alone sees everything: its mask and positions are gone when the first one, the widest, runs again
    in backward."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"]}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "intermediate_size": 4096}
    config = {"model_type": "mellum", **SIZES, **experts, **kinds, "num_hidden_layers": 2, "sliding_window": 256}
    inputs = text_inputs(BATCH)
    assert_step_matches(config, BATCH, inputs, attention="eager", checkpoints=True, tolerance=0.005)


MIXED = {
    "hidden_size": 256,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "vocab_size": 100,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
    "sliding_window": 128,
}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
DELTA = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads")} | {
    f"linear_{name}": 32 for name in ("key_head_dim", "value_head_dim")
}
ONE_KIND_IN_FRONT = {
    "qwen2": {"layer_types": [FULL] * 4 + [SLIDING] * 4, "use_sliding_window": True},
    "cohere2": {"layer_types": [FULL] * 4 + [SLIDING] * 4},
    "exaone4": {"layer_types": [FULL] * 4 + [SLIDING] * 4},
    "gemma2": {"layer_types": [SLIDING] * 4 + [FULL] * 4, "query_pre_attn_scalar": 32},
    "gemma3_text": {"layer_types": [SLIDING] * 4 + [FULL] * 4, "query_pre_attn_scalar": 32},
    "gemma4_text": {
        "layer_types": [SLIDING] * 4 + [FULL] * 4,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    "lfm2": {"layer_types": ["conv"] * 4 + [FULL] * 4, "block_auto_adjust_ff_dim": False},
    "qwen3_5_text": {"layer_types": [LINEAR] * 4 + [FULL] * 4, **DELTA},
    "llama4_text": {
        "attention_chunk_size": 128,
        "num_local_experts": 2,
        "intermediate_size_mlp": 4096,
        "layer_types": ["chunked_attention"] * 4 + [FULL] * 4,
        "no_rope_layers": [1] * 4 + [0] * 4,
    },
}
"""Files whose layers have one kind of attention, and behind them another or none."""


@pytest.mark.sweep
@pytest.mark.parametrize("model_type", ONE_KIND_IN_FRONT)
def test_a_checkpointed_layer_keeps_only_the_mask_that_it_has_a_use_for(model_type):
    """Gradients stay and outweigh the masks, so that the peak is in the first layers' backward."""
    batch = Batch(micro_batch=2, num_tokens=512)
    config = {"model_type": model_type, **MIXED, **ONE_KIND_IN_FRONT[model_type]}
    assert_step_matches(
        config,
        batch,
        text_inputs(batch),
        checkpoints=True,
        attention="eager",
        keeps_gradients=True,
        tolerance=0.005,
        backward_tolerance=0.001,
    )
