"""Collectives against the ZeRO paper (Rajbhandari et al., arXiv 1910.02054, section 7); seconds against published runs.

The paper counts data volume for large N: 2Ψ for plain data parallelism and for stages 1 and 2, 3Ψ for stage 3. A ring
really moves (N-1)/N of it. DeepSpeed 0.19.8 all-reduces (2Ψ) in stages 1 and 2 where the paper reduce-scatters (Ψ).
"""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import shipped_gpus, shortened
from recipe_cases import card
from vlmplan.communication import (
    CommunicationSeconds,
    communication_seconds,
    link_bytes_per_second,
    links_of,
    step_collectives,
    volume_json,
)
from vlmplan.communication.links import (
    LAUNCH_SECONDS,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    PCIE_NO_PEER_EFFICIENCY,
    RDMA_EFFICIENCY,
    TCP_EFFICIENCY,
    Links,
)
from vlmplan.communication.rings import collective_seconds
from vlmplan.communication.volume import by_kind
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase, chunk_elements
from vlmplan.estimation import Estimator
from vlmplan.hardware import Cluster, Node
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import Workload

FILES = shortened("tinyllama-1.1b", num_hidden_layers=3)
NOTHING_KEPT = ZeroSettings(
    stage3_max_reuse_distance=0,
    stage3_param_persistence_threshold=0,
    stage3_prefetch_bucket_size=0,
    stage3_max_live_parameters=0,
)


@cache
def estimator(method: Method = Method.FULL) -> Estimator:
    return Estimator(Workload(model=FILES, seq_len=64), Recipe(method=method, zero_stage=2))


PSI_BYTES = 2 * estimator().table.num_params  # bf16


def sent(stage: int | None, num_ranks: int, **changes: Any) -> tuple[Collectives, ...]:
    recipe = Recipe(**{"zero_stage": stage, "activation_checkpointing": False} | changes)
    found = estimator(recipe.method)
    return step_collectives(found.table, recipe, num_ranks=num_ranks, trace=found.trace(recipe, (8, 0)))


def ring_bytes(messages: tuple[Collectives, ...], num_ranks: int) -> float:
    """What one GPU of a ring sends."""
    rounds = {CollectiveKind.ALL_REDUCE: 2}
    return sum(rounds.get(one.kind, 1) * one.num_bytes for one in messages) * (num_ranks - 1) / num_ranks


# Collectives


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 64])
@pytest.mark.parametrize(
    ("stage", "multiple"),
    [(0, 2), (1, 2 + 1), (2, 2 + 1), (3, 1 + 1 + 1)],  # all-reduce; and gather of weights; gather twice and scatter
)
def test_each_stage_moves_the_papers_multiple_of_the_model_around_the_ring(stage: int, multiple: int, num_ranks: int):
    moved = ring_bytes(sent(stage, num_ranks, zero=NOTHING_KEPT), num_ranks)
    assert moved == pytest.approx(multiple * PSI_BYTES * (num_ranks - 1) / num_ranks, rel=1e-3)


def test_deepspeed_all_reduces_whole_buckets_where_the_paper_reduce_scatters():
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    assert config.DeepSpeedZeroConfig().use_multi_rank_bucket_allreduce


@given(st.integers(2, 512), st.integers(2, 512), st.integers(0, 3))
def test_more_ranks_never_send_less_and_never_more_than_the_papers_volume(one: int, other: int, stage: int):
    few, many = (ring_bytes(sent(stage, ranks, zero=NOTHING_KEPT), ranks) for ranks in sorted((one, other)))
    assert few <= many * (1 + 1e-3)
    assert many <= 3 * PSI_BYTES * (1 + 1e-2)  # weights are padded to a multiple of the ranks


def test_plain_pytorch_sends_nothing():
    assert sent(None, 1) == ()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_rank_gathers_nothing_and_exchanges_in_no_time(stage: int):
    messages = sent(stage, 1)
    assert CollectiveKind.ALL_GATHER not in {one.kind for one in messages}
    assert communication_seconds(messages, cluster(1)) == CommunicationSeconds()


