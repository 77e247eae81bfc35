"""Seconds of one collective on a cluster: rings and trees as NCCL lays them through nodes, by the size of the message.

Symbols: S bytes of the message's larger side, N ranks on M nodes of L GPUs. A ring passes every GPU of a node before it
leaves it, and each of NCCL's channels is a ring that leaves by another adapter: every GPU sends (N-1)/N of S over its
own link (twice for an all-reduce), a node as much over its network, both at the same time, chunk after chunk. A tree
adds up along a node's GPUs and then over log2(M) levels of nodes; between two nodes each half crosses once (two trees,
one in each direction), which halves what the network carries.

Latencies, protocols and what they cost in bandwidth are NCCL's own (``src/graph/tuning.cc``, commit 5067397: the
constants by which it chooses), so is the rule: of all ways the fastest.
"""

from functools import lru_cache
from math import log2
from typing import NamedTuple

from vlmplan.communication.links import Links
from vlmplan.engines.collectives import CollectiveKind

TCP_HOP_SECONDS = 30e-6
"""What a hop over sockets takes beyond one over InfiniBand. Assumed: a round trip in a data centre is 50 to 100."""
TREE_EFFICIENCY = 0.92
"""Part of a ring's rate that a tree reaches (tuning.cc)."""


class Protocol(NamedTuple):
    """Microseconds (``us``, as tuning.cc has them) of its start and of one hop over NVLink, PCIe and the network, in a
    ring and in a tree; the part of the bandwidth that is left, and the bytes per second that it never exceeds on one,
    two and more nodes, None where nothing but the bandwidth bounds it."""

    start_us: float
    ring_hop_us: tuple[float, float, float]
    tree_hop_us: tuple[float, float, float]
    bandwidth_fraction: float
    most_bytes_per_second: tuple[float, float, float] | None
    needs_nvlink: bool


PROTOCOLS = (
    Protocol(6.6, (0.6, 1.0, 2.7), (0.6, 1.0, 5.0), 0.5, (87.7e9, 22.5e9, 19.0e9), needs_nvlink=False),
    Protocol(14.0, (1.9, 2.5, 4.0), (1.25, 1.9, 8.5), 0.92, None, needs_nvlink=True),
    Protocol(8.4, (3.4, 5.7, 14.0), (4.0, 4.0, 14.0), 1.0, None, needs_nvlink=False),
)
"""LL, LL128 and Simple: baseLatencies, hwLatencies and llMaxBws (Ampere, AMD) of tuning.cc; LL128 is for NVLink."""


@lru_cache(maxsize=65536)
def collective_seconds(
    kind: CollectiveKind, num_bytes: int, *, num_nodes: int, ranks_per_node: int, links: Links
) -> float:
    """Seconds of one collective whose larger side is ``num_bytes``, among ``num_nodes`` x ``ranks_per_node`` ranks.

    0 for one rank: nothing moves.
    """
    num_ranks = num_nodes * ranks_per_node
    if num_ranks == 1:
        return 0.0
    if kind is CollectiveKind.ALL_TO_ALL:
        return _exchange_seconds(num_bytes, num_nodes, ranks_per_node, links)
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    sent = rounds * num_bytes * (num_ranks - 1) / num_ranks
    is_sum_of_one_node = kind is CollectiveKind.ALL_REDUCE and num_nodes == 1
    ring = _moving_seconds(sent, sent, num_nodes, ranks_per_node, links, is_switched=is_sum_of_one_node)
    local_hops, network_hops = rounds * (num_ranks - num_nodes), rounds * (num_nodes - 1)
    ways = [_fastest(ring, sent, num_nodes, links, local_hops, network_hops, is_tree=False)]
    if kind is CollectiveKind.ALL_REDUCE and num_nodes > 1:
        crossing = num_bytes if num_nodes == 2 else 2 * num_bytes
        tree = _moving_seconds(2 * num_bytes, crossing, num_nodes, ranks_per_node, links) / TREE_EFFICIENCY
        hops = 2 * (ranks_per_node - 1), 2 * log2(num_nodes)
        ways.append(_fastest(tree, 2 * num_bytes, num_nodes, links, *hops, is_tree=True))
    return links.launch_seconds + min(ways)


def _exchange_seconds(num_bytes: int, num_nodes: int, ranks_per_node: int, links: Links) -> float:
    """Each rank sends 1/N of S to every other, straight: (L-1)/N of it inside its node, and L ranks of a node (N-L)/N
    each over its network, both at the same time. Sends to single ranks have no ring to wait for: one hop."""
    num_ranks = num_nodes * ranks_per_node
    inside = num_bytes * (ranks_per_node - 1) / num_ranks
    across = ranks_per_node * num_bytes * (num_ranks - ranks_per_node) / num_ranks
    moving = inside / links.local if ranks_per_node > 1 else 0.0
    if num_nodes > 1:
        assert links.network is not None
        moving = max(moving, across / links.network)
    return links.launch_seconds + _fastest(moving, inside + across, num_nodes, links, 1, num_nodes - 1, is_tree=False)


def _moving_seconds(
    sent: float, crossing: float, num_nodes: int, ranks_per_node: int, links: Links, *, is_switched: bool = False
) -> float:
    """Seconds of the bytes alone: the longer of a GPU's ``sent`` over its link and a node's ``crossing``."""
    local = sent / (links.local_sum if is_switched else links.local) if ranks_per_node > 1 else 0.0
    if num_nodes == 1:
        return local
    assert links.network is not None
    return max(local, crossing / links.network)


def _fastest(
    moving: float, sent: float, num_nodes: int, links: Links, local_hops: float, network_hops: float, *, is_tree: bool
) -> float:
    """The fastest protocol: start and hops, and the bytes at what it leaves of the bandwidth."""
    local_kind = 0 if links.is_nvlink else 1
    socket = TCP_HOP_SECONDS if links.is_tcp else 0.0
    seconds: list[float] = []
    for protocol in PROTOCOLS:
        if protocol.needs_nvlink and not links.is_nvlink:
            continue
        hop_us = protocol.tree_hop_us if is_tree else protocol.ring_hop_us
        latency = 1e-6 * (protocol.start_us + local_hops * hop_us[local_kind] + network_hops * hop_us[2])
        bytes_alone = moving / protocol.bandwidth_fraction
        if protocol.most_bytes_per_second is not None:
            bytes_alone = max(bytes_alone, sent / protocol.most_bytes_per_second[min(num_nodes, 3) - 1])
        seconds.append(latency + network_hops * socket + bytes_alone)
    return min(seconds)
