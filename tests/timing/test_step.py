"""Seconds of a whole step: its parts, its range, what bounds it, and laws of links and cards."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import shipped_gpus, shortened
from vlmplan.communication import communication_seconds, step_collectives
from vlmplan.estimation import Estimate, Estimator
from vlmplan.hardware import Cluster, Gpu, MatmulPeaks, Node
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.timing import StepTime, TimedStep, besides_computing, micro_batch_seconds, peak_flops_per_second
from vlmplan.timing.roofline import BusySeconds
from vlmplan.workload import Workload

GPU = shipped_gpus()["a100-sxm4-80gb"]
FILES = shortened("tinyllama-1.1b", num_hidden_layers=2)


@cache
def estimator(method: Method, zero_stage: int | None, precision: Precision) -> Estimator:
    recipe = Recipe(method=method, zero_stage=zero_stage, precision=precision)
    return Estimator(Workload(model=FILES, seq_len=256), recipe)


def estimate(
    gpu: Gpu = GPU, num_gpus: int = 4, num_nodes: int = 1, rate: float | None = None, **changes: Any
) -> Estimate:
    recipe = Recipe(**{"zero_stage": 2} | changes)
    on = Cluster(node=Node(gpu=gpu, num_gpus=num_gpus), num_nodes=num_nodes, inter_node_bytes_per_second=rate)
    return estimator(recipe.method, recipe.zero_stage, recipe.precision).estimate(recipe, on)


def test_step_is_the_sum_of_its_parts():
    step = estimate(zero_stage=3, offload_optimizer=Offload.CPU, offload_params=Offload.CPU).step_time
    assert step.total == pytest.approx(math.fsum(step.as_json().values()))
    assert set(step.as_json()) == {*step._fields} - {"generation", "scoring"}  # those are GRPO's


def test_speed_is_samples_by_step_seconds():
    found = estimate(micro_batch=3, grad_accum=5)
    assert found.samples_per_step == 3 * 5 * 4
    assert found.samples_per_second == pytest.approx(3 * 5 * 4 / found.step_seconds)
    assert found.tokens_per_second == pytest.approx(3 * 5 * 4 * 256 / found.step_seconds)
    assert found.num_steps == -(-10_000 // (3 * 5 * 4))
    assert found.run_seconds == pytest.approx(found.num_steps * found.step_seconds)


def test_accumulation_repeats_the_micro_batch_and_not_the_update():
    once, often = (estimate(grad_accum=count).step_time for count in (1, 7))
    for name in ("forward", "recompute", "backward"):
        assert getattr(often, name) == pytest.approx(7 * getattr(once, name))
    assert often.optimizer == once.optimizer
    assert often.fixed == once.fixed


UNKNOWN = {
    "bandwidth": {"memory_bandwidth_bytes_per_second": None},
    "peak": {"peak_flops_per_second": MatmulPeaks()},
    "link": {"has_nvlink": False, "pcie_gen": None},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_speed_gives_an_unknown_time_and_known_memory(what: str):
    found = estimate(replace(GPU, **UNKNOWN[what]))
    assert found.step_time is found.step_seconds is found.run_seconds is None
    assert found.samples_per_second is found.tokens_per_second is None
    assert found.peak_allocated_bytes == estimate().peak_allocated_bytes


def test_unknown_link_does_not_matter_to_one_gpu_unless_it_offloads():
    lonely = replace(GPU, pcie_gen=None, has_nvlink=False)
    assert estimate(lonely, 1, zero_stage=None).step_time is not None
    assert estimate(lonely, 1, offload_optimizer=Offload.CPU).step_time is None


@pytest.mark.parametrize("gpu", shipped_gpus().values(), ids=shipped_gpus())
def test_every_shipped_card_has_a_time_or_none_that_is_known(gpu: Gpu):
    precision = Precision.BF16 if gpu.supports_bf16 else Precision.FP16
    recipe = Recipe(zero_stage=2, precision=precision)
    seconds = micro_batch_seconds(estimator(Method.FULL, 2, precision).trace(recipe, None), gpu, recipe)
    assert seconds is None or min(seconds.phases) > 0
    peaks = gpu.peak_flops_per_second
    peak = peaks.bf16 if gpu.supports_bf16 else peaks.fp16
    assert (seconds is None) == (peak is None or gpu.memory_bandwidth_bytes_per_second is None)


@pytest.mark.parametrize(
    ("precision", "peak"),
    [(Precision.BF16, 2e12), (Precision.BF16_PURE, 2e12), (Precision.FP16, 3e12)],
)
def test_peak_is_that_of_the_type_that_is_multiplied(precision: Precision, peak: float):
    gpu = replace(GPU, peak_flops_per_second=MatmulPeaks(bf16=2e12, fp16=3e12, tf32=5e12, fp32=7e12))
    assert peak_flops_per_second(gpu, Recipe(precision=precision)) == peak


def test_card_without_tensor_cores_multiplies_float32_by_its_own_rate():
    gpu = replace(GPU, peak_flops_per_second=MatmulPeaks(fp32=7e12))
    assert peak_flops_per_second(gpu, Recipe(precision=Precision.FP32)) == 7e12


# Laws

STAGES = st.integers(0, 3)
FACTORS = st.floats(0.01, 100)


@settings(max_examples=25)
@given(STAGES, FACTORS, FACTORS)
def test_slower_link_never_makes_a_step_faster(stage: int, one: float, other: float):
    slow, fast = (
        estimate(replace(GPU, nvlink_bytes_per_second=factor * 300e9), zero_stage=stage).step_seconds
        for factor in sorted((one, other))
    )
    assert slow >= fast


@settings(max_examples=25)
@given(STAGES, FACTORS, FACTORS)
def test_slower_network_never_makes_a_step_faster(stage: int, one: float, other: float):
    slow, fast = (
        estimate(num_nodes=2, rate=factor * 12e9, zero_stage=stage).step_seconds for factor in sorted((one, other))
    )
    assert slow >= fast


@settings(max_examples=25)
@given(FACTORS, FACTORS)
def test_higher_bandwidth_never_makes_a_step_slower(one: float, other: float):
    low, high = (
        estimate(replace(GPU, memory_bandwidth_bytes_per_second=factor * 2e12)).step_seconds
        for factor in sorted((one, other))
    )
    assert low >= high


@settings(max_examples=25)
@given(FACTORS, FACTORS)
def test_higher_peak_never_makes_a_step_slower(one: float, other: float):
    low, high = (
        estimate(replace(GPU, peak_flops_per_second=MatmulPeaks(bf16=factor * 3e14))).step_seconds
        for factor in sorted((one, other))
    )
    assert low >= high


@settings(max_examples=20)
@given(st.integers(1, 64), st.integers(1, 64))
def test_larger_micro_batch_never_takes_less_time(one: int, other: int):
    small, large = (estimate(micro_batch=size).step_seconds for size in sorted((one, other)))
    assert small <= large


def test_no_step_runs_above_the_peak_of_its_cards():
    for stage in (0, 1, 2, 3):
        found = estimate(micro_batch=16, zero_stage=stage)
        causal = found.flops_per_step  # of each GPU, causal attention counted whole
        assert causal / found.step_seconds < GPU.peak_flops_per_second.bf16


def test_offloading_takes_time_and_nvme_more_than_host_memory():
    kept = estimate(zero_stage=3).step_time
    cpu, nvme = (
        estimate(zero_stage=3, offload_optimizer=where, offload_params=where).step_time
        for where in (Offload.CPU, Offload.NVME)
    )
    assert kept.offload == 0
    assert 0 < cpu.offload < nvme.offload
    assert cpu.optimizer == 0 < kept.optimizer


def test_overlapped_collectives_hide_behind_backward_and_its_recomputation_and_no_longer():
    hidden, shown = (estimate(zero=ZeroSettings(overlap_comm=overlaps)).step_time for overlaps in (True, False))
    assert 0 < hidden.communication < shown.communication
    assert shown.communication - hidden.communication <= shown.recompute + shown.backward
    assert hidden.backward == shown.backward


# The range, and what bounds a step

RECIPES = st.fixed_dictionaries(
    {
        "zero_stage": STAGES,
        "micro_batch": st.integers(1, 32),
        "grad_accum": st.integers(1, 8),
        "activation_checkpointing": st.booleans(),
        "optimizer": st.sampled_from(OptimizerKind),
        "zero": st.builds(ZeroSettings, overlap_comm=st.booleans()),
        "method": st.sampled_from((Method.FULL, Method.LORA)),
    }
)
CARDS = st.sampled_from([gpu for gpu in shipped_gpus().values() if gpu.supports_bf16])


@settings(max_examples=100, deadline=None)
@given(RECIPES, CARDS, st.integers(1, 8), st.integers(1, 3), st.floats(1e9, 1e11))
def test_range_encloses_what_is_expected_of_any_recipe(
    recipe: dict[str, Any], gpu: Gpu, num_gpus: int, num_nodes: int, rate: float
):
    timed = estimate(gpu, num_gpus, num_nodes, rate, **recipe).timed
    if timed is not None:
        assert timed.fast_seconds <= timed.expected.total <= timed.slow_seconds


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(Offload), st.sampled_from(Offload))
def test_range_encloses_what_is_expected_of_offload(optimizer: Offload, params: Offload):
    timed = estimate(zero_stage=3, offload_optimizer=optimizer, offload_params=params).timed
    assert timed.fast_seconds < timed.expected.total < timed.slow_seconds


def test_work_and_waiting_of_the_gpu_are_its_phases():
    timed = estimate(grad_accum=3).timed
    step = timed.expected
    assert timed.work.total + timed.waiting == pytest.approx(step.forward + step.recompute + step.backward)
    assert math.fsum(timed.as_json().values()) == pytest.approx(timed.work.total + timed.waiting)


ZEROS = dict.fromkeys(("forward", "recompute", "backward", "communication", "optimizer", "offload", "images"), 0.0)
NONE = {"work": BusySeconds(), "waiting": 0.0, "slow_bound": ""}
LARGEST = {
    "matrix products": ({}, {"work": BusySeconds(matmuls=5, attention=4, memory=4)}),
    "attention": ({}, {"work": BusySeconds(matmuls=4, attention=5, memory=4)}),
    "memory bandwidth": ({"optimizer": 3}, {"work": BusySeconds(matmuls=4, memory=2)}),
    "the host's launches of small operations": ({"optimizer": 4}, {"work": BusySeconds(matmuls=4), "waiting": 4.5}),
    "communication between GPUs": ({"communication": 5}, {"work": BusySeconds(matmuls=4)}),
    "offload to the host": ({"offload": 5}, {"work": BusySeconds(matmuls=4)}),
    "opening images on the host": ({"images": 5}, {"work": BusySeconds(matmuls=4)}),
    "generating answers": ({"generation": 5}, {"work": BusySeconds(matmuls=4)}),
    "scoring answers": ({"scoring": 5, "generation": 4}, {"work": BusySeconds(matmuls=4)}),
}


@pytest.mark.parametrize("name", LARGEST)
def test_step_is_bound_by_what_takes_most_of_it(name: str):
    parts, gpu = LARGEST[name]
    step = StepTime(**(ZEROS | parts))
    assert TimedStep(expected=step, slow_seconds=9, fast_seconds=1, **(NONE | gpu)).bound == name


def test_search_and_estimate_time_a_step_alike():
    found = estimate(zero_stage=3)
    trace = estimator(Method.FULL, 3, Precision.BF16).trace(found.recipe, GPU.compute_capability)
    phases = micro_batch_seconds(trace, GPU, found.recipe).phases
    table = estimator(Method.FULL, 3, Precision.BF16).table
    besides = besides_computing(table, found.collectives, found.recipe, found.cluster, found.workload)
    assert besides is not None
    assert besides.step_seconds(phases) == pytest.approx(found.step_seconds, rel=1e-12)


def test_images_are_opened_between_the_steps_of_a_vision_model():
    files = shortened("qwen2-vl-2b", num_hidden_layers=2)
    on = Cluster(node=Node(gpu=GPU, num_gpus=1))
    recipe = Recipe(micro_batch=2)
    shown, text = (
        Estimator(Workload(model=files, seq_len=512, images_per_sample=num), recipe).estimate(recipe, on).step_time
        for num in (1, 0)
    )
    assert text.images == 0 < shown.images
    assert shown.total == pytest.approx(math.fsum(shown.as_json().values()))


@pytest.mark.parametrize("stage", [1, 2])
def test_what_the_update_sends_hides_behind_nothing(stage: int):
    # The longer the micro batches the more hides, but the weights are gathered after them all.
    found = estimate(zero_stage=stage, micro_batch=64, zero=ZeroSettings(overlap_comm=True))
    trace = estimator(Method.FULL, stage, Precision.BF16).trace(found.recipe, GPU.compute_capability)
    table = estimator(Method.FULL, stage, Precision.BF16).table
    sent = communication_seconds(step_collectives(table, found.recipe, num_ranks=4, trace=trace), found.cluster)
    assert 0 < sent.step <= found.step_time.communication < sent.total


def test_images_that_workers_open_hide_behind_the_step_or_are_waited_for():
    """Of one worker a step takes what it opens, if that is more than all else; of enough of them nothing is seen."""
    files = shortened("llava-1.5-7b", num_hidden_layers=2)
    gpu = shipped_gpus()["h100-sxm"]
    on, recipe = Cluster(node=Node(gpu=gpu, num_gpus=1)), Recipe(micro_batch=2)
    workload = Workload(model=files, seq_len=1024, images_per_sample=1, image_width=4000, image_height=3000)

    def step(workers: int) -> Any:
        estimator = Estimator(replace(workload, loader_workers=workers), recipe)
        found = estimator.estimate(recipe, on)
        besides = besides_computing(estimator.table, found.collectives, recipe, on, found.workload)
        phases = micro_batch_seconds(estimator.trace(recipe, gpu.compute_capability), gpu, recipe)
        assert besides.step_seconds(phases.phases) == pytest.approx(found.step_seconds)
        return found.step_time

    alone, one, many = step(0), step(1), step(999)
    others = alone.total - alone.images
    assert others < alone.images
    assert one.total == pytest.approx(alone.images)
    assert one.images == pytest.approx(alone.images - others)
    assert (many.images, many.total) == (0, pytest.approx(others))