def test_stages_0_and_1_reduce_gradients_once_a_step_and_2_and_3_after_every_micro_batch():
    for stage, often in ((0, 1), (1, 1), (2, 5), (3, 5)):
        once, five = (
            sum(one.num_bytes for one in sent(stage, 4, grad_accum=steps) if one.kind is not CollectiveKind.ALL_GATHER)
            for steps in (1, 5)
        )
        assert five == often * once


def test_weights_that_recomputation_frees_are_gathered_a_third_time():
    def gathered(*, checkpoints: bool) -> int:
        messages = sent(3, 2, activation_checkpointing=checkpoints, zero=NOTHING_KEPT)
        return by_kind(messages)["allgather_base"].num_bytes

    # All but the last product of a layer, whose backward follows on its recomputation.
    again = [
        entry
        for entry in estimator().table.entries
        if entry.layer is not None and not entry.name.endswith("down_proj.weight")
    ]
    expected = 2 * sum(entry.parameter.numel for entry in again)
    assert gathered(checkpoints=True) - gathered(checkpoints=False) == expected


def test_frozen_weights_are_gathered_under_stage_3_and_have_no_gradients():
    table = estimator(Method.LORA).table
    first, *_, gradients = sent(3, 2, method=Method.LORA, zero=NOTHING_KEPT)
    assert (first.phase, first.num_bytes) == (StepPhase.FORWARD, table.total_bytes)
    assert (gradients.kind, gradients.num_bytes) == (CollectiveKind.REDUCE_SCATTER, table.trained_bytes)


def test_small_weights_are_gathered_after_the_step_each_alone():
    norms = [entry for entry in estimator().table.entries if entry.name.endswith("norm.weight")]
    zero = ZeroSettings(stage3_param_persistence_threshold=norms[0].parameter.numel)
    after = [one for one in sent(3, 4, zero=zero) if one.phase is StepPhase.STEP]
    assert after == [
        Collectives(CollectiveKind.ALL_GATHER, StepPhase.STEP, 2 * 3 + 1, 2 * (2 * 3 + 1) * norms[0].parameter.numel)
    ]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_bucket_for_all_gradients_is_sent_once(stage: int):
    messages = sent(stage, 4, zero=ZeroSettings(reduce_bucket_size=10**12))
    assert [one.count for one in messages if one.kind is not CollectiveKind.ALL_GATHER] == [1]


@given(st.integers(1, 10**7))
def test_gradients_take_at_least_as_many_messages_as_there_are_full_buckets(bucket: int):
    zero = ZeroSettings(reduce_bucket_size=bucket)
    numels = estimator().table.numels
    fits = max(numels) <= bucket
    for stage in (1, 2):
        count = by_kind(sent(stage, 2, zero=zero))["allreduce"].num_collectives
        assert count >= (sum(numels) / bucket if fits else 1)
        assert count <= 2 * len(numels)


