"""What a search keeps of one prepared model: its micro batches by secants between a few traces, its model states."""

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from vlmplan.architecture.parameter_adapters import has_stacked_experts
from vlmplan.architecture.trace import Trace
from vlmplan.engines import Engine, ModelStates, engine_of
from vlmplan.engines.profile import MicroBatchProfile, between, micro_batch_profile
from vlmplan.estimation import Estimator
from vlmplan.hardware import Cluster, Gpu
from vlmplan.memory.host import PROCESS_BYTES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, InputGradients, chunk_tokens
from vlmplan.search.combined_traces import CombinedTrace, Switches, TracePair, language_labels, tied_weight
from vlmplan.timing import (
    PhaseDemands,
    PhaseSeconds,
    Rates,
    added_demands,
    demands_at,
    gpu_rates,
    phases_between,
    saved_between,
)

MAX_MASKED = 16
"""A choice: beyond it the mask is what does not fit."""
Capability = tuple[int, int] | None
"""Of a GPU, as its maker counts it; None where it has none."""


@dataclass(frozen=True, slots=True, eq=False)
class Speed:
    """What seconds of a trace depend on: a card's rates for one type of numbers, and which weights stage 3 gathers.

    ``recipe`` is one of those that it stands for.
    """

    rates: Rates
    recipe: Recipe


class Speeds:
    """One object for all recipes that are as fast on a card; None where the speed is not known."""

    def __init__(self) -> None:
        self._speeds: dict[Hashable, tuple[Gpu, Speed | None]] = {}

    def of(self, recipe: Recipe, gpu: Gpu) -> Speed | None:
        threshold = recipe.zero.stage3_param_persistence_threshold if recipe.zero_stage == 3 else None
        key = (gpu.id, recipe.precision, recipe.attention, recipe.offload_activations, threshold)
        known = self._speeds.get(key)
        if known is None or not (known[0] is gpu or known[0] == gpu):  # it may have been calibrated meanwhile
            rates = gpu_rates(gpu, recipe)
            known = self._speeds[key] = gpu, None if rates is None else Speed(rates, recipe)
        return known[1]


