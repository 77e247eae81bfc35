"""Nemotron-H against transformers: Mamba-2 written out in chunks, attention without positions, plain experts."""

import pytest

from layer_events import one_layer
from tape_probe import predicted_step
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.nemotron_h import layer_types
from vlmplan.architecture.model import Batch
from vlmplan.architecture.trace import Fetch, Release
from vlmplan.errors import InputError

CONFIG = {
    "model_type": "nemotron_h",
    "hidden_size": 96,
    "hybrid_override_pattern": "ME*M-",
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "mamba_num_heads": 6,
    "mamba_head_dim": 40,
    "ssm_state_size": 24,
    "n_groups": 2,
    "conv_kernel": 4,
    "chunk_size": 32,
    "vocab_size": 100,
    "intermediate_size": 144,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
    "pad_token_id": 0,
}
OTHER = {
    **{key: value for key, value in CONFIG.items() if key not in ("hybrid_override_pattern", "num_hidden_layers")},
    "layers_block_type": ["linear_attention", "moe", "mlp"],
    "n_groups": 6,
    "moe_latent_size": 64,
    "use_bias": True,
    "mlp_bias": True,
    "use_conv_bias": False,
}
NEW = {**OTHER, "layers_block_type": ["full_attention", "linear_attention", "mlp"], "n_groups": 1}
BATCHES = [
    Batch(micro_batch=2, num_tokens=96),
    Batch(micro_batch=1, num_tokens=80),
    Batch(micro_batch=2, num_tokens=32),
    Batch(micro_batch=1, num_tokens=20),
]
"""Whole chunks and parts of one, many of them and one: what is copied to be multiplied depends on it."""


@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["published keys", "saved keys"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


def step(config, batch, **options):
    assert_step(config, batch, tolerance=0.003, backward_tolerance=0.001, **options)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.micro_batch}x{batch.num_tokens}")
def test_a_step_keeps_and_peaks_as_in_transformers(batch):
    step(CONFIG, batch)


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: f"{batch.micro_batch}x{batch.num_tokens}")
def test_a_checkpointed_step_keeps_and_peaks_as_in_transformers(batch):
    assert_checkpointed_step(CONFIG, batch)


def test_groups_of_one_head_and_experts_of_a_narrower_copy_keep_and_peak_as_in_transformers():
    step(OTHER, BATCHES[0])


@pytest.mark.parametrize(
    "frozen",
    [
        ("model.layers.1", "model.embeddings"),
        ("model.layers.1.mixer.D", "model.layers.1.mixer.in_proj"),
        ("model.layers.1.mixer.A_log", "model.layers.1.mixer.conv1d", "model.layers.1.mixer.norm"),
    ],
    ids=str,
)
def test_a_step_with_frozen_parts_keeps_and_peaks_as_in_transformers(frozen):
    step(NEW, BATCHES[1], frozen=frozen)


def test_zero_3_sees_the_weights_that_a_mixer_reads_as_its_own_from_before_its_last_linear_to_behind_its_first():
    section, names, _ = one_layer({**CONFIG, "hybrid_override_pattern": "M"})
    own = {"dt_bias": 6, "A_log": 6, "D": 6}
    mixer = {**own, "0.weight": 4 * 336, "0.bias": 336, "1.weight": 240, "2.weight": 96 * 240}
    events = [event for event in section.backward if isinstance(event, Fetch | Release)]
    read = events[0].module
    assert {name: weight.numel for name, weight in read.parameters_by_name.items()} == mixer
    inside = [(type(event), names.get(id(event.module), "mixer").rpartition(".")[2]) for event in events]
    linears = [(kind, name) for name in ("out_proj", "norm", "in_proj") for kind in (Fetch, Release)]
    assert inside[:8] == [(Fetch, "mixer"), *linears, (Release, "mixer")]
    forward = [event.module for event in section.forward if isinstance(event, Fetch)]
    assert [names.get(id(module), "mixer") for module in forward] == [
        "model.layers.0.norm",
        "mixer",
        *(f"model.layers.0.mixer.{name}" for name in ("in_proj", "norm", "out_proj")),
    ]


def test_layers_are_those_of_the_list_or_of_the_letters():
    letters = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-E"}
    names = ["linear_attention", "full_attention", "mlp", "moe"]
    assert layer_types(Config(letters)) == names
    assert layer_types(Config({**letters, "layers_block_type": ["mamba", "attention"]})) == names[:2]
    assert list(layer_types(Config({"model_type": "nemotron_h"}))) == [names[index] for index in (0, 3, 1, 2)]


def test_the_head_is_its_own_whatever_the_file_says():
    assert not build_model({**CONFIG, "tie_word_embeddings": True}).ties_weights


def test_layers_and_groups_that_cannot_be_are_refused():
    for changes, words in (
        ({"hybrid_override_pattern": "MX"}, "letters out of M"),
        ({"layers_block_type": ["conv"]}, "names out of linear_attention"),
        ({"layers_block_type": []}, "names out of linear_attention"),
        ({"n_groups": 4}, "divides the 6 heads"),
    ):
        with pytest.raises(InputError, match=words):
            predicted_step({**CONFIG, **changes}, BATCHES[0])