def test_a_gradient_larger_than_the_bucket_is_cut_where_its_owners_change():
    # The embedding alone is more than a bucket, and so are its pieces on most of 16 ranks: each is sent by itself.
    table = estimator().table
    zero = ZeroSettings(reduce_bucket_size=table.num_trained // 40)
    few, many = (by_kind(sent(2, ranks, zero=zero))["allreduce"].num_collectives for ranks in (1, 16))
    assert few < many


def test_second_copies_answer_for_weights_after_their_first_use_in_a_step():
    def gathered(hpz: int, method: Method, grad_accum: int) -> dict[int | None, int]:
        found: dict[int | None, int] = {}
        for one in sent(3, 8, hpz=hpz, method=method, grad_accum=grad_accum, zero=NOTHING_KEPT):
            if one.kind is CollectiveKind.ALL_GATHER and one.phase is not StepPhase.STEP:
                found[one.group_size] = found.get(one.group_size, 0) + one.num_bytes
        return found

    for method in (Method.FULL, Method.LORA):
        for grad_accum in (1, 3):
            plain, secondary = (gathered(hpz, method, grad_accum) for hpz in (1, 4))
            trained = estimator(method).table.trained_bytes
            # each trained weight once through all ranks, in the first forward of the step
            assert secondary[None] == pytest.approx(trained, rel=1e-3)
            assert secondary[None] + secondary[4] == plain[None]


def test_chunks_are_sent_once_they_exceed_the_limit():
    assert len(chunk_elements([], 5)) == 0
    assert len(chunk_elements([5], 5)) == len(chunk_elements([5, 1], 5)) == 1
    assert len(chunk_elements([5, 1, 1], 5)) == 2


def test_messages_are_shown_as_a_rehearsal_shows_them():
    shown = volume_json(sent(2, 4))
    assert shown["per_step"] == sum(kind["bytes"] for kind in shown["by_kind"].values())
    assert set(shown["by_kind"]) == {"allreduce", "allgather_base"}


# Links


LINKS = {"pcie_gen": 4, "pcie_lanes": 16, "form_factor": "SXM4"}
PCIE_4_X16 = 16e9 * 128 / 130 / 8 * 16
FAST = {"has_nvlink": True, "nvlink_bytes_per_second": 300e9}


def cluster(num_gpus: int = 8, num_nodes: int = 1, rate: float | None = None, **changes: object) -> Cluster:
    node = Node(gpu=card(**LINKS | changes), num_gpus=num_gpus)
    return Cluster(node=node, num_nodes=num_nodes, inter_node_bytes_per_second=rate)


def test_nvlink_and_pcie_carry_their_rate_less_what_collectives_lose():
    assert link_bytes_per_second(cluster(**FAST)) == pytest.approx(300e9 * NVLINK_EFFICIENCY)
    assert link_bytes_per_second(cluster()) == pytest.approx(PCIE_4_X16 * PCIE_EFFICIENCY)


def test_geforce_cards_reach_each_other_only_through_the_host():
    geforce = link_bytes_per_second(cluster(name="NVIDIA GeForce RTX 4090"))
    assert geforce == pytest.approx(PCIE_4_X16 * PCIE_NO_PEER_EFFICIENCY)
    assert geforce < link_bytes_per_second(cluster())


def test_every_shipped_card_has_a_link_of_known_or_unknown_rate_but_never_none_of_zero():
    for gpu in shipped_gpus().values():
        rate = link_bytes_per_second(Cluster(node=Node(gpu=gpu, num_gpus=2)))
        assert rate is None or rate > 0


def test_unknown_link_stays_unknown():
    for unknown in (cluster(pcie_gen=None), cluster(pcie_gen=None, num_nodes=2)):
        assert link_bytes_per_second(unknown) is None
        assert links_of(unknown) is None
        assert communication_seconds(sent(2, 8), unknown) is None


def test_link_inside_a_node_does_not_matter_to_nodes_of_one_gpu():
    lonely = cluster(1, num_nodes=4, pcie_gen=None)
    assert communication_seconds(sent(2, 4), lonely) == communication_seconds(sent(2, 4), cluster(1, num_nodes=4))


def test_network_carries_its_rate_less_what_sockets_or_rdma_lose():
    assert link_bytes_per_second(cluster(8, 2, 25e9 / 8, **FAST)) == pytest.approx(25e9 / 8 * TCP_EFFICIENCY)
    assert link_bytes_per_second(cluster(8, 2, 400e9 / 8, **FAST)) == pytest.approx(400e9 / 8 * RDMA_EFFICIENCY)


def test_network_of_unknown_rate_is_taken_as_100_gbit_per_second():
    unknown = links_of(cluster(num_nodes=2, **FAST))
    assert unknown == links_of(cluster(num_nodes=2, rate=100e9 / 8, **FAST))


def test_switches_of_hopper_add_up_for_the_gpus_of_a_whole_node_alone():
    hopper = FAST | {"compute_capability": (9, 0)}
    whole, half = links_of(cluster(8, **hopper)), links_of(cluster(4, **hopper))
    assert whole.local_sum > whole.local == half.local == half.local_sum


@given(st.floats(1e6, 1e12), st.integers(2, 64), st.integers(2, 16))
def test_several_nodes_are_never_linked_faster_than_one(rate: float, num_nodes: int, num_gpus: int):
    one, several = (link_bytes_per_second(cluster(num_gpus, nodes, rate)) for nodes in (1, num_nodes))
    assert several <= one


# Seconds of one collective, against published runs of nccl-tests and all_reduce_bench.py

MIB, GIB = 2**20, 2**30


def node_of(gpu_id: str, num_nodes: int = 1, rate: float | None = None) -> Cluster:
    return Cluster(
        node=Node(gpu=shipped_gpus()[gpu_id], num_gpus=8), num_nodes=num_nodes, inter_node_bytes_per_second=rate
    )


def bus_gb_per_second(kind: CollectiveKind, num_bytes: int, on: Cluster) -> float:
    """As nccl-tests reports it (doc/PERFORMANCE.md): what a ring's links would have to carry."""
    ranks, per_node = on.num_gpus, on.node.num_gpus
    seconds = collective_seconds(kind, num_bytes, num_nodes=on.num_nodes, ranks_per_node=per_node, links=links_of(on))
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return rounds * (ranks - 1) / ranks * num_bytes / seconds / 1e9


ML_ENGINEERING = "github.com/stas00/ml-engineering, network/README.md"
PUBLISHED = [
    # (kind, bytes, cluster, GB/s, largest relative error, source)
    (CollectiveKind.ALL_REDUCE, 16 * GIB, node_of("a100-sxm4-80gb"), 234.89, 0.05, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 16 * GIB, node_of("h200-sxm"), 482.26, 0.05, ML_ENGINEERING),
    (CollectiveKind.ALL_GATHER, 16 * GIB, node_of("h200-sxm"), 361.4, 0.05, ML_ENGINEERING),
    (CollectiveKind.REDUCE_SCATTER, 16 * GIB, node_of("h200-sxm"), 362.9, 0.05, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 256 * MIB, node_of("h200-sxm"), 436.15, 0.05, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 64 * MIB, node_of("h200-sxm"), 346.51, 0.05, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 16 * MIB, node_of("h200-sxm"), 219.89, 0.1, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 4 * MIB, node_of("h200-sxm"), 107.16, 0.3, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 1 * MIB, node_of("h200-sxm"), 39.93, 0.4, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 2**15, node_of("h200-sxm"), 1.44, 0.3, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 16 * GIB, node_of("b200"), 845.67, 0.25, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 2**15, node_of("b200"), 1.20, 0.3, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 16 * GIB, node_of("b200", 4, 3200e9 / 8), 381.8, 0.15, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 4 * GIB, node_of("h200-sxm", 4, 3200e9 / 8), 364.87, 0.15, ML_ENGINEERING),
    (CollectiveKind.ALL_REDUCE, 128 * MIB, node_of("a100-sxm4-40gb", 3, 800e9 / 8), 84.8, 0.15, "nccl-tests issue 119"),
    (CollectiveKind.ALL_REDUCE, GIB, node_of("a100-sxm4-40gb"), 230.77, 0.05, "nccl issue 527"),
    (
        CollectiveKind.ALL_REDUCE,
        GIB,
        node_of("a100-sxm4-40gb", 2, 400e9 / 8),
        57.17,
        0.45,
        "nccl issue 527, EFA of 2022",
    ),
    (
        CollectiveKind.ALL_REDUCE,
        GIB,
        node_of("a100-sxm4-40gb", 4, 400e9 / 8),
        29.61,
        0.45,
        "nccl issue 527, EFA of 2022",
    ),
]


@pytest.mark.parametrize(("kind", "num_bytes", "on", "measured", "tolerance", "source"), PUBLISHED)
def test_bus_bandwidth_is_near_the_published_one(
    kind: CollectiveKind, num_bytes: int, on: Cluster, measured: float, tolerance: float, source: str
):
    assert bus_gb_per_second(kind, num_bytes, on) == pytest.approx(measured, rel=tolerance), source


def test_two_nodes_all_reduce_faster_than_a_ring_could():
    # nccl issue 527: 57 GB/s of bus bandwidth over 50 GB/s, since each half of a double tree crosses once.
    on = node_of("a100-sxm4-40gb", 2, 400e9 / 8)
    assert bus_gb_per_second(CollectiveKind.ALL_REDUCE, GIB, on) > 50
    assert bus_gb_per_second(CollectiveKind.ALL_GATHER, GIB, on) < 50


SHAPES = st.tuples(st.integers(1, 128), st.sampled_from([1, 2, 4, 8]))
RATES = st.builds(
    Links,
    local=st.floats(1e9, 1e12),
    local_sum=st.just(1e13),
    network=st.floats(1e8, 1e12),
    is_nvlink=st.booleans(),
    is_tcp=st.booleans(),
    launch_seconds=st.floats(0, 1e-3),
)
KINDS = st.sampled_from(CollectiveKind)
BYTES = st.integers(0, 2**42)


@given(KINDS, BYTES, BYTES, SHAPES, RATES)
def test_larger_messages_never_take_less_time(
    kind: CollectiveKind, one: int, other: int, shape: tuple[int, int], links: Links
):
    small, large = (
        collective_seconds(kind, size, num_nodes=shape[0], ranks_per_node=shape[1], links=links)
        for size in sorted((one, other))
    )
    assert 0 <= small <= large


@given(KINDS, BYTES, BYTES, SHAPES, RATES)
def test_two_messages_never_take_less_time_than_one_of_both(
    kind: CollectiveKind, one: int, other: int, shape: tuple[int, int], links: Links
):
    first, second, both = (
        collective_seconds(kind, size, num_nodes=shape[0], ranks_per_node=shape[1], links=links)
        for size in (one, other, one + other)
    )
    assert both <= (first + second) * (1 + 1e-9)


@given(KINDS, BYTES, st.integers(3, 64), RATES)
def test_twice_the_nodes_never_take_less_time(kind: CollectiveKind, size: int, num_nodes: int, links: Links):
    few, many = (
        collective_seconds(kind, size, num_nodes=nodes, ranks_per_node=8, links=links)
        for nodes in (num_nodes, 2 * num_nodes)
    )
    assert few <= many * (1 + 1e-9)


@given(KINDS, BYTES, SHAPES, RATES, st.floats(1, 10))
def test_faster_links_never_take_more_time(
    kind: CollectiveKind, size: int, shape: tuple[int, int], links: Links, faster: float
):
    better = links._replace(local=links.local * faster, network=links.network * faster)
    slow, fast = (
        collective_seconds(kind, size, num_nodes=shape[0], ranks_per_node=shape[1], links=those)
        for those in (links, better)
    )
    assert fast <= slow


def test_every_message_costs_its_launch_and_hops_grow_with_the_ring():
    links = links_of(node_of("a100-sxm4-80gb", 2, 200e9))
    one_node, two, sixteen = (
        collective_seconds(CollectiveKind.ALL_GATHER, 0, num_nodes=nodes, ranks_per_node=8, links=links)
        for nodes in (1, 2, 16)
    )
    assert LAUNCH_SECONDS < one_node < two < sixteen
    # LL: 6.6 us, and 0.6 us a hop over NVLink (NCCL's tuning.cc)
    assert one_node - LAUNCH_SECONDS == pytest.approx(6.6e-6 + 7 * 0.6e-6)


def test_seconds_are_of_the_phase_that_sends():
    on = cluster(8, **FAST)
    seconds = communication_seconds(sent(3, 8), on)
    assert seconds.total == pytest.approx(seconds.forward + seconds.backward + seconds.step)
    assert min(seconds.forward, seconds.backward, seconds.step) > 0
    assert communication_seconds(sent(2, 8), on).forward == 0


def test_messages_among_neighbours_stay_inside_a_node():
    slow = cluster(4, num_nodes=2, rate=1e9, **FAST)
    inside, across = (
        communication_seconds(
            (Collectives(CollectiveKind.ALL_GATHER, StepPhase.BACKWARD, 3, 3 * GIB, size),), slow
        ).backward
        for size in (4, None)
    )
    alone = communication_seconds(
        (Collectives(CollectiveKind.ALL_GATHER, StepPhase.BACKWARD, 3, 3 * GIB),), cluster(4, **FAST)
    ).backward
    assert inside == pytest.approx(alone)
    assert across > 50 * inside


def test_the_whole_of_communication_is_of_every_phase_and_of_the_exchange_of_attention():
    assert CommunicationSeconds(forward=1, backward=2, step=4, exchange=8).total == 15
