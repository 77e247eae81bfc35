import pytest

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match, assert_step_matches, text_inputs
from vlmplan.architecture.model import Batch

SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 16384, "head_dim": 64}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "first_k_dense_replace": 1, "use_qk_norm": True}
EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192, "n_shared_experts": 1}
CONFIG = {"model_type": "glm4_moe", **SIZES, **HEADS, **EXPERTS}
ALTERED = {
    "plain": CONFIG,
    "groups, biases, no norms of heads": {
        **CONFIG,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "use_qk_norm": False,
        "norm_topk_prob": False,
    },
}
BATCH = Batch(micro_batch=2, num_tokens=384)


@pytest.mark.parametrize("config", ALTERED.values(), ids=list(ALTERED))
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_and_linears_match(config)


@pytest.mark.parametrize(
    ("config", "checkpoints"),
    [(CONFIG, False), (CONFIG, True), *[(config, False) for config in ALTERED.values() if config is not CONFIG]],
)
def test_a_step_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step_matches(config, BATCH, text_inputs(BATCH), checkpoints=checkpoints, tolerance=0.002)


def test_a_step_of_frozen_experts_keeps_and_peaks_as_in_transformers():
    frozen = [f"model.layers.{layer}.mlp" for layer in range(4)]
    assert_step_matches(CONFIG, BATCH, text_inputs(BATCH), frozen=frozen, tolerance=0.002)
