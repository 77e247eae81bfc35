"""Workloads: the amount of training, and values that no workload can have."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.errors import InputError
from vlmplan.model_types.encoder_decoder import DEFAULT_TARGET_LEN
from vlmplan.workload import MAX_NUM_SAMPLES, ModelFiles, Workload

FILES = ModelFiles(id="some", config={"model_type": "llama"})


@given(st.integers(1, 10**9), st.floats(0.01, 100))
def test_samples_seen_are_those_of_the_set_times_epochs(num_samples: int, epochs: float):
    assert Workload(model=FILES, num_samples=num_samples, epochs=epochs).total_samples == num_samples * epochs


LEAST = {
    "seq_len": 1,
    "images_per_sample": 0,
    "image_width": 1,
    "image_height": 1,
    "num_samples": 1,
    "global_batch": 1,
}


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_counts_have_a_least_value_that_is_allowed_and_named_where_it_is_not_met(name: str, least: int):
    assert getattr(Workload(model=FILES, **{name: least}), name) == least
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is {least - 1}; {least} or more is needed"):
        Workload(model=FILES, **{name: least - 1})


@pytest.mark.parametrize("name", LEAST)
def test_counts_beyond_all_measure_are_refused(name: str):
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is .*; at most "):
        Workload(model=FILES, **{name: MAX_NUM_SAMPLES + 1})


@pytest.mark.parametrize("epochs", [0.0, -1.0, float("nan"), float("inf")])
def test_epochs_are_a_number_above_0(epochs: float):
    with pytest.raises(InputError, match=f"--epochs is {epochs:g}"):
        Workload(model=FILES, epochs=epochs)


def test_part_of_an_epoch_is_allowed():
    assert Workload(model=FILES, num_samples=1000, epochs=0.25).total_samples == 250


def test_json_says_a_size_of_images_only_where_there_are_some():
    with_images = Workload(model=FILES, images_per_sample=2, image_width=336, image_height=672).as_json()
    assert (with_images["images_per_sample"], with_images["image_size"]) == (2, "336x672")
    assert Workload(model=FILES).as_json()["image_size"] is None


def test_model_type_is_empty_where_the_config_has_none():
    assert FILES.model_type == "llama"
    assert ModelFiles(id="other", config={}).model_type == ""


def test_answers_have_a_length_of_their_own_where_a_decoder_writes_them():
    both = ModelFiles(id="a bart", config={"model_type": "bart"})
    assert Workload(model=both).target_tokens == DEFAULT_TARGET_LEN
    assert Workload(model=both, target_len=7).target_tokens == 7
    assert Workload(model=both, target_len=7).as_json()["target_len"] == 7
    assert Workload(model=FILES).target_tokens == 0
    with pytest.raises(InputError, match="--target-len is 0; 1 or more is needed"):
        Workload(model=both, target_len=0)


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"model_type": "bart", "is_encoder_decoder": False}])
def test_the_length_of_answers_is_refused_where_one_stack_reads_both(config: dict[str, Any]):
    with pytest.raises(InputError, match="--target-len 7 is for models with an encoder and a decoder"):
        Workload(model=ModelFiles(id="some", config=config), target_len=7)
