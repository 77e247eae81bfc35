"""How much an engine sends in a step, and how long that takes on a cluster's links.

volume    the collectives of a step, and their totals
links     rates of NVLink, PCIe and networks
measured  the same links where a calibration has measured them
rings     seconds of one collective, by NCCL's own model
seconds   seconds of all collectives of a step
"""

from vlmplan.communication.links import (
    ASSUMED_NETWORK_BYTES_PER_SECOND,
    LAUNCH_SECONDS,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    PCIE_NO_PEER_EFFICIENCY,
    RDMA_EFFICIENCY,
    TCP_EFFICIENCY,
    Links,
    link_bytes_per_second,
    links_of,
)
from vlmplan.communication.rings import collective_seconds
from vlmplan.communication.seconds import (
    COLLECTIVE_LATENCY_SECONDS,
    OVERLAP_FRACTION,
    CommunicationSeconds,
    communication_seconds,
)
from vlmplan.communication.volume import KindTotal, by_kind, step_collectives, volume_json

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
    "CommunicationSeconds",
    "KindTotal",
    "Links",
    "by_kind",
    "collective_seconds",
    "communication_seconds",
    "link_bytes_per_second",
    "links_of",
    "step_collectives",
    "volume_json",
]
