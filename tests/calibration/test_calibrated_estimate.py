"""What a calibration changes of an estimate: seconds by what was measured, of the bytes the fixed ones alone."""

from dataclasses import replace

import pytest

from calibrations import calibration
from planned import cluster, of_few_layers, workload
from vlmplan.communication import link_bytes_per_second
from vlmplan.communication.links import LAUNCH_SECONDS, links_of
from vlmplan.communication.measured import measured_links
from vlmplan.estimation import Estimator, estimate, estimate_with_sizes
from vlmplan.hardware import Cluster
from vlmplan.memory.overhead import (
    HOPPER_STAGE_1_2_BYTES,
    ProcessGroup,
    context_bytes,
    nccl_bytes,
    process_bytes,
    workspace_bytes,
)
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, CheckpointKind, Offload, Precision
from vlmplan.timing import gpu_rates
from vlmplan.timing import rates as rates_module
from vlmplan.timing.host import image_seconds, offload_seconds
from vlmplan.timing.rates import CHECKPOINT_OPERATIONS, REENTRANT_OPERATIONS, RangedValue, Scenario
from vlmplan.timing.update import update_seconds

MODEL = of_few_layers("qwen2.5-0.5b")
SCENARIOS = ((Scenario.SLOW, 0.9), (Scenario.EXPECTED, 1.0), (Scenario.FAST, 1.2))
"""Of a rate whose quartiles are 0.9 and 1.2 of its median."""


def with_calibration(on: Cluster, num_ranks: int = 1, **values: float) -> Cluster:
    found = calibration(on.node.gpu.id, num_ranks, **values)
    return replace(on, node=replace(on.node, gpu=replace(on.node.gpu, calibration=found)))


@pytest.mark.parametrize(("scenario", "part"), SCENARIOS)
def test_rates_are_those_that_were_measured_by_type_and_kernel(scenario, part):
    gpu = with_calibration(
        cluster(),
        matmul_bf16=2e14,
        matmul_fp32=3e13,
        attention_sdpa_bf16=5e13,
        attention_flash_attention_2_bf16=7e13,
        memory_bandwidth=1.1e12,
    ).node.gpu
    flash = AttentionImplementation.FLASH_ATTENTION_2
    assert gpu_rates(gpu, Recipe(), scenario).matmul_flops_per_second == part * 2e14
    assert gpu_rates(gpu, Recipe(precision=Precision.FP32), scenario).matmul_flops_per_second == part * 3e13
    assert gpu_rates(gpu, Recipe(), scenario).attention_flops_per_second == part * 5e13
    assert gpu_rates(gpu, Recipe(attention=flash), scenario).attention_flops_per_second == part * 7e13
    assert gpu_rates(gpu, Recipe(), scenario).bytes_per_second == part * 1.1e12


def test_what_was_not_measured_stays_as_it_was():
    on, measured = cluster(), with_calibration(cluster(), matmul_bf16=2e14)
    for precision in (Precision.FP16, Precision.FP32):
        recipe = Recipe(precision=precision)
        assert gpu_rates(measured.node.gpu, recipe) == gpu_rates(on.node.gpu, recipe)
    assert gpu_rates(measured.node.gpu, Recipe()) != gpu_rates(on.node.gpu, Recipe())


def test_the_update_takes_its_bytes_by_the_bandwidth_of_the_optimizer():
    recipe = Recipe()
    table = Estimator(workload(MODEL), recipe).table
    ways = {
        "memory_bandwidth": with_calibration(cluster(), memory_bandwidth=1e12),
        "optimizer_bandwidth": with_calibration(cluster(), memory_bandwidth=1e12, optimizer_bandwidth=5e11),
    }
    seconds = {
        name: update_seconds(table, recipe, num_ranks=1, gpu=on.node.gpu, scenario=Scenario.EXPECTED)
        for name, on in ways.items()
    }
    assert seconds["optimizer_bandwidth"] == pytest.approx(seconds["memory_bandwidth"] * 1e12 / 5e11)


