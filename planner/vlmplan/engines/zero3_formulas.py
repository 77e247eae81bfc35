"""ZeRO stage 3 in closed form: what it holds of a model, bounds of a micro batch beside that, and what it sends.

For searching, where ``engines.zero3`` would walk a step for each of thousands of setups; tests hold one to the other.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from vlmplan.architecture.trace import Trace
from vlmplan.engines.adapter_starts import BOUND_BYTES
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase, padded, padded_total, reductions
from vlmplan.engines.components import Components, higher
from vlmplan.engines.coordinator.all_gathers import weight_gathers
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import NORM_BYTES, overflow_check_bytes, state_bytes, update_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.engines.shards import Shards
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.units import DType


class Zero3Formulas(Engine):
    """Stage 3 as ``Engine`` has it in closed form."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.shards = Shards(table, recipe, num_ranks)
        self.gradient_bytes = recipe.precision.dtype.num_bytes
        """Of an element where gradients are reduced and accumulated, whatever type their weights have (``engine.py``
        ``communication_data_type``, ``get_data_types``): adapters may be float32 beside bf16."""
        self.reduced_bytes = DType.FLOAT32.num_bytes if self.shares_samples else self.gradient_bytes
        """The same as it is sent, and in the bucket: float32 where ranks share samples
        (``seq_parallel_communication_data_type``)."""

    def states(self) -> ModelStates:
        """pΨ/N shards + small weights whole + gΦ/N gradients + mΦ/N + sΦ/N + g·bucket.

        The step works in sub-groups: it flattens the gradients of one (g) and casts them (m), where the types differ.
        """
        recipe, num_ranks = self.recipe, self.num_ranks
        p, g, m = self.weight_bytes, self.gradient_bytes, self.master_bytes
        shards, persistent = self.shards.weight_totals
        frozen_copies, trained_copies = self.shards.secondary_totals
        secondary = Components(weights=trained_copies)
        weights = Components(weights=(0 if self.offloads_weights else shards) + frozen_copies)
        bucket = recipe.zero.reduce_bucket_size * self.reduced_bytes if recipe.zero.contiguous_gradients else 0
        largest_shard = -(-self.table.largest_trained // num_ranks)
        hooked = largest_shard * p * (num_ranks + self.offloads_weights)
        start = weights + Components(communication_buffers=bucket)
        whole = Components(weights=persistent)
        together = whole + Components(weights=self.shards.arriving_small_bytes)
        if self.offloads_optimizer:
            return ModelStates(
                at_start=start,
                resident=start + whole,
                init_peak=start + Components(temporaries=hooked),
                step_peak=start + together,
                secondary=secondary,
            )
        trained = self.table.sharded_elements(num_ranks)
        groups = self.sub_groups
        group = max(groups)
        master = Components(optimizer_states=trained * m)
        making = weights + master + Components(temporaries=group * m)
        start = start + master + Components(gradients=trained * g)
        building = higher(making, start + Components(temporaries=hooked))
        states = Components(optimizer_states=state_bytes(recipe, [(numel,) for numel in groups], recipe.master_dtype))
        update = max([flat + update_bytes(recipe, [(n,)], recipe.master_dtype) for n, flat in self.flat_gradients()])
        check = trained * overflow_check_bytes(recipe)
        resident = start + whole + states
        norm = largest_shard * NORM_BYTES
        used = start + states + Components(temporaries=max(self.flattening_bytes, update, norm, check))
        step = higher(start + states + together, used)
        return ModelStates(at_start=start, resident=resident, init_peak=building, step_peak=step, secondary=secondary)

    @cached_property
    def sub_groups(self) -> Sequence[int]:
        """Elements that each step of the optimizer handles."""
        return self.shards.sub_groups

    @cached_property
    def sub_group_lengths(self) -> Sequence[int]:
        """How many weights are in each of them."""
        return self.shards.sub_group_lengths

    def flat_gradients(self) -> set[tuple[int, int]]:
        """(elements, bytes of their flat gradient as the optimizer has it) of sub-groups. That of a single weight in
        the master type is its shard's (``torch._utils._flatten_dense_tensors``)."""
        m, is_cast = self.master_bytes, self.master_bytes != self.gradient_bytes
        sizes = set(zip(self.sub_groups, self.sub_group_lengths, strict=True))
        return {(numel, numel * m if is_cast or length > 1 else 0) for numel, length in sizes}

    @property
    def flattening_bytes(self) -> int:
        """Flat gradients of a sub-group beside their cast."""
        m, g = self.master_bytes, self.gradient_bytes
        sizes = zip(self.sub_groups, self.sub_group_lengths, strict=True)
        return max([numel * ((g if length > 1 else 0) + (m if m != g else 0)) for numel, length in sizes])

    @property
    def saving_bytes(self) -> int:
        """``checkpoint_event_epilogue`` makes small weights whole again."""
        return self.shards.arriving_small_bytes

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """Weights are gathered and released, gradients copied into the bucket."""
        del accumulates
        zero, table, p = self.recipe.zero, self.table, self.weight_bytes
        # The limits are in elements, of which frozen ones take 2 bytes and trained ones p.
        width, largest = max(2, p), table.largest_trained * p
        # Whole weights that are not given back: fetched ahead up to one limit, or used again within the other.
        kept = max(zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance)
        # Beside those a bucket that is prefetched, and the flat buffer of its all-gather, out of which it is copied.
        live = kept + 2 * zero.stage3_prefetch_bucket_size
        # The module in use is fetched whatever the limits say, with a flat buffer if it has several weights.
        one = 2 * table.largest_module_bytes if zero.stage3_prefetch_bucket_size else table.largest_gather_bytes
        # Never more than every weight whole and once more in a flat buffer.
        gathered = min(live * width + one + profile.unreleased_bytes, 2 * table.num_params * width)
        # What runs again in backward, and the trained weight that is used meanwhile.
        again = profile.recomputed_bytes + largest
        more = profile.held_bytes + self.arriving_bound()
        weights = (gathered + profile.recomputed_bytes if live else max(gathered, again)) + more
        return profile.forward_peak + gathered + more, profile.dropped_peak + weights + self.reduction_bound()

    def reduction_bound(self) -> int:
        """What gradients take at most beside the bucket on their way through it: those that wait outside it and their
        casts, the bucket's copy, and where the host has shards, one that comes back for its norm beside the one before,
        and casts on their way to a drive."""
        zero, p, r, numel = self.recipe.zero, self.weight_bytes, self.reduced_bytes, self.table.largest_trained
        g = self.gradient_bytes
        shard = numel if self.offloads_optimizer else 0
        waiting = numel if zero.contiguous_gradients else max(zero.reduce_bucket_size, numel)
        outside = (numel if zero.contiguous_gradients else waiting + numel) * p + (waiting * r if r != p else 0)
        outside += max(zero.reduce_bucket_size, numel) * g if r != g else 0
        most = max(zero.reduce_bucket_size, numel)
        casts = most * self.master_bytes if self.recipe.offload_optimizer is Offload.NVME else 0
        return most * r + outside + shard * (2 * g + NORM_BYTES) + casts

    def arriving_bound(self) -> int:
        """The most that this rank's shards take on their way from the host to an all-gather."""
        if not self.offloads_weights or self.num_ranks == 1:
            return 0
        width = max(2, self.weight_bytes)
        prefetched = self.recipe.zero.stage3_prefetch_bucket_size * width
        return (prefetched + self.table.largest_module_bytes) // self.num_ranks

    @property
    def makes_wide(self) -> bool:
        """Whether weights are made in float32 and cast before they are sharded."""
        return self.recipe.loaded_dtype is DType.FLOAT32 and self.recipe.precision.dtype is not DType.FLOAT32

    def loading_bound(self, states: ModelStates) -> int:
        tied = sum(self.table.numels_before_tying) * self.recipe.precision.dtype.num_bytes
        adapters = self.table.trained_bytes if self.recipe.trains_adapters else 0
        copied = self.table.largest_copy_bytes if adapters else 0
        module = self.table.largest_module_bytes
        arriving = -(-module // self.num_ranks) if self.offloads_weights else 0
        padding = len(self.table.entries) * self.num_ranks
        wide = self.table.largest_numel * DType.FLOAT32.num_bytes if self.makes_wide else 0
        start = module + BOUND_BYTES * self.table.largest_numel if self.recipe.changes_base else 0
        most = max(module + max(arriving + padding, wide), adapters + copied + padding + start)
        return states.at_start.weights + states.beside.weights + tied + most

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """All-gathers for every module's forward and backward, where its weights are not whole yet, and gradients
        reduced and scattered bucket by bucket, every micro batch; small weights after the step, each alone."""
        often, num_ranks = self.recipe.grad_accum, self.num_ranks
        found: list[Collectives] = []
        if num_ranks > 1:
            found += weight_gathers(trace, self.recipe, self.table, num_ranks)
            small = [(one, count) for one, count in self.table.kinds if self.shards.is_persistent(one)]
            num_bytes = sum([count * padded(one.numel, num_ranks) * one.dtype.num_bytes for one, count in small])
            num_small = sum([count for _, count in small])
            found.append(Collectives(CollectiveKind.ALL_GATHER, StepPhase.STEP, num_small, num_bytes))
        reduced = reductions(self.table, trace, self.recipe.zero.reduce_bucket_size, in_parameter_order=False)
        sizes, count = reduced.sizes, reduced.num_buckets
        if self._reduces_whole(0):
            sizes = Counter([self.table.numels[ordinal] for ordinal in reduced.larger])
            whole, num_whole = reduced.num_elements - sum(sizes.elements()), count - len(reduced.larger)
            num_bytes = often * whole * self.reduced_bytes
            found.append(Collectives(CollectiveKind.ALL_REDUCE, StepPhase.BACKWARD, often * num_whole, num_bytes))
            count = len(reduced.larger)
        scattered = padded_total(sizes, num_ranks) * self.reduced_bytes
        found.append(Collectives(CollectiveKind.REDUCE_SCATTER, StepPhase.BACKWARD, often * count, often * scattered))
        return [one for one in found if one.count]

    def _reduces_whole(self, numel: int) -> bool:
        """Whether ``numel`` elements are reduced in the bucket, of which every rank takes its part, without
        ``reduce_scatter``."""
        zero = self.recipe.zero
        is_whole = zero.contiguous_gradients and not self.recipe.scatters_gradients
        return is_whole and numel <= zero.reduce_bucket_size
