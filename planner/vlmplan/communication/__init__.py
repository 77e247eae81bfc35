"""What ZeRO sends in a step, and how long that takes on a cluster's links.

messages      the collectives of a step, as DeepSpeed starts them
links         rates of NVLink, PCIe and networks
collectives   seconds of one collective, by NCCL's own model
"""

from dataclasses import dataclass

from vlmplan.communication.collectives import LAUNCH_SECONDS, Collective, collective_seconds
from vlmplan.communication.links import (
    ASSUMED_NETWORK_BYTES_PER_SECOND,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    PCIE_NO_PEER_EFFICIENCY,
    RDMA_EFFICIENCY,
    TCP_EFFICIENCY,
    Links,
    link_bytes_per_second,
    links_of,
)
from vlmplan.communication.messages import KindTotal, Messages, When, by_kind, messages_json, traffic
from vlmplan.hardware import Cluster

OVERLAP_FRACTION = 0.7
"""Part of a collective that hides behind computation where DeepSpeed overlaps them. Assumed."""
COLLECTIVE_LATENCY_SECONDS = LAUNCH_SECONDS
"""What every collective costs, however small, for choosing the size of buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSeconds:
    """Seconds that a step's messages take by themselves, by the phase in which they are sent."""

    forward: float = 0.0
    backward: float = 0.0
    step: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.step


def exchange_seconds(messages: tuple[Messages, ...], cluster: Cluster) -> ExchangeSeconds | None:
    """Seconds of ``messages`` on ``cluster``, each of its kind as large as their mean; None if a link is not known.

    One GPU sends nothing, whatever its links.
    """
    if cluster.num_gpus == 1 or not messages:
        return ExchangeSeconds()
    links = links_of(cluster)
    if links is None:
        return None
    seconds = dict.fromkeys(When, 0.0)
    for one in messages:
        size = one.group_size or cluster.num_gpus
        per_node = min(size, cluster.node.num_gpus)
        one_takes = collective_seconds(
            one.kind, one.num_bytes // one.count, num_nodes=-(-size // per_node), ranks_per_node=per_node, links=links
        )
        seconds[one.when] += one.count * one_takes
    return ExchangeSeconds(forward=seconds[When.FORWARD], backward=seconds[When.BACKWARD], step=seconds[When.STEP])


__all__ = [
    "ASSUMED_NETWORK_BYTES_PER_SECOND",
    "COLLECTIVE_LATENCY_SECONDS",
    "LAUNCH_SECONDS",
    "NVLINK_EFFICIENCY",
    "OVERLAP_FRACTION",
    "PCIE_EFFICIENCY",
    "PCIE_NO_PEER_EFFICIENCY",
    "RDMA_EFFICIENCY",
    "TCP_EFFICIENCY",
    "Collective",
    "ExchangeSeconds",
    "KindTotal",
    "Links",
    "Messages",
    "When",
    "by_kind",
    "collective_seconds",
    "exchange_seconds",
    "link_bytes_per_second",
    "links_of",
    "messages_json",
    "traffic",
]