def test_offload_takes_adam_by_the_host_and_copies_by_both_directions():
    """A byte down and one up take 1/20e9 + 1/30e9 seconds."""
    recipe = Recipe(zero_stage=2, offload_optimizer=Offload.CPU)
    table = Estimator(workload(MODEL), recipe).table
    on = with_calibration(cluster(), host_adam_bandwidth=50e9, copy_to_host=20e9, copy_to_device=30e9)
    copied = table.num_trained * 2 * (1 / 20e9 + 1 / 30e9)
    assert offload_seconds(table, recipe, on) == pytest.approx(table.num_trained * 7 * 4 / 50e9 + copied)


def test_images_take_what_the_host_was_measured_to():
    seen = workload("qwen2-vl-2b", images_per_sample=3, image_width=1000, image_height=500)
    gpu = with_calibration(cluster(), image_seconds_per_megapixel=0.02).node.gpu
    assert image_seconds(seen, Recipe(micro_batch=2), gpu=gpu) == pytest.approx(3 * 2 * 1000 * 500 / 1e6 * 0.02)


MEASURED_LINKS = {"ring_bandwidth": 100e9, "sum_bandwidth": 150e9, "collective_seconds": 50e-6}


def test_links_are_measured_ones_among_as_many_gpus_alone():
    for num_gpus in (2, 4):
        on = with_calibration(cluster(num_gpus=num_gpus), 4, **MEASURED_LINKS)
        plain = links_of(cluster(num_gpus=num_gpus))
        links = measured_links(on)
        if num_gpus == 4:
            assert (links.local, links.local_sum) == (100e9, 150e9)
            # NCCL's fastest protocol for so little is LL: 6.6 us and 0.6 for each of three hops over NVLink
            assert links.launch_seconds == pytest.approx(50e-6 - (6.6 + 3 * 0.6) * 1e-6, abs=1e-7)
        else:
            assert links == plain
            assert links.launch_seconds == LAUNCH_SECONDS
        assert link_bytes_per_second(on) == link_bytes_per_second(cluster(num_gpus=num_gpus))


def test_the_network_of_several_nodes_stays_as_it_was():
    measured = measured_links(with_calibration(cluster(num_gpus=4, num_nodes=2), 4, **MEASURED_LINKS))
    assert measured.local == 100e9
    assert measured.network == links_of(cluster(num_gpus=4, num_nodes=2)).network


@pytest.mark.parametrize("zero_stage", [None, 2, 3])
def test_bytes_change_in_what_is_fixed_alone(zero_stage):
    on = cluster(num_gpus=2)
    values = {"context_bytes": 700e6, "nccl_bytes": 300e6, "cublas_workspace_bytes": 9e6}
    speeds = {"matmul_bf16": 1e14, "memory_bandwidth": 1e12, **MEASURED_LINKS}
    recipe = Recipe(zero_stage=zero_stage)
    before = estimate_with_sizes(workload(MODEL), recipe, on)
    after = estimate_with_sizes(workload(MODEL), recipe, with_calibration(on, 2, **values, **speeds))
    assert after.recipe == before.recipe
    is_hopper = on.node.gpu.compute_capability >= (9, 0)
    of_stage = HOPPER_STAGE_1_2_BYTES if is_hopper and zero_stage == 2 else 0
    assert (after.device.context_bytes, after.device.nccl_bytes) == (700_000_000, 300_000_000 + of_stage)
    workspaces = 2 * 9_000_000 - workspace_bytes(on.node.gpu)
    assert after.peak_allocated_bytes - before.peak_allocated_bytes == workspaces
    assert (after.host, after.disk, after.flops_per_step) == (before.host, before.disk, before.flops_per_step)
    assert after.step_seconds != before.step_seconds


def test_speeds_alone_change_no_byte():
    on = cluster()
    before = estimate(workload(MODEL), Recipe(), on)
    after = estimate(workload(MODEL), Recipe(), with_calibration(on, matmul_bf16=1e14, operation_seconds=1e-6))
    assert after.device == before.device
    assert after.timeline == before.timeline