class TracedBatches:
    """Micro batches of one prepared model and kind of engine: one sample, the most that can be asked for, and what the
    loss needs in between, each traced with its switches at either end.

    One chunk of logits grows with the batch only until it is full, so the last batch before that and the first one
    after are looked at as well. So is every batch up to ``MAX_MASKED`` where its samples or images are one row under a
    mask, which begins with the second of them and grows with the square.
    """

    def __init__(
        self,
        estimator: Estimator,
        recipe: Recipe,
        capability: Capability,
        largest: int,
        ends: tuple[Switches, Switches],
    ) -> None:
        scored = estimator.workload.target_tokens or estimator.workload.seq_len
        first_full = -(-chunk_tokens(estimator.model.head.weight.shape[0]) // scored)
        inner = {size for size in (first_full - 1, first_full) if 1 < size < largest}
        self.masks_a_row = recipe.masks_its_row or _masks_images(estimator, recipe)
        """Whether samples or images of a micro batch are one row under a mask: smaller ones may be faster."""
        if self.masks_a_row:
            inner |= set(range(2, min(largest, MAX_MASKED + 1)))
        self.sizes = sorted({1, largest} | inner)
        self._estimator, self._recipe, self._capability = estimator, recipe, capability
        self._ends = ends
        # Whether an encoder has a graph depends on the language model's checkpoints then: no trace has its stretches.
        is_cut = recipe.input_gradients is InputGradients.NONE
        self._labels = language_labels(estimator.model) if is_cut else ()
        self._tied = tied_weight(estimator.model)
        self.has_experts = has_stacked_experts(estimator.model)
        """Whose products take as long as the weights of all experts are read, until each expert has so many tokens that
        it is the products themselves which take longer."""
        self._pairs: dict[int, TracePair] = {}
        self._batches: dict[Switches, MicroBatches] = {}
        self._demands: dict[tuple[int, Speed], PhaseDemands] = {}

    def pair(self, size: int) -> TracePair:
        """The micro batch of ``size`` samples, which is one of ``sizes``."""
        if size not in self._pairs:
            self._pairs[size] = TracePair(self._labels, self._tied, self._ends, partial(self._own_trace, size))
        return self._pairs[size]

    def trace(self, size: int, switches: Switches) -> CombinedTrace:
        """A micro batch of any size: put together where both ends are traced anyway, else from a trace of its own."""
        if size in self.sizes:
            return self.pair(size).combined(switches)
        return CombinedTrace(self._own_trace(size, switches))

    def _own_trace(self, size: int, switches: Switches) -> Trace:
        """The first of a run where that takes more than later ones."""
        recipe = switches.apply(self._recipe.with_changes(micro_batch=size))
        first = self._estimator.first_trace(recipe, self._capability)
        return first or self._estimator.trace(recipe, self._capability)

    def micro_batches(self, switches: Switches) -> "MicroBatches":
        """The micro batches with these switches, one object."""
        if switches not in self._batches:
            self._batches[switches] = MicroBatches(self, switches)
        return self._batches[switches]

    def demands(self, size: int, switches: Switches, speed: Speed) -> PhaseDemands:
        """The demands of the micro batch of ``size`` samples, added up from its parts."""
        return added_demands([self._demands_of(part, speed) for part in self.pair(size).parts(switches)])

    def saved_between(self, low: int, high: int, fraction: float, switches: Switches, speed: Speed) -> PhaseSeconds:
        """What a micro batch between two others takes less than is between theirs."""
        pairs = zip(self.pair(low).parts(switches), self.pair(high).parts(switches), strict=True)
        parts = [saved_between(speed.rates, one, other, fraction) for one, other in pairs]
        first, again, back = (sum(phase) for phase in zip(*parts, strict=True))
        return first, again, back

    def _demands_of(self, part: Trace, speed: Speed) -> PhaseDemands:
        key = (id(part), speed)
        if key not in self._demands:
            self._demands[key] = demands_at(speed.rates, part, speed.recipe)
        return self._demands[key]


def _masks_images(estimator: Estimator, recipe: Recipe) -> bool:
    """Whether the images of a micro batch are one row under a mask."""
    if not estimator.workload.images_per_sample or recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        return False
    return any(module.masks_all_images for _, module in estimator.model.distinct_modules())


class Peaks(NamedTuple):
    """What a micro batch takes, and by how many bytes its exact peaks may lie above and below."""

    profile: MicroBatchProfile
    above_bytes: int
    below_bytes: int


def _peak_bytes(profile: MicroBatchProfile) -> int:
    """The highest moment without gradients."""
    return max(profile.forward_peak, profile.dropped_peak)


class MicroBatches:
    """Micro batches with the same switches, by secants between those that are traced.

    Secants are above what grows faster and faster.
    """

    def __init__(self, traced: TracedBatches, switches: Switches) -> None:
        self.sizes = traced.sizes
        self._traced, self._switches = traced, switches
        self._profiles: dict[int, Peaks] = {}
        self._between: dict[int, Peaks] = {}
        self._demands: dict[tuple[int, Speed], PhaseDemands] = {}
        self._floors: dict[int, int] = {}
        self._phases: dict[tuple[int, Speed], PhaseSeconds] = {}

    @property
    def masks_a_row(self) -> bool:
        """Whether smaller ones may be faster."""
        return self._traced.masks_a_row

    @property
    def trace(self) -> Trace:
        """One of the micro batches: they all use the same weights in the same order."""
        return self.traced(self.sizes[0]).trace

    def traced(self, micro_batch: int) -> CombinedTrace:
        """The micro batch itself."""
        return self._traced.trace(micro_batch, self._switches)

    def profile(self, micro_batch: int) -> Peaks:
        """What a micro batch takes."""
        if micro_batch not in self._between:
            self._between[micro_batch] = self._new_profile(micro_batch)
        return self._between[micro_batch]

    def _new_profile(self, micro_batch: int) -> Peaks:
        low, high, fraction = self._place(micro_batch)
        below = self.exact_profile(low)
        if low == high:
            return below
        above = self.exact_profile(high)
        profile = between(below.profile, above.profile, fraction)
        unmatched = max(below.above_bytes, above.above_bytes)
        # What is live at a moment is a line in the batch that neither falls nor begins below zero: a peak, the highest
        # of such lines, is at least that of the smaller batch, and at least in proportion to that of the larger one.
        least = max(_peak_bytes(below.profile), _peak_bytes(above.profile) * micro_batch // high)
        return Peaks(profile, unmatched, unmatched + _peak_bytes(profile) - least)

    def floor_bytes(self, micro_batch: int) -> int:
        """Bytes that its own tensors take at least, beside the model states."""
        if micro_batch not in self._floors:
            profile, _, below_bytes = self.profile(micro_batch)
            self._floors[micro_batch] = _peak_bytes(profile) - below_bytes
        return self._floors[micro_batch]

    def exact_profile(self, micro_batch: int) -> Peaks:
        """What a micro batch takes by a trace of its own."""
        if micro_batch not in self._profiles:
            trace, unmatched_bytes = self.traced(micro_batch)
            self._profiles[micro_batch] = Peaks(micro_batch_profile(trace), unmatched_bytes, unmatched_bytes)
        return self._profiles[micro_batch]

    def _place(self, micro_batch: int) -> tuple[int, int, float]:
        """The traced sizes on either side, and the fraction of the way from the one to the other; where GPUs share what
        they answer, some are larger than those that a search tries otherwise, and traced themselves."""
        high = bisect_left(self.sizes, micro_batch)
        if high == len(self.sizes):
            return micro_batch, micro_batch, 0.0
        above = self.sizes[high]
        if above == micro_batch:
            return above, above, 0.0
        below = self.sizes[high - 1]
        return below, above, (micro_batch - below) / (above - below)

    def seconds(self, micro_batch: int, speed: Speed) -> PhaseSeconds:
        """(forward, recompute, backward) of one micro batch."""
        key = (micro_batch, speed)
        if key not in self._phases:
            low, high, fraction = self._place(micro_batch)
            saved = (0.0, 0.0, 0.0)
            if self._traced.has_experts and low != high:
                saved = self._traced.saved_between(low, high, fraction, self._switches, speed)
            ends = self._demands_of(low, speed), self._demands_of(high, speed)
            self._phases[key] = phases_between(*ends, fraction, saved)
        return self._phases[key]

    def _demands_of(self, size: int, speed: Speed) -> PhaseDemands:
        key = (size, speed)
        if key not in self._demands:
            self._demands[key] = self._traced.demands(size, self._switches, speed)
        return self._demands[key]


class States:
    """Model states of one estimator by engine, sizes and ranks."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator, self._table = estimator, estimator.table
        self._states: dict[Hashable, ModelStates] = {}
        self._host_bytes: dict[Hashable, int] = {}
        self._resume_host_bytes: dict[Hashable, int] = {}

    def states(self, recipe: Recipe, num_ranks: int, room_bytes: int | None) -> ModelStates:
        key = (recipe.engine_key, recipe.optimizer, num_ranks, room_bytes)
        if key not in self._states:
            self._states[key] = self.engine(recipe, num_ranks, room_bytes).states()
        return self._states[key]

    def engine(self, recipe: Recipe, num_ranks: int, room_bytes: int | None) -> Engine:
        """The engine of the recipe on the rank whose optimizer step takes most."""
        return engine_of(self._table, recipe, num_ranks=num_ranks, room_bytes=room_bytes)

    def host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """The most that a node's host holds; where its ranks are the devices, beside what those hold."""
        num_gpus, per_node = cluster.num_gpus, cluster.node.num_gpus
        is_cpu = cluster.node.gpu.is_cpu
        on = num_gpus, per_node, is_cpu, self._estimator.room_bytes(recipe, cluster)
        key = (recipe.engine_key, recipe.optimizer, recipe.grad_accum > 1, recipe.task, _waiting_on_host(recipe), *on)
        if key not in self._host_bytes:
            host = self._estimator.host(recipe, cluster)
            self._host_bytes[key] = host.steady_bytes - per_node * PROCESS_BYTES if is_cpu else host.peak_bytes
        return self._host_bytes[key]

    def resume_host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """Bytes that a node's host holds while the run goes on from a checkpoint."""
        num_gpus, per_node = cluster.num_gpus, cluster.node.num_gpus
        of_update = (recipe.engine_key, recipe.optimizer, recipe.grad_accum > 1, recipe.task)
        key = (*of_update, _waiting_on_host(recipe), num_gpus, per_node)
        if key not in self._resume_host_bytes:
            self._resume_host_bytes[key] = self._estimator.resume_host_bytes(recipe, cluster)
        return self._resume_host_bytes[key]


def _waiting_on_host(recipe: Recipe) -> Hashable:
    """What the inputs of layers that wait for backward in host memory depend on; None where none do."""
    if not recipe.offload_activations:
        return None
    return recipe.micro_batch, recipe.activation_checkpointing, recipe.vision_activation_checkpointing
