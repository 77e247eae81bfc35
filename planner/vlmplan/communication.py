"""Bytes and seconds of ZeRO's collectives.

Symbols: p bytes of a trained weight and gradient, Φ trained elements, Ψ all, N ranks. A ring moves (N-1)/N of the data
per GPU for an all-gather or reduce-scatter and twice that for an all-reduce. Source: Rajbhandari et al., ZeRO, arXiv
1910.02054, section 7; deepspeed 0.19.8 all-reduces buckets in stages 1 and 2 (``use_multi_rank_bucket_allreduce``).
"""

from dataclasses import dataclass

from vlmplan.hardware import Cluster
from vlmplan.memory.parameters import ParameterTable
from vlmplan.recipe import Recipe

NVLINK_EFFICIENCY = 0.8
"""Part of a link's one-way rate that large NCCL collectives reach. Assumed: 0.7 to 0.85 of the data sheet."""
PCIE_EFFICIENCY = 0.7
"""The same over PCIe with peer-to-peer. Assumed."""
PCIE_NO_PEER_EFFICIENCY = 0.35
"""The same where GPUs cannot reach each other (GeForce): every byte crosses the bus to the host and back. Assumed."""
NETWORK_EFFICIENCY = 0.7
"""The same between nodes. Assumed."""
ASSUMED_NETWORK_BYTES_PER_SECOND = 100e9 / 8
"""One-way rate between nodes where a cluster does not say: 100 Gbit/s per node. Assumed."""
COLLECTIVE_LATENCY_SECONDS = 30e-6
"""Fixed time of one collective on one node. Assumed."""
OVERLAP_FRACTION = 0.7
"""Part of a collective that hides behind computation where DeepSpeed overlaps them. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that each GPU sends, and collectives started, per micro batch and per optimizer step."""

    micro_batch_bytes: int = 0
    micro_batch_collectives: int = 0
    step_bytes: int = 0
    step_collectives: int = 0


def traffic(table: ParameterTable, recipe: Recipe, *, num_ranks: int, num_modules: int) -> Traffic:
    """What one rank sends.

    Stages 0 and 1 all-reduce gradients once a step, stage 2 after every micro batch; stages 1 and 2 gather the
    updated weights. Stage 3 gathers weights in forward and again in backward (activation checkpointing runs
    forward once more there, which the reuse distance covers or not) and scatters gradients, every micro batch.
    """
    if num_ranks == 1 or recipe.zero_stage is None:
        return Traffic()
    share = (num_ranks - 1) / num_ranks
    gradients = round(share * table.trained_bytes)
    buckets = max(1, -(-table.num_trained // recipe.zero.reduce_bucket_size))
    if recipe.zero_stage == 0:
        return Traffic(step_bytes=2 * gradients, step_collectives=buckets)
    if recipe.zero_stage == 3:
        weights = round(share * table.total_bytes)
        gathers = 2 if recipe.zero.stage3_max_reuse_distance or not recipe.activation_checkpointing else 3
        return Traffic(
            micro_batch_bytes=gathers * weights + gradients, micro_batch_collectives=gathers * num_modules + buckets
        )
    once = Traffic(step_bytes=3 * gradients, step_collectives=buckets + 1)
    if recipe.zero_stage == 1:
        return once
    return Traffic(
        micro_batch_bytes=2 * gradients, micro_batch_collectives=buckets, step_bytes=gradients, step_collectives=1
    )


def link_bytes_per_second(cluster: Cluster) -> float | None:
    """What each GPU can send to the others in a large collective; None if a link's rate is not known.

    A ring goes through all GPUs of a node before it leaves it, so its data cross a node's network once however many
    GPUs there are: the node's whole rate counts. (Two nodes of 8 H100 with 200 GB/s each reach a bus bandwidth of 340
    GB/s in nccl-tests, where trees halve what crosses.)
    """
    node = cluster.node
    raw = node.gpu_link_bytes_per_second
    if raw is None:
        return None
    if node.uses_nvlink:
        rate = raw * NVLINK_EFFICIENCY
    else:
        is_geforce = "geforce" in node.gpu.name.casefold()
        rate = raw * (PCIE_NO_PEER_EFFICIENCY if is_geforce else PCIE_EFFICIENCY)
    if cluster.num_nodes == 1:
        return rate
    network = cluster.inter_node_bytes_per_second or ASSUMED_NETWORK_BYTES_PER_SECOND
    return min(rate, network * NETWORK_EFFICIENCY)


def exchange_seconds(num_bytes: int, num_collectives: int, bytes_per_second: float) -> float:
    return num_bytes / bytes_per_second + num_collectives * COLLECTIVE_LATENCY_SECONDS
