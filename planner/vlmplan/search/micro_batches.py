"""What a search keeps of one prepared model: its micro batches by secants between a few traces, its model states."""

from bisect import bisect_left
from typing import Any

from vlmplan.architecture.trace import Trace
from vlmplan.estimate import Estimator
from vlmplan.hardware import Cluster, Gpu, Vendor
from vlmplan.memory.bounds import MicroBatchProfile, between, micro_batch_profile
from vlmplan.memory.engines import ModelStates
from vlmplan.memory.host import PROCESS_BYTES
from vlmplan.memory.parameters import fullest_rank, owned_elements, partition_of
from vlmplan.memory.timeline import model_states
from vlmplan.recipe import Precision, Recipe, chunk_tokens
from vlmplan.timing import MicroBatchSeconds, PhaseSeconds, micro_batch_seconds


class MicroBatches:
    """One kind of micro batch seen with one sample and with the most that can be asked for, by secants in between.

    Secants are above what grows faster and faster. One chunk of logits grows with the batch only until it is full, so
    the last batch before that and the first one after are looked at as well.
    """

    def __init__(self, estimator: Estimator, recipe: Recipe, capability: tuple[int, int] | None, largest: int) -> None:
        first_full = -(-chunk_tokens(estimator.model.head.weight.shape[0]) // estimator.workload.seq_len)
        inner = {size for size in (first_full - 1, first_full) if 1 < size < largest}
        self.sizes = sorted({1, largest} | inner)
        self._estimator, self._recipe, self._capability = estimator, recipe, capability
        self._traces: dict[int, Trace] = {}
        self._profiles: dict[int, MicroBatchProfile] = {}
        self._seconds: dict[tuple[int, str, Precision, bool], MicroBatchSeconds | None] = {}

    @property
    def trace(self) -> Trace:
        """One of the micro batches: they all use the same weights in the same order."""
        return self._trace(next(iter(self._profiles), 0))

    def _trace(self, position: int) -> Trace:
        if position not in self._traces:
            recipe = self._recipe.with_changes(micro_batch=self.sizes[position])
            self._traces[position] = self._estimator.trace(recipe, self._capability)
        return self._traces[position]

    def _profile(self, position: int) -> MicroBatchProfile:
        if position not in self._profiles:
            self._profiles[position] = micro_batch_profile(self._trace(position))
        return self._profiles[position]

    def _place(self, micro_batch: int) -> tuple[int, int, float]:
        """The sizes on either side, as positions, and the fraction of the way from the one to the other."""
        high = bisect_left(self.sizes, micro_batch)
        if self.sizes[high] == micro_batch:
            return high, high, 0.0
        below, above = self.sizes[high - 1], self.sizes[high]
        return high - 1, high, (micro_batch - below) / (above - below)

    def profile(self, micro_batch: int) -> MicroBatchProfile:
        low, high, fraction = self._place(micro_batch)
        if low == high:
            return self._profile(low)
        return between(self._profile(low), self._profile(high), fraction)

    def seconds(self, micro_batch: int, gpu: Gpu, recipe: Recipe) -> PhaseSeconds | None:
        """(forward, recompute, backward) of one micro batch; None if the GPU's speed is not known."""
        low, high, fraction = self._place(micro_batch)
        start, end = self._seconds_of(low, gpu, recipe), self._seconds_of(high, gpu, recipe)
        return None if start is None or end is None else start.towards(end, fraction)

    def _seconds_of(self, position: int, gpu: Gpu, recipe: Recipe) -> MicroBatchSeconds | None:
        key = (position, gpu.id, recipe.precision, recipe.zero_stage == 3)
        if key not in self._seconds:
            self._seconds[key] = micro_batch_seconds(self._trace(position), gpu, recipe)
        return self._seconds[key]


class States:
    """Model states of one estimator by engine, sizes and ranks."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator, self._table = estimator, estimator.table
        self._states: dict[Any, ModelStates] = {}
        self._owned: dict[int, tuple[int, int]] = {}
        self._host_bytes: dict[Any, int] = {}

    def states(self, recipe: Recipe, num_ranks: int) -> ModelStates:
        stage = recipe.zero_stage
        key: Any = stage
        if stage in (1, 2):
            key = (stage, recipe.offload_optimizer, num_ranks)
        elif stage == 3:
            key = (stage, recipe.offload_optimizer, recipe.offload_params, recipe.hpz, recipe.zero, num_ranks)
        if key not in self._states:
            rank = self._fullest(num_ranks)[0] if recipe.zero_stage in (1, 2) else 0
            self._states[key] = model_states(self._table, recipe, num_ranks, rank)
        return self._states[key]

    def owned_bytes(self, num_ranks: int) -> int:
        """Gradients that the fullest rank keeps under stages 1 and 2."""
        return self._fullest(num_ranks)[1]

    def host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """The most that a node's host holds; where its ranks are the devices, beside what those hold."""
        num_gpus, per_node = cluster.num_gpus, cluster.node.num_gpus
        is_cpu = cluster.node.gpu.vendor is Vendor.CPU
        offload = (recipe.offload_optimizer, recipe.offload_params, recipe.optimizer)
        key = (recipe.zero_stage, offload, recipe.grad_accum > 1, num_gpus, per_node, is_cpu)
        if key not in self._host_bytes:
            host = self._estimator.host(recipe, cluster)
            self._host_bytes[key] = host.steady_bytes - per_node * PROCESS_BYTES if is_cpu else host.peak_bytes
        return self._host_bytes[key]

    def _fullest(self, num_ranks: int) -> tuple[int, int]:
        if num_ranks not in self._owned:
            rank = fullest_rank(self._table, num_ranks)
            owned = owned_elements(self._table, partition_of(self._table.num_trained, num_ranks, rank))
            self._owned[num_ranks] = (rank, owned * self._table.trained_dtype.num_bytes)
        return self._owned[num_ranks]
