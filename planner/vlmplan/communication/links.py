"""Rates of the links between GPUs: what large collectives reach of a data sheet's one-way rate."""

from typing import NamedTuple

from vlmplan.hardware import Cluster, Gpu, Node

NVLINK_EFFICIENCY = 0.8
"""Part of NVLink's one-way rate that NCCL's rings reach. Cited: 0.78 (8 x A100), 0.80 to 0.82 (8 x H200, all-gather,
reduce-scatter and all-reduce without SHARP), 0.75 (8 x B200): github.com/stas00/ml-engineering, network/README.md."""
NVLINK_SHARP_EFFICIENCY = 1.05
"""The same of an all-reduce that the switch adds up (NVLS): cited there as 482 of 450 GB/s (1.07, 8 x H200) and 846 of
900 (0.94, 8 x B200); a ring's factors are applied to it, which is how it comes out above 1."""
SHARP_LEAST_GPUS = 6
"""From how many GPUs of one node on NCCL takes NVLS. Cited there: 5 on H200, 6 on B200."""
SHARP_CAPABILITY = (9, 0)
PCIE_EFFICIENCY = 0.7
"""The same over PCIe with peer-to-peer. Assumed: NCCL plans with 12 of 15.75 GB/s (``src/graph/topo.h``, PCI_BW)."""
PCIE_NO_PEER_EFFICIENCY = 0.45
"""The same where GPUs cannot reach each other (GeForce) and every byte crosses the bus to the host and back. Cited:
28 of 63 GB/s with 8 and 35 with 4 RTX 5090, github.com/NVIDIA/nccl/issues/1639."""
GEFORCE = "geforce"
RDMA_EFFICIENCY = 0.85
"""The same between nodes over InfiniBand, RoCE or EFA, of all adapters of a node together. Cited: 0.91 (4 x 8 H200,
EFA), 0.94 (4 x 8 B200, EFA; both ml-engineering), 0.85 of 100 GB/s (3 x 8 A100, four HDR,
github.com/NVIDIA/nccl-tests/issues/119), 0.59 (4 x 8 A100, EFA of 2022, github.com/NVIDIA/nccl/issues/527)."""
TCP_EFFICIENCY = 0.45
"""The same over sockets. Cited: 4 to 6 of 12.5 GB/s, github.com/NVIDIA/nccl/issues/450; at most 0.6 of 32 Gbit/s,
issue 209."""
TCP_BYTES_PER_SECOND = 100e9 / 8
"""Up to this rate of a node the network is taken as Ethernet under sockets, above it as one with RDMA. Assumed: clouds
give more than 100 Gbit/s to a machine only with EFA, InfiniBand or RoCE."""
ASSUMED_NETWORK_BYTES_PER_SECOND = 100e9 / 8
"""One-way rate between nodes where a cluster does not say: 100 Gbit/s per node. Assumed."""

LAUNCH_SECONDS = 30e-6
"""What torch takes to put a collective on its stream, beyond what NCCL's own programs take. Cited: 32 KiB take 48 us on
8 x B200 and 40 us on 8 x H200 (ml-engineering, ``all_reduce_bench.py``), of which NCCL's latencies explain 15."""


class Links(NamedTuple):
    """What collectives get of a cluster's links, in bytes per second one way.

    ``local``: each GPU to the next of its node. ``network``: a node to the next, all its GPUs together; ``None`` on
    one node.
    """

    local: float
    local_sum: float
    """As ``local``, for an all-reduce among the GPUs of one node alone."""
    network: float | None
    is_nvlink: bool
    is_tcp: bool = False
    launch_seconds: float = LAUNCH_SECONDS


def node_link_bytes_per_second(node: Node) -> float | None:
    """What each GPU can send to the next of its node in a large collective; None if the link's rate is not known."""
    raw = node.gpu_link_bytes_per_second
    if raw is None:
        return None
    if node.uses_nvlink:
        return raw * NVLINK_EFFICIENCY
    return raw * (PCIE_EFFICIENCY if reaches_peers(node.gpu) else PCIE_NO_PEER_EFFICIENCY)


def reaches_peers(gpu: Gpu) -> bool:
    """Whether GPUs of this kind read one another's memory over PCIe.

    A rule by the name, which the catalog has as the driver reports it: of GeForce cards it is taken that they do not,
    of all others that they do. Nothing else tells a GeForce from a workstation card of the same chip.
    """
    return GEFORCE not in gpu.name.casefold()


def links_of(cluster: Cluster) -> Links | None:
    """The links of a cluster; None if that inside a node is not known (one GPU per node has none, and needs none)."""
    node = cluster.node
    local = float("inf") if node.num_gpus == 1 else node_link_bytes_per_second(node)
    if local is None:
        return None
    local_sum = local
    has_sharp = (node.gpu.compute_capability or (0, 0)) >= SHARP_CAPABILITY and node.num_gpus >= SHARP_LEAST_GPUS
    if node.uses_nvlink and has_sharp:
        local_sum = local / NVLINK_EFFICIENCY * NVLINK_SHARP_EFFICIENCY
    if cluster.num_nodes == 1:
        return Links(local, local_sum, None, node.uses_nvlink)
    raw = cluster.inter_node_bytes_per_second or ASSUMED_NETWORK_BYTES_PER_SECOND
    is_tcp = raw <= TCP_BYTES_PER_SECOND
    return Links(local, local_sum, raw * (TCP_EFFICIENCY if is_tcp else RDMA_EFFICIENCY), node.uses_nvlink, is_tcp)


def link_bytes_per_second(cluster: Cluster) -> float | None:
    """What a large collective moves per GPU and second through the slowest link; None if one's rate is not known.

    A ring goes through all GPUs of a node before it leaves it, so its data cross a node's network once however many
    GPUs there are: the node's whole rate counts.
    """
    local = node_link_bytes_per_second(cluster.node)
    links = links_of(cluster)
    if local is None or links is None:
        return None
    return local if links.network is None else min(local, links.network)
