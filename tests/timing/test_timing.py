"""Seconds of a step: FLOPs against closed formulas, a roofline that no card beats, laws of links and cards.

Formulas of a Llama with L layers of width h, inner width i, k key-value heads of width d and V words over T tokens:
2 operations per weight and token forward, twice that backward; attention 4·T²·h a layer forward, 2.5 times that
backward, because the fused kernel computes the scores once more (Dao, arXiv 2307.08691, section 4.1).
"""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlmplan.throughput import MicroBatchSeconds, busy_seconds, micro_batch_seconds, optimizer_seconds, step_flops

from planned import model_files, shipped_gpus, shortened
from small_models import table_of
from vlmplan import throughput
from vlmplan.architecture.trace import Matmul, PhaseWork, Work
from vlmplan.estimate import Estimate, Estimator
from vlmplan.hardware import Cluster, Gpu, MatmulPeaks, Node
from vlmplan.recipe import LossKind, Method, Offload, OptimizerKind, Precision, Recipe, ZeroSettings
from vlmplan.workload import Workload

LLAMA = model_files("tinyllama-1.1b").config
L, H, I_WIDTH, V = 22, 2048, 5632, 32000
KV_WIDTH = 4 * 64
T = 3 * 128
LINEARS_OF_A_LAYER = 2 * H * H + 2 * H * KV_WIDTH + 3 * H * I_WIDTH


def works(loss: LossKind = LossKind.FULL, *, checkpoints: bool = False, micro_batch: int = 1):
    recipe = Recipe(activation_checkpointing=checkpoints, loss=loss, micro_batch=micro_batch)
    workload = Workload(model=model_files("tinyllama-1.1b"), seq_len=T)
    return Estimator(workload, recipe).trace(recipe, (8, 0))


def products(work: PhaseWork) -> int:
    return work.flops - work.attention_flops


# Floating point operations


def test_model_is_the_one_of_the_formulas():
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    assert tuple(LLAMA[name] for name in names) == (L, H, I_WIDTH, V)


def test_forward_is_two_operations_per_weight_and_token():
    forward, _, _ = works().works()
    assert products(forward) == 2 * T * (L * LINEARS_OF_A_LAYER + V * H)
    assert forward.attention_flops == L * 4 * T * T * H


def test_backward_is_twice_forward_and_two_and_a_half_times_its_attention():
    forward, _, backward = works().works()
    assert products(backward) == 2 * products(forward)
    assert 2 * backward.attention_flops == 5 * forward.attention_flops


def test_whole_step_is_six_operations_per_weight_and_token_and_attention():
    num_weights = L * LINEARS_OF_A_LAYER + V * H
    assert step_flops(works()) == 6 * num_weights * T + L * (4 + 10) * T * T * H


def test_recomputation_is_one_more_forward_of_the_layers_but_for_the_last_product_of_each():
    # Nothing of the last product is saved, so torch's checkpointing stops before it.
    _, recompute, _ = works(checkpoints=True).works()
    assert products(recompute) == 2 * T * L * (LINEARS_OF_A_LAYER - H * I_WIDTH)
    assert recompute.attention_flops == L * 4 * T * T * H
    assert works(checkpoints=False).works()[1].flops == 0


def test_recomputation_leaves_forward_and_backward_alone():
    kept, checkpointed = works().works(), works(checkpoints=True).works()
    assert (kept[0].flops, kept[2].flops) == (checkpointed[0].flops, checkpointed[2].flops)


def test_chunked_loss_computes_what_the_full_one_does_earlier():
    full, chunked = works(LossKind.FULL), works(LossKind.CHUNKED)
    assert step_flops(full) == step_flops(chunked)
    assert products(chunked.works()[0]) - products(full.works()[0]) == 2 * 2 * T * V * H


@pytest.mark.parametrize("micro_batch", [2, 3, 7])
def test_operations_are_proportional_to_the_micro_batch(micro_batch: int):
    assert step_flops(works(micro_batch=micro_batch)) == micro_batch * step_flops(works())


def test_lora_saves_the_gradients_of_weights_and_adds_its_own_products():
    full, lora = (
        Estimator(Workload(model=model_files("tinyllama-1.1b"), seq_len=T), recipe).trace(recipe, (8, 0)).works()
        for recipe in (Recipe(loss=LossKind.FULL), Recipe(method=Method.LORA, loss=LossKind.FULL, lora_rank=8))
    )
    assert products(lora[0]) > products(full[0])
    assert products(lora[2]) < 0.6 * products(full[2])


# The roofline

WORK = st.builds(
    Work,
    matmuls=st.lists(st.builds(Matmul, st.integers(0, 10**15), st.integers(0, 10**12)), max_size=4),
    attention_flops=st.integers(0, 10**15),
    elementwise_bytes=st.integers(0, 10**13),
    num_kernels=st.integers(0, 10**5),
)
RATES = {"flops_per_second": st.floats(1e12, 1e15), "bytes_per_second": st.floats(1e11, 1e13)}


