"""Bytes on the wire against the ZeRO paper (Rajbhandari et al., arXiv 1910.02054, section 7), and the links' rates.

The paper counts data volume for large N: 2Ψ for plain data parallelism and for stages 1 and 2, 3Ψ for stage 3. A ring
really moves (N-1)/N of it. DeepSpeed 0.19.8 all-reduces (2Ψ) in stages 1 and 2 where the paper reduce-scatters (Ψ).
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import shipped_gpus
from recipe_cases import card
from small_models import table_of
from vlmplan import communication
from vlmplan.communication import Traffic, exchange_seconds, link_bytes_per_second, traffic
from vlmplan.hardware import Cluster, Node
from vlmplan.recipe import Recipe, ZeroSettings

NUMELS = [2 * 3 * 5 * 7 * 11, 13 * 17 * 19, 23 * 29 * 31 * 37]
PSI_BYTES = 2 * sum(NUMELS)  # bf16
NO_REUSE = ZeroSettings(stage3_max_reuse_distance=0)


def sent(stage: int | None, num_ranks: int, **changes: object) -> Traffic:
    recipe = Recipe(zero_stage=stage, **changes)
    return traffic(table_of(NUMELS), recipe, num_ranks=num_ranks, num_modules=3)


def once(stage: int, num_ranks: int, **changes: object) -> int:
    """Bytes of a step of one micro batch."""
    found = sent(stage, num_ranks, **changes)
    return found.micro_batch_bytes + found.step_bytes


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 64])
@pytest.mark.parametrize(
    ("stage", "multiple"),
    [(0, 2), (1, 2 + 1), (2, 2 + 1), (3, 1 + 1 + 1)],  # all-reduce; and gather of weights; gather twice and scatter
)
def test_each_stage_moves_the_papers_multiple_of_the_model_around_the_ring(stage: int, multiple: int, num_ranks: int):
    assert once(stage, num_ranks) == pytest.approx(multiple * PSI_BYTES * (num_ranks - 1) / num_ranks, abs=2)


def test_deepspeed_all_reduces_whole_buckets_where_the_paper_reduce_scatters():
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    assert config.DeepSpeedZeroConfig().use_multi_rank_bucket_allreduce


@given(st.integers(2, 10**4), st.integers(2, 10**4), st.integers(0, 3))
def test_more_ranks_never_send_less_and_never_more_than_the_papers_volume(one: int, other: int, stage: int):
    few, many = (once(stage, num_ranks) for num_ranks in sorted((one, other)))
    assert few <= many <= 3 * PSI_BYTES


@pytest.mark.parametrize("stage", [None, 0, 1, 2, 3])
def test_one_rank_sends_nothing(stage: int | None):
    assert sent(stage, 1) == Traffic()


def test_plain_pytorch_sends_nothing():
    assert sent(None, 1) == Traffic()


def test_stages_0_and_1_reduce_gradients_once_a_step_and_2_and_3_after_every_micro_batch():
    assert sent(0, 4).micro_batch_bytes == sent(1, 4).micro_batch_bytes == 0
    gradients = PSI_BYTES * 3 / 4
    assert sent(2, 4).micro_batch_bytes == pytest.approx(2 * gradients, abs=2)
    assert sent(2, 4).step_bytes == pytest.approx(gradients, abs=2)
    assert sent(3, 4).step_bytes == 0


def test_weights_that_recomputation_frees_are_gathered_a_third_time():
    gathered = {
        (checkpoints, kept): once(3, 2, activation_checkpointing=checkpoints, zero=zero)
        for checkpoints in (False, True)
        for kept, zero in ((True, ZeroSettings()), (False, NO_REUSE))
    }
    assert gathered[True, True] == gathered[False, True] == gathered[False, False]
    assert gathered[True, False] - gathered[True, True] == PSI_BYTES / 2


def test_frozen_weights_are_gathered_under_stage_3_and_have_no_gradients():
    table = table_of(NUMELS)
    table.frozen_bytes = 2 * 41 * 43
    moved = {
        stage: traffic(table, Recipe(zero_stage=stage), num_ranks=2, num_modules=3).micro_batch_bytes
        for stage in (2, 3)
    }
    assert moved[2] == sent(2, 2).micro_batch_bytes
    assert moved[3] - sent(3, 2).micro_batch_bytes == 2 * (2 * 41 * 43) / 2


@given(st.integers(1, 10**6))
def test_gradients_go_in_as_many_collectives_as_there_are_full_buckets(bucket: int):
    zero = ZeroSettings(reduce_bucket_size=bucket)
    buckets = -(-sum(NUMELS) // bucket)
    assert sent(0, 2, zero=zero).step_collectives == buckets
    assert sent(2, 2, zero=zero).micro_batch_collectives == buckets
    assert sent(3, 2, zero=zero).micro_batch_collectives == 2 * 3 + buckets


# Links


LINKS = {"pcie_gen": 4, "pcie_lanes": 16, "form_factor": "SXM4"}
PCIE_4_X16 = 16e9 * 128 / 130 / 8 * 16


def cluster(num_gpus: int = 8, num_nodes: int = 1, rate: float | None = None, **changes: object) -> Cluster:
    node = Node(gpu=card(**LINKS | changes), num_gpus=num_gpus)
    return Cluster(node=node, num_nodes=num_nodes, inter_node_bytes_per_second=rate)


def test_nvlink_and_pcie_carry_their_rate_less_what_collectives_lose():
    nvlink = {"has_nvlink": True, "nvlink_bytes_per_second": 300e9}
    assert link_bytes_per_second(cluster(**nvlink)) == pytest.approx(300e9 * communication.NVLINK_EFFICIENCY)
    assert link_bytes_per_second(cluster()) == pytest.approx(PCIE_4_X16 * communication.PCIE_EFFICIENCY)


def test_geforce_cards_reach_each_other_only_through_the_host():
    geforce = link_bytes_per_second(cluster(name="NVIDIA GeForce RTX 4090"))
    assert geforce == pytest.approx(PCIE_4_X16 * communication.PCIE_NO_PEER_EFFICIENCY)
    assert geforce < link_bytes_per_second(cluster())


def test_every_shipped_card_has_a_link_of_known_or_unknown_rate_but_never_none_of_zero():
    for gpu in shipped_gpus().values():
        rate = link_bytes_per_second(Cluster(node=Node(gpu=gpu, num_gpus=2)))
        assert rate is None or rate > 0


def test_unknown_link_stays_unknown():
    assert link_bytes_per_second(cluster(pcie_gen=None)) is None
    assert link_bytes_per_second(cluster(pcie_gen=None, num_nodes=2)) is None


def test_nodes_talk_at_the_networks_rate_however_many_gpus_they_have():
    # A ring goes through the GPUs of a node before it leaves it: what crosses is the same for 1 GPU and for 8.
    fast = {"has_nvlink": True, "nvlink_bytes_per_second": 300e9}
    for num_gpus in (1, 2, 8):
        rate = link_bytes_per_second(cluster(num_gpus, num_nodes=2, rate=50e9, **fast))
        assert rate == pytest.approx(50e9 * communication.NETWORK_EFFICIENCY)


def test_network_of_unknown_rate_is_taken_as_100_gbit_per_second():
    fast = {"has_nvlink": True, "nvlink_bytes_per_second": 300e9}
    unknown = link_bytes_per_second(cluster(num_nodes=2, **fast))
    assert unknown == link_bytes_per_second(cluster(num_nodes=2, rate=100e9 / 8, **fast))


@given(st.floats(1e6, 1e12), st.integers(2, 64), st.integers(1, 16))
def test_several_nodes_are_never_linked_faster_than_one(rate: float, num_nodes: int, num_gpus: int):
    one, several = (link_bytes_per_second(cluster(num_gpus, nodes, rate)) for nodes in (1, num_nodes))
    assert several <= one


@given(st.integers(0, 2**50), st.integers(0, 10**6), st.floats(1e3, 1e12), st.floats(1e3, 1e12))
def test_slower_link_never_takes_less_time(num_bytes: int, num_collectives: int, one: float, other: float):
    slow, fast = (exchange_seconds(num_bytes, num_collectives, rate) for rate in sorted((one, other)))
    assert slow >= fast


def test_every_collective_costs_its_latency():
    latency = communication.COLLECTIVE_LATENCY_SECONDS
    assert exchange_seconds(7 * 10**9, 11, 13e9) == pytest.approx(7 / 13 + 11 * latency)