def test_nccl_of_another_number_of_gpus_stays_assumed():
    values, group = {"nccl_bytes": 300e6}, ProcessGroup.ONE
    several = with_calibration(cluster(num_gpus=8), 8, **values)
    assert nccl_bytes(several, ProcessGroup.COPIES) > nccl_bytes(several, group) == 300_000_000
    assumed = nccl_bytes(cluster(num_gpus=8), group)
    assert nccl_bytes(with_calibration(cluster(num_gpus=2), 2, **values), group) == 300_000_000
    assert nccl_bytes(with_calibration(cluster(num_gpus=8), 2, **values), group) == assumed
    assert nccl_bytes(with_calibration(cluster(num_gpus=1), 1, **values), ProcessGroup.NONE) == 0


def test_a_gpu_of_unknown_speed_has_seconds_once_it_was_measured():
    bare = cluster()
    gpu = replace(
        bare.node.gpu,
        memory_bandwidth_bytes_per_second=None,
        peak_flops_per_second=type(bare.node.gpu.peak_flops_per_second)(),
    )
    unknown = replace(bare, node=replace(bare.node, gpu=gpu))
    values = {"matmul_bf16": 1e14, "attention_sdpa_bf16": 5e13, "memory_bandwidth": 1e12}
    assert estimate(workload(MODEL), Recipe(), unknown).step_seconds is None
    assert estimate(workload(MODEL), Recipe(), with_calibration(unknown, **values)).step_seconds > 0


def test_a_card_has_no_bytes_of_a_cpu_process():
    gpu = with_calibration(cluster(), process_bytes=1e9, context_bytes=6e8).node.gpu
    assert (process_bytes(gpu), context_bytes(gpu)) == (0, 600_000_000)


def test_a_card_measured_to_be_twice_as_fast_takes_half_as_long(monkeypatch):
    monkeypatch.setattr(
        rates_module, "KERNEL_RAMP_SECONDS", RangedValue(0.0, 0.0, 0.0)
    )  # which no calibration measures
    rates = {"matmul_bf16": 1e14, "attention_sdpa_bf16": 5e13, "memory_bandwidth": 8e11, "optimizer_bandwidth": 7e11}
    host = {"matmul_ramp": 0.0, "operation_seconds": 0.0}
    once, twice = (
        estimate(
            workload(MODEL),
            Recipe(),
            with_calibration(cluster(), **{name: factor * rate for name, rate in rates.items()}, **host),
        ).step_time
        for factor in (1, 2)
    )
    for part in ("forward", "recompute", "backward", "optimizer"):
        assert getattr(once, part) == pytest.approx(2 * getattr(twice, part)), part
    assert once.fixed == twice.fixed


@pytest.mark.parametrize(
    ("kind", "added"),
    [(CheckpointKind.NON_REENTRANT, CHECKPOINT_OPERATIONS), (CheckpointKind.REENTRANT, REENTRANT_OPERATIONS)],
)
def test_each_operation_takes_the_host_what_was_measured(kind: CheckpointKind, added: dict[str, float]):
    """A card without end waits for the host alone: seconds are operations x seconds of each, and of what is run again
    what checkpoints add."""
    endless = {"matmul_bf16": 1e17, "attention_sdpa_bf16": 1e17, "memory_bandwidth": 1e14, "matmul_ramp": 0.0}
    on = with_calibration(cluster(), **endless, operation_seconds=0.003)
    recipe = Recipe(checkpoint_kind=kind)
    made = Estimator(workload(MODEL), recipe)
    forward, recompute, backward = made.trace(recipe, on.node.gpu.compute_capability).works()
    step = made.estimate(recipe, on).step_time
    assert step.forward == pytest.approx(0.003 * (forward.num_kernels + added["forward"] * recompute.num_kernels))
    assert step.recompute == pytest.approx(0.003 * (1 + added["backward"]) * recompute.num_kernels)
    assert step.backward == pytest.approx(0.003 * backward.num_kernels)