def phase(work: Work, count: int = 1) -> PhaseWork:
    found = PhaseWork()
    found.add(work, count)
    return found


@given(work=WORK, **RATES)
def test_no_work_is_done_above_the_peak_or_moved_above_the_bandwidth(
    work: Work, flops_per_second: float, bytes_per_second: float
):
    seconds = busy_seconds(phase(work), flops_per_second=flops_per_second, bytes_per_second=bytes_per_second)
    assert work.flops <= seconds * flops_per_second
    assert sum(matmul.hbm_bytes for matmul in work.matmuls) <= seconds * bytes_per_second + 1
    assert work.elementwise_bytes <= seconds * bytes_per_second + 1


@given(work=WORK, count=st.integers(1, 100), **RATES)
def test_equal_layers_take_as_often_the_time_of_one(
    work: Work, count: int, flops_per_second: float, bytes_per_second: float
):
    rates = {"flops_per_second": flops_per_second, "bytes_per_second": bytes_per_second}
    assert busy_seconds(phase(work, count), **rates) == pytest.approx(count * busy_seconds(phase(work), **rates))


def test_large_product_is_bound_by_operations_and_a_thin_one_by_bytes():
    rates = {"flops_per_second": 1e14, "bytes_per_second": 1e12}
    large, thin = Work(matmuls=[Matmul(7 * 10**14, 11)]), Work(matmuls=[Matmul(7, 11 * 10**11)])
    assert busy_seconds(phase(large), **rates) == pytest.approx(7 / throughput.MATMUL_EFFICIENCY)
    assert busy_seconds(phase(thin), **rates) == pytest.approx(1.1 / throughput.BANDWIDTH_EFFICIENCY)


def test_half_of_causal_attention_is_skipped():
    rates = {"flops_per_second": 1e14, "bytes_per_second": 1e12}
    whole = Work(attention_flops=3 * 10**14)
    causal = Work(attention_flops=3 * 10**14, causal_attention_flops=3 * 10**14)
    assert busy_seconds(phase(causal), **rates) == pytest.approx(busy_seconds(phase(whole), **rates) / 2)


TRIPLES = st.tuples(*[st.floats(0, 10)] * 3)
SECONDS = st.builds(MicroBatchSeconds, busy=TRIPLES, launches=TRIPLES)


@given(SECONDS)
def test_each_phase_takes_its_launches_or_its_work_whichever_is_longer(seconds: MicroBatchSeconds):
    assert seconds.phases == tuple(max(pair) for pair in zip(seconds.busy, seconds.launches, strict=True))


@given(SECONDS, SECONDS, st.floats(0, 1))
def test_micro_batch_between_two_others_takes_no_longer_than_the_secant(low, high, fraction):
    between = low.towards(high, fraction).phases
    for a, b, middle in zip(low.phases, high.phases, between, strict=True):
        assert middle <= a + (b - a) * fraction + 1e-9
        assert middle >= 0


# Steps

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
    assert set(step.as_json()) == {*type(step).__slots__}


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
    assert throughput.peak_flops_per_second(gpu, Recipe(precision=precision)) == peak


def test_card_without_tensor_cores_multiplies_float32_by_its_own_rate():
    gpu = replace(GPU, peak_flops_per_second=MatmulPeaks(fp32=7e12))
    assert throughput.peak_flops_per_second(gpu, Recipe(precision=Precision.FP32)) == 7e12


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


def test_overlapped_collectives_hide_behind_backward_and_no_longer():
    hidden, shown = (estimate(zero=ZeroSettings(overlap_comm=overlaps)).step_time for overlaps in (True, False))
    assert 0 < hidden.communication < shown.communication
    assert shown.communication - hidden.communication <= shown.backward
    assert hidden.backward == shown.backward


# The update


def update(recipe: Recipe, num_ranks: int = 1) -> float:
    return optimizer_seconds(table_of([10**9]), recipe, num_ranks=num_ranks, gpu=GPU)


BANDWIDTH = 2039e9 * throughput.BANDWIDTH_EFFICIENCY


def test_update_reads_gradient_weight_and_moments_and_writes_weight_and_moments():
    assert update(Recipe(zero_stage=0)) == pytest.approx(1e9 * (4 + 4 + 8 + 4 + 8) / BANDWIDTH)
    assert update(Recipe(zero_stage=0, optimizer=OptimizerKind.SGD)) == pytest.approx(
        1e9 * (4 + 4 + 4 + 4 + 4) / BANDWIDTH
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_update_takes_a_rank_its_share(stage: int):
    recipe = Recipe(zero_stage=stage)
    assert update(recipe, 8) == pytest.approx(update(recipe, 1) / 8)
    assert update(Recipe(zero_stage=0), 8) == update(Recipe(zero_stage=0), 1)
