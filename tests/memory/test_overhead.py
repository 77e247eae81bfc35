"""What a GPU holds beside the allocator's bytes, as it was measured on one and as others have published it."""

import pytest

from planned import cluster
from vlmplan.memory.overhead import ProcessGroup, context_bytes, nccl_bytes, process_group
from vlmplan.recipe import Recipe
from vlmplan.units import MIB

H200, RTX_3090 = cluster("h200-sxm"), cluster("rtx-3090")
BESIDE_RESERVED_MIB = {None: 767, 1: 1715, 2: 1715, 3: 1329}
"""Of runs on one H200 by ZeRO stage, None without DeepSpeed: device bytes less reserved ones (tests/gpu/records.jsonl).
"""


@pytest.mark.parametrize("stage", BESIDE_RESERVED_MIB)
def test_one_gpu_holds_what_was_measured_beside_what_its_allocator_reserves(stage):
    found = context_bytes(H200.node.gpu) + nccl_bytes(H200, process_group(Recipe(zero_stage=stage), 1))
    assert found == BESIDE_RESERVED_MIB[stage] * MIB


def test_context_of_a_t4_is_what_was_published_of_it():
    assert context_bytes(cluster("t4").node.gpu) == pytest.approx(140.875 * MIB, abs=MIB)
    assert context_bytes(RTX_3090.node.gpu) == 500 * MIB


def test_fsdp2_holds_what_was_measured_too():
    found = context_bytes(H200.node.gpu) + nccl_bytes(H200, process_group(Recipe(fsdp=True), 1))
    assert found == pytest.approx(1325 * MIB, abs=4 * MIB)


def test_a_communicator_of_one_gpu_takes_what_is_published():
    assert nccl_bytes(RTX_3090, ProcessGroup.ONE) == nccl_bytes(RTX_3090, ProcessGroup.STAGE_1_2) == 484 * MIB
    assert nccl_bytes(RTX_3090, ProcessGroup.NONE) == 0


@pytest.mark.parametrize("gpu_id", ["rtx-3090", "a100-sxm4-80gb", "h200-sxm"])
@pytest.mark.parametrize("group", ProcessGroup)
def test_several_gpus_have_a_communicator_whatever_the_engine_and_connections_besides(gpu_id, group):
    several = nccl_bytes(cluster(gpu_id, 4), group)
    assert several > nccl_bytes(cluster(gpu_id), group)
    assert several >= nccl_bytes(cluster(gpu_id, 4), ProcessGroup.ONE)


@pytest.mark.parametrize(("gpu_id", "connections"), [("rtx-3090", 4 * 2), ("a100-sxm4-80gb", 24 * 2)])
def test_copies_of_the_model_have_two_further_communicators_with_connections_of_their_own(gpu_id, connections):
    """Among the ranks of a copy and over the copies; one copy on all ranks has none."""
    recipe, on = Recipe(fsdp=True, dp_shard_size=4), cluster(gpu_id, 4, num_nodes=2)
    copies, alone = process_group(recipe, 8), process_group(recipe, 4)
    assert alone is process_group(Recipe(fsdp=True), 8)
    assert nccl_bytes(on, copies) - nccl_bytes(on, alone) == 2 * connections * 10 * MIB
