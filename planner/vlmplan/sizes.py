"""Bucket, prefetch, live and reuse sizes for ``zero_optimization``, chosen for the links and the memory at hand.

A collective pays a fixed latency, so a bucket should be large enough that the latency costs little beside the
transfer, and no larger, because the bucket and its copies sit in memory beside the micro batch.
"""

from functools import lru_cache
from typing import NamedTuple

from vlmplan.architecture.model import Model
from vlmplan.communication import COLLECTIVE_LATENCY_SECONDS, link_bytes_per_second
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.zero import ZeroSettings

LATENCY_FRACTION = 0.05
"""Part of a collective's time that its fixed latency may take. A choice."""
UNKNOWN_LINK_BYTES_PER_SECOND = 20e9
"""Rate for sizing where a link is not known; it only decides how large a bucket is worth having. Assumed: what PCIe 4
reaches."""
MIN_BUCKET_ELEMENTS = 10_000_000
MAX_BUCKET_ELEMENTS = 200_000_000
"""Between these a bucket is as large as its latency asks for. A choice: DeepSpeed's default of 500,000,000 is, with a
second bucket, 2 GB of bf16 beside the micro batch."""
SUB_GROUP_ELEMENTS = 100_000_000
"""Elements that one stage-3 optimizer step handles at a time: 0.6 GB of temporaries. A choice."""
PERSISTENCE_PER_WIDTH = 10
"""Weights up to this many times the hidden size stay whole: norms and biases. The rule of transformers'
``integrations/deepspeed.py`` for "auto"."""


class ModelSizes(NamedTuple):
    """What the sizes depend on: elements of the largest layer of any stack, and the width of the language model."""

    largest_layer: int
    hidden_size: int


def model_sizes(model: Model) -> ModelSizes:
    layers = (
        sum(parameter.numel for _, parameter in kind.named_parameters())
        for _, stack in model.stacks()
        for kind in stack.kinds
    )
    return ModelSizes(largest_layer=max(layers, default=0), hidden_size=model.input_embeddings.weight.shape[1])


def zero_settings(
    model: ModelSizes, table: ParameterTable, recipe: Recipe, cluster: Cluster, *, low_memory: bool
) -> ZeroSettings:
    """The sizes for one recipe; ``low_memory`` takes the least memory instead of the best speed.

    Stage 3 keeps two layers' weights whole and fetches the next one ahead, and under activation checkpointing lets a
    layer's weights live from recomputation to backward; lean, every module's weights come and go by themselves.
    Overlapping takes a second bucket, but stage 1 would keep all gradients until after backward without it. There a
    bucket is no smaller than it takes to keep least. ms-swift's GRPO fetches nothing ahead (``GRPOConfig`` in
    ``rlhf_trainers/arguments.py``).
    """
    rate = link_bytes_per_second(cluster) or UNKNOWN_LINK_BYTES_PER_SECOND
    wanted = COLLECTIVE_LATENCY_SECONDS * rate / LATENCY_FRACTION / table.trained_dtype.num_bytes
    bucket = min(MAX_BUCKET_ELEMENTS, max(MIN_BUCKET_ELEMENTS, round(wanted)))
    if low_memory:
        bucket = MIN_BUCKET_ELEMENTS
    if recipe.zero_stage == 1 and cluster.num_gpus > 1:
        bucket = max(bucket, _least_of_stage_1(table))
    bucket = even(min(bucket, max(table.num_trained, 2)))
    overlaps = recipe.zero_stage == 1 or (recipe.zero_stage in (2, 3) and not low_memory)
    prefetches = not low_memory and (recipe.task is None or not recipe.task.is_ms_swifts_grpo)
    overlaps = cluster.num_gpus > 1 and overlaps
    return _zero_settings(model, bucket, overlaps=overlaps, low_memory=low_memory, prefetches=prefetches)


def _least_of_stage_1(table: ParameterTable) -> int:
    """Elements of the bucket with which stage 1 keeps least in backward: two buckets, and to its end every gradient
    that is larger than one, but for those of which the rank has a share (``reduce_ipg_grads``)."""
    if _least_of_stage_1 not in table.memo:
        trained = [(one.numel, count) for one, count in table.kinds if one.requires_grad]

        def kept(bucket: int) -> int:
            return 2 * bucket + sum(numel * count for numel, count in trained if numel > bucket)

        sizes = {MIN_BUCKET_ELEMENTS, *(numel for numel, _ in trained if numel > MIN_BUCKET_ELEMENTS)}
        table.memo[_least_of_stage_1] = min(sorted(sizes), key=kept)
    return table.memo[_least_of_stage_1]


@lru_cache(maxsize=1024)
def _zero_settings(
    model: ModelSizes, bucket: int, *, overlaps: bool, low_memory: bool, prefetches: bool
) -> ZeroSettings:
    """One object for what is the same on many clusters."""
    layer = model.largest_layer
    return ZeroSettings(
        reduce_bucket_size=bucket,
        allgather_bucket_size=bucket,
        overlap_comm=overlaps,
        stage3_prefetch_bucket_size=layer if prefetches else 0,
        stage3_param_persistence_threshold=PERSISTENCE_PER_WIDTH * model.hidden_size,
        stage3_max_live_parameters=0 if low_memory else 3 * layer,
        stage3_max_reuse_distance=0 if low_memory else 2 * layer,
        sub_group_size=SUB_GROUP_ELEMENTS,
    )


def even(count: int) -> int:
    """DeepSpeed wants bucket sizes that are a multiple of two (``nccl_start_alignment_factor``)."""
    return count + count % 2
