"""What vLLM takes of a training GPU while it generates, and while the trainer trains (TRL's ``vllm_mode="colocate"``).

vLLM sees to it that weights, caches, activations and graphs take ``gpu_memory_utilization`` of the GPU's whole memory,
beside what the process held before (``vllm/v1/worker/gpu_worker.py`` ``determine_available_memory``: the cache gets
what is left of it). TRL 1.16 starts it with ``max_num_seqs`` answers and 4,096 batched tokens (``vllm_generation.py``).
"""

import math
from typing import NamedTuple

from vlmplan.architecture.packed_weight import nf4_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.host import pinned_bytes
from vlmplan.recipe import Recipe
from vlmplan.units import DType, gib_text

ASLEEP_BYTES = int(1.4 * 1024**3)
"""What stays on the GPU while vLLM sleeps. Cited: the least that was published (huggingface/trl#4086)."""
MOST_ASLEEP_BYTES = int(7.9 * 1024**3)
"""The most that was published of the same (hiyouga/EasyR1#260). It is said, not counted."""
GRAPH_BYTES = 1024**3
"""CUDA graphs and activations of a step of vLLM. Assumed."""
STEP_OF_UTILIZATION = 0.01
"""To which ``vllm_memory_utilization`` is rounded up. A choice."""
SAMPLER_BYTES = DType.FLOAT32.num_bytes
"""Of a logit in the sampler's warm-up: max_num_seqs x vocabulary (huggingface/trl#3523)."""


class InferenceEngine(NamedTuple):
    """vLLM on one GPU. ``total_bytes`` is what the card has in all, ``weight_bytes`` the GPU's part of the weights,
    ``sequence_bytes`` its part of keys and values of one answer with its prompt, ``num_sequences`` those at once."""

    total_bytes: int
    weight_bytes: int
    sequence_bytes: int
    num_sequences: int
    vocabulary: int
    utilization: float | None
    sleep_level: int
    shared_bytes: int = 0
    """Of the weights, which are the trainer's own and counted there."""

    @property
    def fixed_bytes(self) -> int:
        """Bytes of all but the cache."""
        return self.weight_bytes + self.num_sequences * self.vocabulary * SAMPLER_BYTES + GRAPH_BYTES

    @property
    def least_bytes(self) -> int:
        """Bytes with a cache for one answer, without which vLLM does not start."""
        return self.fixed_bytes + self.sequence_bytes

    @property
    def needed_utilization(self) -> float:
        """The least with which all answers are generated at once; more is of no use. Above 1 the GPU is too small."""
        needed = (self.fixed_bytes + self.num_sequences * self.sequence_bytes) / self.total_bytes
        return round(math.ceil(needed / STEP_OF_UTILIZATION) * STEP_OF_UTILIZATION, 2)

    @property
    def problem(self) -> str | None:
        """The sentence, if it is so, that the utilisation which was asked for leaves no room for a cache, so that vLLM
        does not start."""
        if self.utilization is None or int(self.utilization * self.total_bytes) >= self.least_bytes:
            return None
        least = math.ceil(self.least_bytes / self.total_bytes / STEP_OF_UTILIZATION) * STEP_OF_UTILIZATION
        taken = gib_text(int(self.utilization * self.total_bytes))
        needed = f"{least:.2f} or more is needed" if least <= 1 else "no GPU of this kind has as much"
        return (
            f"--vllm-memory-utilization {self.utilization:g} is {taken} of each GPU, but vLLM's weights, sampler and "
            f"graphs and the cache of one answer take "
            f"{gib_text(self.least_bytes)}; {needed}"
        )

    @property
    def awake_bytes(self) -> int:
        """Bytes that vLLM takes while it is awake; where it would not start, more than any GPU has."""
        if self.problem is not None:
            return 2 * self.total_bytes
        utilization = self.needed_utilization if self.utilization is None else self.utilization
        return max(0, int(utilization * self.total_bytes) - self.shared_bytes)

    @property
    def syncing_bytes(self) -> int:
        """While weights are sent to it: of an engine that sleeps, these alone are awake (``wake_up(["weights"])``)."""
        return ASLEEP_BYTES + self.weight_bytes if self.sleep_level else self.awake_bytes

    @property
    def training_bytes(self) -> int:
        """While the trainer trains."""
        return ASLEEP_BYTES if self.sleep_level else self.awake_bytes


def shared_bytes(table: ParameterTable) -> int:
    """Bytes of the trainer's frozen weights, which are tensors of vLLM's (``get_vllm_state_dict`` and
    ``convert_vllm_to_huggingface`` in ``vllm_utils.py`` of unsloth_zoo 2026.10.9)."""
    return sum(one.num_bytes * count for one, count in table.kinds if not one.requires_grad)


class InferenceWeights(NamedTuple):
    """vLLM's weights on one GPU.

    ``asleep_bytes``: what they take of the host with sleep level 1: a pinned copy of each (``CuMemAllocator.sleep``),
    which torch's allocator keeps when vLLM wakes up; level 2 throws them away. Weights that vLLM joins, such as q, k
    and v, are taken one by one.
    """

    num_bytes: int
    asleep_bytes: int


def inference_weights(table: ParameterTable, recipe: Recipe) -> InferenceWeights:
    """What vLLM loads for itself, shared by the task's GPUs: the model without adapters, in 16 bit.

    Of a 4-bit model vLLM packs what is packed there (TRL's ``vllm_generation.py`` gives it ``bitsandbytes``), with
    scales in float32, which its loader unpacks.
    """
    assert recipe.task is not None
    num_sharing = recipe.task.vllm_tensor_parallel
    loaded = [(one, count) for one, count in table.kinds if not (recipe.trains_adapters and one.requires_grad)]
    sizes = [
        (
            one.numel * DType.BFLOAT16.num_bytes
            if one.stored_bytes is None
            else nf4_bytes(one.numel, double_quantises=False),
            count,
        )
        for one, count in loaded
    ]
    return InferenceWeights(
        num_bytes=sum([size * count for size, count in sizes]) // num_sharing,
        asleep_bytes=sum([pinned_bytes(-(-size // num_sharing)) * count for size, count in sizes]),
    )
