"""Samples that no GPU has room for: what is tried then, where nobody has decided otherwise."""

import pytest

from search_cases import TODAY
from vlmplan.catalog import load_catalog
from vlmplan.recipe.choices import LinearAttention
from vlmplan.request import parse
from vlmplan.search import recommend
from vlmplan.search.long_samples import recommend_or_stretch
from vlmplan.search.options import search_query
from vlmplan.units import GIB

LIMITED = {"num_samples": 50_000, "max_usd": 4}
DECIDED = {"sequence_parallel": 1, "tiled_mlp": False, "offload_activations": False}


def query(**changes):
    options = {"model": "qwen3-0.6b", "gpu": ("rtx-4090:2",), "method": "lora", "seq_len": 200_000}
    request = parse(options | changes)
    return search_query(request, load_catalog(()), request.model_files, TODAY)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("left_open", "sentence"),
    [
        ("sequence_parallel", "--sequence-parallel 2 shares each among 2 GPUs"),
        ("tiled_mlp", "--tiled-mlp runs MLPs on a part of the tokens at a time"),
        ("offload_activations", "--offload-activations keeps the inputs of layers in host memory"),
    ],
)
def test_samples_without_room_are_given_it_by_what_is_open_and_the_answer_says_so(left_open, sentence):
    seq_len = 180_000 if left_open == "tiled_mlp" else 200_000
    asked = query(seq_len=seq_len, **{name: value for name, value in DECIDED.items() if name != left_open})
    assert not recommend(asked).plans
    found = recommend_or_stretch(asked)
    assert getattr(found.plans[0].estimate.recipe, left_open) > DECIDED[left_open]
    assert found.notes[0].endswith(f"nothing fits otherwise, {sentence}")


def test_they_are_given_room_under_the_engines_that_qlora_has():
    asked = query(gpu=("rtx-4060:1",), method="qlora", seq_len=70_000, tiled_mlp=False, global_batch=1)
    assert not recommend(asked).plans
    assert recommend_or_stretch(asked).plans[0].estimate.recipe.offload_activations


@pytest.mark.sweep
def test_of_what_makes_room_by_itself_the_best_is_taken_alone():
    recipe = recommend_or_stretch(query()).plans[0].estimate.recipe
    assert sum([recipe.sequence_parallel > 1, recipe.tiled_mlp, recipe.offload_activations]) == 1


@pytest.mark.sweep  # transformers' own operations are a loop over a thousand chunks
def test_gated_delta_nets_run_as_kernels_where_their_operations_do_not_fit():
    pinned = {"zero_stage": "none", "activation_checkpointing": True, "loss": "chunked", "global_batch": 1}
    asked = query(model="qwen3.5-0.8b", gpu=("a30:1",), seq_len=72_000, images_per_sample=0, **pinned)
    assert not recommend(asked).plans
    found = recommend_or_stretch(asked)
    recipe = found.plans[0].estimate.recipe
    assert recipe.linear_attention is LinearAttention.FLA
    assert not recipe.tiled_mlp
    assert not recipe.offload_activations
    assert "flash-linear-attention and causal-conv1d" in found.notes[0]


@pytest.mark.sweep
def test_kernels_that_keep_a_run_within_its_limits_are_said_to_be_for_that():
    asked = query(model="qwen3.5-0.8b", gpu=("a100-sxm4-80gb:1",), seq_len=4096, images_per_sample=0, **LIMITED)
    assert not recommend(asked).plans
    found = recommend_or_stretch(asked)
    assert found.plans[0].estimate.recipe.linear_attention is LinearAttention.FLA
    assert found.notes[0].startswith("what fits as it is goes over the limits: ")


@pytest.mark.parametrize("changes", [{"seq_len": 2048}, DECIDED])
def test_samples_with_room_and_decided_ones_are_searched_as_before(changes):
    asked = query(**changes)
    assert recommend_or_stretch(asked) == recommend(asked)


@pytest.mark.sweep
def test_where_nothing_makes_room_what_is_lacked_is_the_least_with_all_of_it():
    longer = query(gpu=("rtx-4060:1",), seq_len=400_000)
    found, as_before = recommend_or_stretch(longer), recommend(longer)
    assert not found.plans
    (now,), (before,) = found.rejected, as_before.rejected
    assert now.reason.startswith("with --tiled-mlp and --offload-activations needs ")
    assert now.needed_bytes < before.needed_bytes


def on_host(gib: int, seq_len: int = 8192):
    pinned = {"offload_activations": True, "activation_checkpointing": True, "zero_stage": "none", "loss": "chunked"}
    return recommend(query(gpu=("rtx-4090:1",), seq_len=seq_len, host_ram=gib, global_batch=16, **pinned))


def test_layer_inputs_on_the_host_are_of_as_many_samples_as_it_has_room_for():
    """Host memory goes with the micro batch then: one is planned for which it is enough, not none."""
    sizes = []
    for gib in (6, 8, 16):
        estimate = on_host(gib).plans[0].estimate
        assert estimate.host.peak_bytes <= gib * GIB
        sizes.append(estimate.recipe.micro_batch)
    assert sizes == sorted(set(sizes))
    (rejected,) = on_host(4, seq_len=65_536).rejected
    assert rejected.reason.startswith("the host needs")
