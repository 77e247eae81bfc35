import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model

MIXTRAL = packaged_config(
    "mixtral-8x7b",
    num_hidden_layers=3,
    vocab_size=16384,
    hidden_size=1024,
    intermediate_size=1792,
    num_attention_heads=8,
    num_key_value_heads=4,
)
QWEN3_MOE = {
    **packaged_config("qwen3-vl-30b-a3b")["text_config"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 3,
    "vocab_size": 16384,
    "num_experts": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}
ALTERED = {
    "mixtral tied, three of four experts": {
        **MIXTRAL,
        "tie_word_embeddings": True,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "head_dim": 64,
    },
    "mixtral with a window": {**MIXTRAL, "sliding_window": 128},
    "qwen3 one dense layer, scores as they are": {
        **QWEN3_MOE,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "attention_bias": True,
    },
    "qwen3 with both names of the number of experts, of which that of no field counts": {
        **QWEN3_MOE,
        "num_experts": 16,
        "num_local_experts": 8,
    },
    "qwen3 every second layer, window, tied": {
        **QWEN3_MOE,
        "decoder_sparse_step": 2,
        "use_sliding_window": True,
        "sliding_window": 128,
        "tie_word_embeddings": True,
    },
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("mixtral-8x7b")


@pytest.mark.parametrize("config", [MIXTRAL, QWEN3_MOE, *ALTERED.values()], ids=["mixtral", "qwen3", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [MIXTRAL, QWEN3_MOE], ids=["mixtral", "qwen3"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", ALTERED.values(), ids=ALTERED)
def test_a_step_of_an_altered_model_keeps_and_peaks_as_in_transformers(config):
    assert_step(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", [MIXTRAL, QWEN3_MOE], ids=["mixtral", "qwen3"])
def test_frozen_embeddings_keep_what_transformers_keeps(config, checkpoints):
    assert_step(config, frozen=["model.embed_tokens", "lm_head"], checkpoints=checkpoints)


def test_experts_compute_for_the_chosen_pairs_only():
    width, inner, num_tokens, num_chosen = 1024, 1792, 2 * 384, 2
    few, many = (
        predicted_step({**MIXTRAL, "num_hidden_layers": 1, "num_local_experts": count}, BATCH) for count in (4, 16)
    )
    flops = [sum(section.forward_work.flops for _, section in step.trace.forward()) for step in (few, many)]
    router = 2 * num_tokens * width
    assert flops[1] - flops[0] == (16 - 4) * router
    experts = num_tokens * num_chosen * (2 * width * 2 * inner + 2 * inner * width)
    layer = next(section for run, section in few.trace.forward() if run.key == "layers.0.first")
    assert [flops for flops, _ in layer.forward_work.matmuls][-2:] == [experts * 2 // 3, experts // 3]


def test_experts_and_router_are_no_linears():
    from vlmplan.architecture.modules import Linear

    names = {name for name, module in build_model(MIXTRAL).named_modules() if isinstance(module, Linear)}
    assert not any(".mlp." in name for name in names)
