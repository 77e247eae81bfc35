"""ZeRO stages 1 and 2 where the optimizer has several parameter groups (``stage_1_and_2.py``), or its parameters are
dealt to the ranks in turn: a flat buffer of each group, in an order of its own.

Every group is flattened and cut into partitions by itself, updated by itself, one after the other, and gathered by
itself. Gradients of all groups share the reduce buckets and the rank's buffer, of which each group has views: it stays
until the last group that has any has been updated (``averaged_gradients``).
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components, higher
from vlmplan.engines.engine import rank_by_states
from vlmplan.engines.events import NULL_SINK, Component, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import NORM_BYTES, state_bytes, update_bytes
from vlmplan.engines.parameter_groups import OptimizerGroup, flat_order, parameter_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import (
    Partition,
    largest_slice,
    overlapping,
    owned_elements,
    partition_elements,
    partition_of,
    slices,
)
from vlmplan.engines.zero12 import PARTITION, ZEROS, Zero12
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload


class GroupedZero12(Zero12):
    """Stage 1 or 2, as ``recipe.zero_stage`` says."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.groups = self._make_groups()
        self.partitions = [partition_of(group.numel, num_ranks, rank) for group in self.groups]
        self._number_of = {ordinal: number for number, one in enumerate(self.groups) for ordinal in one.ordinals}

    def _make_groups(self) -> Sequence[OptimizerGroup]:
        groups = parameter_groups(self.table, self.recipe)
        return [OptimizerGroup(self.table, flat_order(group, self.recipe, self.num_ranks)) for group in groups]

    @classmethod
    def rank_of_highest_step(cls, table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
        if recipe.offload_optimizer is Offload.NONE:
            return rank_by_states(cls, table, recipe, num_ranks)
        key = (cls, num_ranks, recipe.zero.round_robin_gradients)
        if key not in table.memo:
            ranks = [cls(table, recipe, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)]
            largest = [one._largest_slice for one in ranks]
            table.memo[key] = largest.index(max(largest))
        return int(table.memo[key])

    # -- what a rank owns ----------------------------------------------------------------------------------------

    @cached_property
    def owned_bytes(self) -> int:
        owned = sum(self._owned) * self.weight_bytes
        idle = sum(sum(self._sizes_of(ordinals)) for ordinals in self._idle)
        return owned if owned > idle else 0

    @cached_property
    def zero_ordinals(self) -> list[int]:
        return [ordinal for zeros in self._zeros for ordinal in zeros]

    @cached_property
    def _zeros(self) -> list[list[int]]:
        """``zero_ordinals`` of each group."""
        return [[] for _ in self.groups] if self.offloads_optimizer else self._idle

    @cached_property
    def _idle(self) -> list[list[int]]:
        """The parameters of each group that reach into the rank's partition and get no gradient."""
        return [[ordinal for ordinal in ordinals if ordinal in self.table.idle] for ordinals in self._reached]

    @cached_property
    def _reached(self) -> list[Sequence[int]]:
        """The parameters of each group that reach into the rank's partition."""
        reached = zip(self.groups, self.partitions, strict=True)
        return [group.ordinals[slice(*overlapping(group, partition))] for group, partition in reached]

    @cached_property
    def _owned(self) -> list[int]:
        """Elements of whole parameters that reach into the partition of each group."""
        return [owned_elements(*one) for one in zip(self.groups, self.partitions, strict=True)]

    @cached_property
    def _largest_slice(self) -> int:
        return max(largest_slice(*one) for one in zip(self.groups, self.partitions, strict=True))

    @cached_property
    def _last_view(self) -> int:
        """The number of the last group that has views of the rank's gradients; -1 where none has."""
        groups = zip(self.groups, self._owned, self._idle, strict=True)
        with_views = [
            number
            for number, (group, elements, idle) in enumerate(groups)
            if not group.uses_muon and elements * self.weight_bytes > sum(self._sizes_of(idle))
        ]
        return max(with_views, default=-1)

    @cached_property
    def _own_ordinals(self) -> Collection[int]:
        return frozenset(ordinal for ordinals in self._reached for ordinal in ordinals)

    def _update_bytes(self, *, accumulates: bool) -> int:
        """Zeros; those of a later micro batch stay until the next group has its own."""
        sizes = [sum(self._sizes_of(zeros)) for zeros in self._zeros]
        if accumulates and self.recipe.zero_stage == 2:
            return max(map(sum, pairwise([0, *sizes])))
        return sum(sizes)

    @property
    def _most_kept_bytes(self) -> int:
        key = (type(self), GroupedZero12._most_kept_bytes, self.num_ranks, self.recipe.zero.round_robin_gradients)
        if key not in self.table.memo:
            ranks = [
                type(self)(self.table, self.recipe, num_ranks=self.num_ranks, rank=n) for n in range(self.num_ranks)
            ]
            self.table.memo[key] = max([sum(rank._owned) * rank.weight_bytes + rank.zero_bytes for rank in ranks])
        return int(self.table.memo[key])

    # -- the walk ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Group by group what stage 1 and 2 do with one; then the gradients of all, once."""
        self.place()
        sink = self.sink
        held = self._held_before_flattening()
        for group, partition, held_bytes in zip(self.groups, self.partitions, held, strict=True):
            own, master = partition.num_elements * self.weight_bytes, partition.num_elements * self.master_bytes
            entries = [self.table.trained_entries[ordinal] for ordinal in group.ordinals]
            self._flatten(entries, own * self.num_ranks, held_bytes)
            if self.offloads_optimizer:
                sink.transient(Component.TEMPORARIES, [own])
            else:
                self._keep_master_copy(own, master)
        if self.offloads_optimizer:
            sink.keep(Component.COMMUNICATION_BUFFERS, self.table.largest_trained * self.weight_bytes)
            return
        sink.transient(
            Component.TEMPORARIES, [partition.num_elements * self.master_bytes for partition in self.partitions]
        )

    @property
    def _flat_order(self) -> Iterable[int]:
        return [ordinal for group in self.groups for ordinal in group.ordinals if ordinal not in self.table.idle]

    def _make_updates(self) -> None:
        """Group by group zeros, those of a later micro batch until the next group has its own (``avg_new``)."""
        added: list[int] = []
        for number, zeros in enumerate(self._zeros):
            if self._has_earlier:
                for ordinal, num_bytes in zip(zeros, self._sizes_of(zeros), strict=True):
                    self.sink.allocate(("added", ordinal), Component.GRADIENTS, num_bytes)
            else:
                self._keep_zeros(zeros)
            self._free_added(added)
            added = zeros
            self._work_on_gradients(number)
        self._free_added(added)

    def _work_on_gradients(self, number: int) -> None:
        """All gradients of a group are there, and the reduce buckets still are."""

    def _free_added(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self.sink.free(("added", ordinal))

    def step(self, *, is_first: bool) -> None:
        sink = self.sink
        self._owns_partition = False
        if self.offloads_optimizer:
            super().step(is_first=is_first)
            return
        for group, partition in zip(self.groups, self.partitions, strict=True):
            for numel in slices(group, partition):
                sink.transient(Component.TEMPORARIES, [numel * NORM_BYTES])
        for number, (group, partition) in enumerate(zip(self.groups, self.partitions, strict=True)):
            self._flatten_gradients(partition.num_elements, self.weight_bytes)
            self._free_gradients_of(number)
            if not group.uses_muon:
                self._update_flat(partition.num_elements, is_first=is_first)
            self._free_flat()

    def _free_gradients_of(self, number: int) -> None:
        for ordinal in self.groups[number].ordinals:
            self.sink.free(ordinal)
            self.sink.free((ZEROS, ordinal))
        if number == self._last_view:
            self.sink.free(PARTITION)

    # -- who owns what waits -------------------------------------------------------------------------------------

    def _place_of(self, ordinal: int) -> tuple[int, int]:
        number = self._number_of[ordinal]
        group = self.groups[number]
        return group.ends[group.position[ordinal]], self.partitions[number].num_elements

    def _partition_with(self, ordinal: int) -> Partition:
        return self.partitions[self._number_of[ordinal]]

    # -- in closed form ------------------------------------------------------------------------------------------

    @property
    def _updates_bytes(self) -> int:
        """Bytes of updates that are tensors of their own, from the last backward to the step of their group."""
        return 0

    def states(self) -> ModelStates:
        """What stages 1 and 2 have with one flat buffer, but for the step, which works on one group after the other:
        2Ψ + 12Φ/N + 8Φ'/N for bf16 and AdamW and Φ' elements of the largest group, with the gradients of the groups
        that follow, 2Φ/N at the most."""
        table, recipe, p, m = self.table, self.recipe, self.weight_bytes, self.master_bytes
        sizes = [partition.num_elements for partition in self.partitions]
        weights = Components(weights=table.frozen_bytes + sum(sizes) * self.num_ranks * p)
        if self.offloads_optimizer:
            start = weights + Components(communication_buffers=table.largest_trained * p)
            init = higher(start, self._init_peak(sizes))
            return ModelStates(at_start=start, resident=start, init_peak=init, step_peak=start)
        start = weights + Components(optimizer_states=sum(sizes) * m)
        init = higher(start + Components(temporaries=sum(sizes) * m), self._init_peak(sizes))
        flat = [(size,) for group, size in zip(self.groups, sizes, strict=True) if not group.uses_muon]
        held = state_bytes(recipe, flat, recipe.master_dtype) + self.own_resident_bytes
        resident = start + Components(optimizer_states=held)
        return ModelStates(at_start=start, resident=resident, init_peak=init, step_peak=self._step_peak(resident))

    def _held_before_flattening(self) -> list[int]:
        """What the GPU holds when the turn of each group comes: all weights, and the master copies of those before."""
        p, m = self.weight_bytes, 0 if self.offloads_optimizer else self.master_bytes
        held = [self.table.total_bytes]
        for group, partition in zip(self.groups, self.partitions, strict=True):
            padding = partition.num_elements * self.num_ranks - group.numel
            held.append(held[-1] + padding * p + partition.num_elements * m)
        return held[:-1]

    @property
    def flattened_on_host_bytes(self) -> int:
        """Of the group that takes most."""
        p = self.weight_bytes
        groups = zip(self.groups, self.partitions, self._held_before_flattening(), strict=True)
        sizes = [(group.numel * p, part.num_elements * self.num_ranks * p, held) for group, part, held in groups]
        return max([plain + flat for plain, flat, held in sizes if self._flattens_on_host(held, flat)], default=0)

    def _init_peak(self, sizes: Sequence[int]) -> Components:
        """The most while groups are flattened one after the other."""
        p, m = self.weight_bytes, self.master_bytes
        peak, plain, flat, masters = Components(), self.table.total_bytes, 0, 0
        for group, size, held in zip(self.groups, sizes, self._held_before_flattening(), strict=True):
            own = size * self.num_ranks * p
            flat += own
            beside = flat - own if self._flattens_on_host(held, own) else flat
            peak = higher(peak, Components(weights=plain + beside, optimizer_states=masters))
            plain -= group.numel * p
            masters += 0 if self.offloads_optimizer else size * m
            clone = size * p if self.offloads_optimizer or p != m else 0
            peak = higher(peak, Components(weights=plain + flat, optimizer_states=masters, temporaries=clone))
        return peak

    def _step_peak(self, resident: Components) -> Components:
        recipe, p, m = self.recipe, self.weight_bytes, self.master_bytes
        left = self._gradients_left()
        step = resident + Components(gradients=left[0], temporaries=self._largest_slice * NORM_BYTES)
        for number, group in enumerate(self.groups):
            size = self.partitions[number].num_elements
            cast = size * (p + (m if m != p else 0))
            step = higher(step, resident + Components(gradients=left[number], temporaries=cast))
            update = 0 if group.uses_muon else update_bytes(recipe, [(size,)], recipe.master_dtype)
            used = Components(gradients=left[number + 1], temporaries=size * m + update)
            step = higher(step, resident + used)
        return step

    def _gradients_left(self) -> list[int]:
        """Bytes of gradients, zeros and updates when the turn of each group comes, and after the last."""
        zeros = [
            0 if group.uses_muon else sum(self._sizes_of(ordinals))
            for group, ordinals in zip(self.groups, self._zeros, strict=True)
        ]
        return [
            (self.owned_bytes if number <= self._last_view else 0)
            + sum(zeros[number:])
            + (self._updates_bytes if any(group.uses_muon for group in self.groups[number:]) else 0)
            for number in range(len(self.groups) + 1)
        ]

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        """Updated weights are gathered group by group."""
        gradients, *_ = super().collectives(trace)
        if self.num_ranks == 1:
            return (gradients,)
        sizes = [partition_elements(group.numel, self.num_ranks) for group in self.groups]
        num_bytes = sum(sizes) * self.num_ranks * self.weight_bytes
        return gradients, Collectives(CollectiveKind.ALL_GATHER, StepPhase.STEP, len(sizes), num_bytes)
