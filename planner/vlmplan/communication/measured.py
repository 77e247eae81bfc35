"""Links between the GPUs of one node as a calibration has measured them.

Sizes of buckets are chosen by what links are expected to be (``link_bytes_per_second``), calibrated or not: a plan has
the same bytes wherever it is made.
"""

from vlmplan.communication.links import Links, links_of
from vlmplan.communication.rings import collective_seconds
from vlmplan.engines.collectives import CollectiveKind
from vlmplan.hardware import Cluster

LEAST_COLLECTIVE_BYTES = 1024
"""Of the all-gather by which the fixed time of a collective is measured."""


def measured_links(cluster: Cluster) -> Links | None:
    """``links_of``, with what was measured among as many GPUs as a node of the cluster has.

    What was measured among another number says nothing of these, and nothing that was measured knows the network. The
    fixed time of a collective is that of the smallest less what NCCL's own latencies explain of it.
    """
    links, node = links_of(cluster), cluster.node
    found = node.gpu.calibration
    if found is None or node.num_gpus == 1 or found.num_ranks != node.num_gpus:
        return links
    ring, summed = found.value("ring_bandwidth"), found.value("sum_bandwidth")
    if links is None:
        if ring is None or cluster.num_nodes > 1:
            return None
        links = Links(ring.value, ring.value, None, is_nvlink=False)
    if ring is not None:
        links = links._replace(local=ring.value, local_sum=ring.value)
    if summed is not None:
        links = links._replace(local_sum=summed.value)
    smallest = found.value("collective_seconds")
    if smallest is None:
        return links
    explained = collective_seconds(
        CollectiveKind.ALL_GATHER,
        LEAST_COLLECTIVE_BYTES,
        num_nodes=1,
        ranks_per_node=node.num_gpus,
        links=links._replace(launch_seconds=0.0, network=None),
    )
    return links._replace(launch_seconds=max(0.0, smallest.value - explained))
