"""Attention windows: one mask for all samples, unless a mask of padding comes with them, against transformers."""

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
