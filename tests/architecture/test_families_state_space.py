"""Bamba, Falcon-H1, Granite 4.0 H and Mamba-2 against transformers: what they put around the mixer of Mamba-2."""

import pytest

from layer_events import one_layer
from tape_probe import predicted_step
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.granitemoehybrid import layer_types
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Fetch, Release
from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind

SIZES = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "intermediate_size": 144,
    "pad_token_id": 0,
}
MIXER = {
    "mamba_n_heads": 6,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}
GRANITE = {
    "model_type": "granitemoehybrid",
    **SIZES,
    **MIXER,
    "layer_types": ["mamba", "attention", "mamba"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 48,
    "shared_intermediate_size": 80,
}
ROTATED = {**GRANITE, "num_local_experts": 0, "position_embedding_type": "rope", "mamba_proj_bias": True}
BAMBA = {"model_type": "bamba", **SIZES, **MIXER, "attn_layer_indices": [1], "mlp_bias": True}
FALCON = {"model_type": "falcon_h1", **SIZES, **MIXER, "mamba_d_ssm": 192, "head_dim": 32}
NORMED = {**FALCON, "mamba_rms_norm": True, "projectors_bias": True, "tie_word_embeddings": True}
GATED = {**NORMED, "mamba_norm_before_gate": False, "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_d_ssm": 256}
ALONE = {
    **{key: SIZES[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size", "pad_token_id")},
    "model_type": "mamba2",
    "num_heads": 6,
    "head_dim": 32,
    "n_groups": 2,
    "state_size": 24,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 32,
}
NARROW = {**ALONE, "residual_in_fp32": False, "tie_word_embeddings": True, "use_bias": True}
CONFIGS = {
    "granite": GRANITE,
    "granite without experts": ROTATED,
    "bamba": BAMBA,
    "falcon": FALCON,
    "falcon, norm first": NORMED,
    "falcon, gate first": GATED,
    "mamba2": ALONE,
    "mamba2, residual in 16 bits": NARROW,
}
BATCH = Batch(micro_batch=2, num_tokens=80)
"""Three chunks of 32 tokens, the last not full."""
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def attention(config):
    """transformers refuses sdpa where there is nothing to attend with."""
    return "eager" if config["model_type"] == "mamba2" else "sdpa"


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention=attention(config))


@pytest.mark.one_in(3)
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, BATCH, attention=attention(config))


@pytest.mark.one_in(3)
@EACH
def test_a_checkpointed_step_peaks_as_in_transformers(config):
    assert_checkpointed_step(config, BATCH, attention=attention(config))


def test_zero_3_keeps_what_a_mixer_that_is_called_by_keyword_reads_to_the_end_of_backward():
    for config, is_released in (({**GRANITE, "layer_types": ["mamba"] * 3}, False), (ALONE, True)):
        section, names, _ = one_layer(config)
        events = [event for event in section.backward if isinstance(event, Fetch | Release)]
        mixer = next(event.module for event in events if id(event.module) not in names)
        released = [event.module for event in events if isinstance(event, Release)]
        assert (mixer in released) is is_released
        assert section.unreleased_bytes == (0 if is_released else 2 * (3 * 6 + 5 * 288 + 192 + 96 * 192))


@pytest.mark.parametrize(("loss", "comes_back"), [(LossKind.FULL, True), (LossKind.CHUNKED, False)])
def test_zero_3_gathers_the_head_whose_type_mamba2_asks_for_with_the_model(loss, comes_back):
    tree = build_model(ALONE)
    trace = tree.run(Tape(), Batch(micro_batch=1, num_tokens=4), AttentionBackend(), loss=loss)
    head, begun = trace.sections["head"], trace.sections["model"].forward
    (reader,) = [event.module for event in begun if isinstance(event, Fetch)]
    assert list(reader.parameters_by_name.values()) == [tree.lm_head.weight]
    assert [event.module for event in head.forward if isinstance(event, Release)][-1] is reader
    assert any(event.module is reader for event in head.backward if isinstance(event, Fetch)) is comes_back


def test_layers_are_those_of_the_file_or_mixers_alone():
    assert layer_types(Config(GRANITE)) == ["linear_attention", "full_attention", "linear_attention"]
    assert layer_types(Config({"model_type": "granitemoehybrid", "num_hidden_layers": 2})) == ["linear_attention"] * 2


def test_what_cannot_be_is_refused():
    for config, changes, words in (
        (GRANITE, {"layer_types": ["mamba", "attention", "conv"]}, "names out of"),
        (GRANITE, {"layer_types": ["mamba"]}, "a list of 3 names"),
        (BAMBA, {"mamba_d_head": 30}, "what 6 heads make 192 of"),
        (FALCON, {"mamba_n_groups": 4}, "divides the 6 heads"),
        (ALONE, {"head_dim": 30}, "what 6 heads make 192 of"),
    ):
        with pytest.raises(InputError, match=words):
            predicted_step({**config, **changes}, BATCH)
