"""Every shim does what it is for, and is still needed: without it the libraries fail in the way that it says."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from forked import outcomes_of

HERE = Path(__file__).parent
SHARDS, WHOLE, PADDED = 2 * (45 + 1), 2 * (7 * 101 + 7), 2 * 16 * (45 + 1)
"""Bytes of a Linear(101, 7) in two bytes each on one of 16 ranks, on all, and padded to shards of equal size."""
GATHERED = {
    "shapes": [[7, 101], [7], [45], [1]],
    "peak_bytes": SHARDS + WHOLE + WHOLE + PADDED + (PADDED - WHOLE),  # with gradients, their buffer and its padding
    "live_bytes": SHARDS + WHOLE + PADDED,
    "messages": [["broadcast", 2, WHOLE], ["allgather_base", 1, PADDED], ["reduce_scatter_base", 1, PADDED]],
}
COPIED = {"is a parameter": True, "has memory of its own": True}
LIGER_BYTES = 4 * 64 * 16 + 4 * 16 * 64 + (4 + 1) * 64
"""A gradient, a chunk of logits in four bytes each, and of each token its loss and whether it counts."""
ANSWERS: dict[str, Any] = {
    "one_kind_of_keys": "moved",
    "patched_data_setter": "gpu",
    "making_parameters_of_fake_tensors": ["Params4bit", "Parameter"],
    "copying_nothing_but_data": COPIED | {"has views in it": True, "has the original's attributes": False},
    "moving_modules_in_place": [True, True, True],
    "taking_fake_tensors_for_real": True,
    "raising_after_backward": ["(3, 5)", "(3, 5)"],
    "knowing_used_weights": [1, ["allreduce", 2, 2 * 3 * 5 * 4 + 2 * 4]],
    "trusting_other_ranks": None,
    "looping_over_no_ranks": {"an operation a rank": False, **GATHERED},
    "listing_known_values": [[[2, 3], [5, 7]], 0],
    "forgetting_casts": 0,
    "asking_for_the_device_by_default": [False, True],
    "making_numbers_on_the_host": "gpu",
    "recording_no_streams": None,
    "making_tensors_of_tensors": [5, 7, 5, 7],
    "updating_nothing_on_the_host": "exp_avg exp_avg_sq step",
    "waiting_on_own_streams": True,
    # A number for each piece of 65,536 elements of the largest, and a root of the second moment of all.
    "taking_tensors_together": [4 * 3 * (5 + 1), 4 * (5 * 65_536 + 5 * 65_536 + 1 + 3)],
    "flattening_gathered_lists": [4 * 512 * 4, 0],
    "deriving_shapes_unseen": 3 * 512 * 4,
    "counting_bytes_as_addresses": [True, False],
    "computing_no_softmax_of_liger": LIGER_BYTES,
    "paging_in_host_memory": ["cpu"],
    "counting_saved_bytes": 2 * 3 * 5 + 4 * 7,
    "flash_attention_from_torch": [3, 7, 50],
}
WITHOUT: dict[str, Any] = {
    "one_kind_of_keys": "incompatible tensor type",
    "patched_data_setter": "cpu",
    "making_parameters_of_fake_tensors": "not a subclass of the requested type",
    "copying_nothing_but_data": "Attempted to set the storage of a tensor",
    "moving_modules_in_place": "Couldn't swap Linear.weight",
    "taking_fake_tensors_for_real": False,
    "raising_after_backward": {signal.SIGABRT, "returned NULL without setting an exception"},  # threads race for it
    "knowing_used_weights": "local_used_map_tmp.data_ptr() != local_used_map_.data_ptr()",
    "trusting_other_ranks": "disagreement",
    "looping_over_no_ranks": {"an operation a rank": True, **GATHERED},
    "listing_known_values": [[[2, 3], [5, 7]], 7],
    "forgetting_casts": 1,
    "asking_for_the_device_by_default": [False, False],
    "making_numbers_on_the_host": "aten::empty_strided",
    "recording_no_streams": "unknown parameter type",
    "making_tensors_of_tensors": "aten::_local_scalar_dense",
    "updating_nothing_on_the_host": "cannot be built here",
    "waiting_on_own_streams": False,
    # All norms, one behind the other, and three tensors of one weight or the next while each is updated alone.
    "taking_tensors_together": [4 * 3, 4 * (5 * 65_536 + 2 * (5 * 65_536 + 1))],
    "flattening_gathered_lists": [0, 0],
    "deriving_shapes_unseen": 3 * 512 * 4 * 3 * 2,  # whole: both factors and the product
    "counting_bytes_as_addresses": [False, False],
    "computing_no_softmax_of_liger": LIGER_BYTES + 528,  # of one row in float32, twice, and of its sum
    "paging_in_host_memory": "cget_managed_ptr",
    "counting_saved_bytes": "Can't pickle",
    "flash_attention_from_torch": "FlashAttention2 has been toggled on",
}
"""What is found instead, part of what is raised, the signal that the process dies of, or a set of the two."""


@pytest.fixture(scope="module")
def outcomes():
    return outcomes_of(HERE / "shim_checks.py", [*ANSWERS, *(f"no {name}" for name in WITHOUT)])


@pytest.mark.sweep
@pytest.mark.parametrize("name", ANSWERS)
def test_shim_does_what_it_is_for(outcomes, name):
    assert outcomes[name] == {"found": ANSWERS[name]}


@pytest.mark.sweep
@pytest.mark.parametrize("name", WITHOUT)
def test_shim_is_still_needed(outcomes, name):
    outcome, expected = outcomes[f"no {name}"], WITHOUT[name]
    ends = (
        expected if isinstance(expected, set) else {expected} if isinstance(expected, str | signal.Signals) else set()
    )
    if "raised" in outcome:
        assert any(isinstance(end, str) and end in outcome["raised"] for end in ends), outcome
    elif "died" in outcome:
        assert os.WTERMSIG(outcome["died"]) in ends
    else:
        assert outcome == {"found": expected}
        assert expected != ANSWERS[name]


def test_no_shim_is_left_out():
    from vlmplan_trainer.rehearse import shims

    names = {shim.__name__ for shim in (*shims.SHIMS, *shims.DEVICE_SHIMS)}
    assert set(ANSWERS) == set(WITHOUT) == names | {"counting_saved_bytes", "flash_attention_from_torch"}
