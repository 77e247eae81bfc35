"""The formulas beside a matrix of rehearsals that is kept, some of which are done anew.

Limits hold for the highest moment of every phase and of the whole run. No constant of the memory model comes from here.
"""

import json
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import pytest
from rehearse_all import PACKAGES, as_text, rehearsed
from rehearsed_cases import CASES, HERE, NAMES, estimated
from rehearsed_report import (
    COMPONENTS,
    GOLDEN,
    TABLE,
    compared,
    grown,
    grown_error,
    highest,
    is_close,
    loading,
    rehearsed_flops,
    reserved_error,
    table,
)

from planned import BUNDLED_LOSSES
from vlmplan.recipe.choices import Method, Offload
from vlmplan.units import MIB

MEDIAN_ERROR, LARGEST_ERROR, LARGEST_SHORTFALL = 0.0005, 0.015, 0.01
"""What is above one percent is a plan of the order of a set that takes most (``docs/accuracy.md``, "Known limits")."""
CLOSE_PARTS, LARGEST_GAP = 0.95, 0.02
"""So many phases have every component within so much of the phase's peak."""
SAMPLE = ("gpt2 lora stage 1 4", "qwen2-vl-2b full stage 3 4")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", NAMES)
def test_an_estimate_of_a_phase_is_at_most_one_and_a_half_percent_above_its_rehearsal_and_one_below(case: str):
    phases = compared(case)
    for phase in (*phases, highest(phases), *loading(case)):
        assert -LARGEST_SHORTFALL <= phase.error <= LARGEST_ERROR, phase


@pytest.mark.sweep
def test_half_of_the_estimates_are_within_a_twentieth_of_a_percent():
    assert median(abs(highest(compared(case)).error) for case in NAMES) <= MEDIAN_ERROR


@pytest.mark.sweep
def test_what_bytes_are_for_is_as_in_rehearsals_in_nineteen_phases_of_twenty():
    """What differs besides has two names: a tied head's two gradients before they are added, gradients that autograd
    casts, weights that are dequantized, and copies of ZeRO-0's gradients while it is made."""
    gaps = [max(abs(phase.gap(part)) for part in COMPONENTS) for case in NAMES for phase in compared(case)]
    assert sum(gap <= LARGEST_GAP for gap in gaps) >= CLOSE_PARTS * len(gaps)


RESERVED_MEDIAN_ERROR, RESERVED_LARGEST_ERROR, RESERVED_CLOSE = 0.0005, 0.15, 0.95
"""Of what the native allocator reserves: half of the cases, every one, and the part that is at most 5 % over and 3 %
under.

No more can be said of a single case: where a large block has been freed, whatever small storage comes first decides
whether it is there for the next large one. Under ZeRO-3 a run need not reserve what another of the same plan does:
which weights a module waits for first is decided by addresses (``wait_order.py``), and a case rehearsed twice has been
1.7% apart. Nor does a rehearsal see what a product with packed weights unpacks.
"""


@pytest.mark.sweep
def test_what_the_native_allocator_reserves_is_mostly_within_five_percent_and_three_below():
    errors = {case: reserved_error(case) for case in NAMES}
    assert median(map(abs, errors.values())) <= RESERVED_MEDIAN_ERROR
    assert max(map(abs, errors.values())) <= RESERVED_LARGEST_ERROR, errors
    assert sum(map(is_close, errors.values())) >= RESERVED_CLOSE * len(errors), errors


GROWN_CLOSE = 0.95
"""Of all cases the part whose growing segments are planned within 1%."""


@pytest.mark.long
@pytest.mark.sweep
def test_what_growing_segments_reserve_is_mostly_within_one_percent():
    errors = {case: grown_error(case) for case in NAMES}
    assert median(map(abs, errors.values())) <= 0.0005
    assert sum(abs(error) <= 0.01 for error in errors.values()) >= GROWN_CLOSE * len(errors), errors


def test_growing_segments_keep_pages_while_there_is_room_and_these_do_not_decide():
    case = "qwen2-vl-2b full stage 3 4"
    found = grown(case)
    assert grown_error(case) == pytest.approx(0, abs=0.005)
    assert found.device.reserved_bytes < 0.9 * found.reserved_with_room_bytes
    assert found.device.reserved_bytes - found.peak_allocated_bytes < 2 * MIB


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", NAMES)
def test_floating_point_operations_are_those_that_torch_counts(case: str):
    assert estimated(case).flops_per_step == pytest.approx(rehearsed_flops(case), rel=0.001)


def test_the_matrix_meets_every_value_of_every_factor():
    estimates = [estimated(case) for case in NAMES]
    recipes = [estimate.recipe for estimate in estimates]
    assert len(NAMES) >= 60
    assert len({estimate.workload.model.model_type for estimate in estimates}) >= 8
    seeing = [estimate for estimate in estimates if estimate.workload.images_per_sample]
    assert len({estimate.workload.model.model_type for estimate in seeing}) >= 5
    found = {(recipe.method, recipe.zero_stage) for recipe in recipes}
    expected = {(method, stage) for method in Method for stage in (None, 0, 1, 2, 3)} - {
        (Method.QLORA, 3),
        (Method.LORA_8BIT, 3),
    }
    assert expected <= found
    assert {estimate.cluster.num_gpus for estimate in estimates} >= {1, 2, 4, 8, 64}
    assert {estimate.workload.seq_len for estimate in estimates} >= {512, 8192}
    assert {recipe.grad_accum for recipe in recipes} >= {1, 4}
    assert {recipe.loss for recipe in recipes} == set(BUNDLED_LOSSES)
    assert {recipe.offload_optimizer for recipe in recipes} >= {Offload.NONE, Offload.CPU}
    assert {recipe.offload_params for recipe in recipes} >= {Offload.NONE, Offload.CPU}
    assert {recipe.zero_stage for recipe in recipes if recipe.evaluation is not None} == {None, 0, 2, 3}
    buckets = {recipe.zero.reduce_bucket_size for recipe in recipes}
    assert {5_000_000, 500_000_000} <= buckets
    checkpointed = {
        (estimate.recipe.activation_checkpointing, estimate.recipe.vision_activation_checkpointing)
        for estimate in seeing
    }
    assert len(checkpointed) == 4


def test_what_is_kept_is_of_these_cases():
    assert tuple(GOLDEN["cases"]) == NAMES
    assert tuple(GOLDEN["versions"]) == PACKAGES
    assert (HERE / "golden.json").read_text() == as_text(GOLDEN)
    assert {case["model"] for case in CASES["cases"]} == set(CASES["models"])


@pytest.mark.sweep
@pytest.mark.parametrize("case", SAMPLE)
def test_a_rehearsal_done_anew_is_the_kept_one_to_the_byte(case: str):
    for package, kept in GOLDEN["versions"].items():
        if _installed(package) != kept:
            pytest.skip(f"made with {package} {kept}")
    assert json.loads(json.dumps(rehearsed(case))) == GOLDEN["cases"][case]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def test_the_table_is_up_to_date():
    assert TABLE.read_text() == table()
