"""What a plan for CPU ranks says: no card, no driver, everything in the host's memory."""

import pytest

from cli_calls import call
from planned import decided, shortened, workload
from vlmplan.estimation import Estimate, estimate_with_sizes
from vlmplan.hardware import Cluster, Node
from vlmplan.machine.cpu import cpu_gpu
from vlmplan.memory.host import PROCESS_BYTES
from vlmplan.plan import plan_from_estimate
from vlmplan.request.setup import resolved_recipe
from vlmplan.units import GIB, MIB

SMALL = shortened("smollm2-135m", num_hidden_layers=2, vocab_size=512)


def on_cpu(num_ranks: int, **fields) -> Estimate:
    node = Node(gpu=cpu_gpu(num_ranks), num_gpus=num_ranks, host_ram_bytes=64 * GIB)
    cluster = Cluster(node=node)
    recipe, _ = resolved_recipe(decided(**fields), cluster, SMALL)
    item = workload("smollm2-135m", model=SMALL, seq_len=128)
    return estimate_with_sizes(item, recipe, cluster)


def test_memory_that_a_cpu_rank_frees_goes_back():
    found = on_cpu(2).device
    assert 0 <= found.reserved_bytes - found.allocated_bytes < 2 * MIB


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_the_host_holds_what_all_its_cpu_ranks_hold(num_ranks: int):
    found = on_cpu(num_ranks)
    assert found.host.steady_bytes == num_ranks * found.device.device_bytes
    assert found.host.load_bytes < found.host.steady_bytes + num_ranks * GIB


def test_a_small_model_on_the_cpu_needs_less_than_the_processes_of_gpus_would():
    assert on_cpu(2).host.peak_bytes < 2 * PROCESS_BYTES


def test_a_cpu_plan_sets_deepspeeds_accelerator_and_no_allocator():
    plan = plan_from_estimate(on_cpu(2))
    assert dict(plan.environment) == {"DS_ACCELERATOR": "cpu"}
    assert (plan.recipe.zero_stage, plan.hardware.gpus_per_node) == (2, 2)


def test_the_text_of_a_cpu_plan_speaks_of_no_card():
    shown = call("estimate", "--model", "smollm2-135m", "--gpu", "cpu:2")
    assert "CUDA" not in shown.out
    assert "nvidia-smi" not in shown.out
    assert "process, in all" in shown.out
