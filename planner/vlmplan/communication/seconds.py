"""Seconds that a step's collectives take on a cluster by themselves."""

from typing import NamedTuple

from vlmplan.communication.links import LAUNCH_SECONDS
from vlmplan.communication.measured import measured_links
from vlmplan.communication.rings import collective_seconds
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.hardware import Cluster

OVERLAP_FRACTION = 0.7
"""Part of a collective that hides behind computation where an engine overlaps them. Assumed."""
COLLECTIVE_LATENCY_SECONDS = LAUNCH_SECONDS
"""What every collective costs, however small, for choosing the size of buckets."""


class CommunicationSeconds(NamedTuple):
    """Seconds by the phase in which the collectives are started."""

    forward: float = 0.0
    backward: float = 0.0
    step: float = 0.0
    exchange: float = 0.0
    """All-to-alls in forward and backward, for which attention waits: nothing hides them."""

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.step + self.exchange


def communication_seconds(collectives: tuple[Collectives, ...], cluster: Cluster) -> CommunicationSeconds | None:
    """Seconds of ``collectives`` on ``cluster``, each of its kind as large as their mean; None if a link is not known.

    One GPU sends nothing, whatever its links.
    """
    if cluster.num_gpus == 1 or not collectives:
        return CommunicationSeconds()
    links = measured_links(cluster)
    if links is None:
        return None
    seconds, exchange = dict.fromkeys(StepPhase, 0.0), 0.0
    for one in collectives:
        size = one.group_size or cluster.num_gpus
        at_once = min(one.ranks_apart, cluster.node.num_gpus)  # groups that have a rank on each node
        per_node = min(size, max(1, cluster.node.num_gpus // one.ranks_apart))
        shared = links._replace(network=None if links.network is None else links.network / at_once)
        one_takes = collective_seconds(
            one.kind, one.num_bytes // one.count, num_nodes=-(-size // per_node), ranks_per_node=per_node, links=shared
        )
        if one.kind is CollectiveKind.ALL_TO_ALL:
            exchange += one.count * one_takes
        else:
            seconds[one.phase] += one.count * one_takes
    return CommunicationSeconds(
        forward=seconds[StepPhase.FORWARD],
        backward=seconds[StepPhase.BACKWARD],
        step=seconds[StepPhase.STEP],
        exchange=exchange,
    )
