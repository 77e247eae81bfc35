"""ZeRO stages 1 and 2 with DeepSpeed's Muon (``stage_1_and_2.py``): two flat buffers, and updates made of gradients.

Muon's group and AdamW's are flattened and cut into partitions each by itself. At the end of a step's last backward a
rank orthogonalises every matrix that reaches into its partition, whole (``get_flat_partition``): its momentum, which
has the type of the gradient, lies twice, as it was and as it will be once the step is known to be finite
(``_muon_staging_momentum``), and each update is a tensor of its own until the optimizer's step.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import cast

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components, higher
from vlmplan.engines.engine import ModelStates, rank_by_states, weight
from vlmplan.engines.events import NULL_SINK, Component, HighWater, Sink
from vlmplan.engines.muon_groups import OptimizerGroup, muon_groups
from vlmplan.engines.newton_schulz import COMPUTE, muon_update, peak_bytes
from vlmplan.engines.optimizer_states import NORM_BYTES, state_bytes, update_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import (
    Partition,
    largest_slice,
    overlapping,
    owned_elements,
    partition_of,
    partition_size,
    slices,
)
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.engines.zero12 import PARTITION, Zero12
from vlmplan.recipe import Recipe


class MuonZero12(Zero12):
    """Stage 1 or 2, as ``recipe.zero_stage`` says."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.groups = muon_groups(table, is_sorted=True)
        self.partitions = [partition_of(group.numel, num_ranks, rank) for group in self.groups]
        self._number_of = {ordinal: number for number, one in enumerate(self.groups) for ordinal in one.ordinals}
        self._has_momentum = False

    @classmethod
    def rank_of_highest_step(cls, table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
        return rank_by_states(cls, table, recipe, num_ranks)

    @cached_property
    def owned_bytes(self) -> int:
        owned = sum(self._owned) * self.weight_bytes
        return owned if owned > self.zero_bytes else 0

    @cached_property
    def zero_ordinals(self) -> list[int]:
        return [ordinal for zeros in self._zeros for ordinal in zeros]

    @cached_property
    def _zeros(self) -> list[list[int]]:
        """``zero_ordinals`` of each group."""
        return [_idle_ordinals(self.table, *one) for one in zip(self.groups, self.partitions, strict=True)]

    @cached_property
    def _owned(self) -> list[int]:
        """Elements of whole parameters that reach into the partition of each group."""
        return [owned_elements(*one) for one in zip(self.groups, self.partitions, strict=True)]

    @cached_property
    def orthogonalised(self) -> Sequence[tuple[int, ...]]:
        """Shapes of the matrices that this rank updates."""
        found: list[tuple[int, ...]] = []
        for group, partition in zip(self.groups, self.partitions, strict=True):
            if group.uses_muon:
                found += group.shapes[slice(*overlapping(group, partition))]
        return found

    @cached_property
    def _muon_elements(self) -> int:
        return sum([owned for group, owned in zip(self.groups, self._owned, strict=True) if group.uses_muon])

    @cached_property
    def _has_adamw(self) -> bool:
        """Whether this rank gets gradients for AdamW, which are views of all that it gets."""
        owned = zip(self.groups, self._owned, self._zeros, strict=True)
        return any(
            elements * self.weight_bytes > sum(self._sizes_of(zeros))
            for group, elements, zeros in owned
            if not group.uses_muon
        )

    @property
    def _adamw_zeros(self) -> list[int]:
        groups = zip(self.groups, self._zeros, strict=True)
        return [ordinal for group, zeros in groups for ordinal in zeros if not group.uses_muon]

    @cached_property
    def _own_ordinals(self) -> Collection[int]:
        reached = zip(self.groups, self.partitions, strict=True)
        return frozenset(one for group, part in reached for one in group.ordinals[slice(*overlapping(group, part))])

    def share_begins(self, places: Mapping[int, int]) -> int | None:
        del places

    @property
    def own_resident_bytes(self) -> int:
        """Momentum, as it was and as it will be."""
        return 2 * self._muon_elements * self.weight_bytes

    def _update_bytes(self, *, accumulates: bool) -> int:
        """What this rank makes once all gradients have been reduced: updates of whole matrices too, as the walk has
        them."""
        water = HighWater()
        engine = _HighestUpdates(self.table, self.recipe, num_ranks=self.num_ranks, rank=self.rank, sink=water)
        engine._has_momentum = engine._is_last = True
        engine._has_earlier = accumulates and self.recipe.zero_stage == 2
        if engine._has_earlier:
            engine._keep_zeros(self.zero_ordinals)
        held = water.live
        engine._make_updates()
        return water.most - held

    @cached_property
    def _most_of_ranks(self) -> tuple[int, int]:
        """The most that any rank has of (gradients and zeros, elements of Muon's matrices)."""
        key = (MuonZero12, self.num_ranks)
        if key not in self.table.memo:
            ranks = [
                MuonZero12(self.table, self.recipe, num_ranks=self.num_ranks, rank=n) for n in range(self.num_ranks)
            ]
            kept = max([sum(one._owned) * one.weight_bytes + one.zero_bytes for one in ranks])
            self.table.memo[key] = kept, max([one._muon_elements for one in ranks])
        return cast(tuple[int, int], self.table.memo[key])

    @property
    def _most_kept_bytes(self) -> int:
        return self._most_of_ranks[0]

    # -- the walk ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Group by group what stage 1 and 2 do with one; then the gradients of all, once."""
        if not self._is_loaded:
            self._load_weights()
        sink = self.sink
        for group, partition in zip(self.groups, self.partitions, strict=True):
            own, master = partition.size * self.weight_bytes, partition.size * self.master_bytes
            sink.empty_cache()
            sink.keep(Component.WEIGHTS, own * self.num_ranks)
            for ordinal in group.ordinals:
                sink.free(weight(self.table.trained_entries[ordinal]))
            self._keep_master_copy(own, master)
        sink.transient(Component.TEMPORARIES, [partition.size * self.master_bytes for partition in self.partitions])

    def end_backward(self) -> None:
        """End backward. Without AdamW's group nothing refers to the gradients any more."""
        super().end_backward()
        if self._is_last and self._reduces_on_arrival and not self._has_adamw:
            self.sink.free(PARTITION)

    def reduce_gradients(self) -> None:
        super().reduce_gradients()
        if not self._has_adamw:
            self.sink.free(PARTITION)

    @property
    def _flat_order(self) -> Iterable[int]:
        return [one for group in self.groups for one in group.ordinals if one not in self.table.idle]

    def _make_updates(self) -> None:
        """Group by group zeros, those of a later micro batch until the next group has its own (``avg_new``). After the
        last one momentum, which the first step makes, and every update. What AdamW's group has of the gradients is a
        view of all of them, which stay for it."""
        added: list[int] = []
        for group, zeros in zip(self.groups, self._zeros, strict=True):
            if self._has_earlier:
                for ordinal, num_bytes in zip(zeros, self._sizes_of(zeros), strict=True):
                    self.sink.allocate(("added", ordinal), Component.GRADIENTS, num_bytes)
            else:
                self._keep_zeros(zeros)
            self._free_added(added)
            added = zeros
            if group.uses_muon and self._is_last:
                self._orthogonalise()
                self._free_zeros(zeros)
        self._free_added(added)

    def _free_added(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self.sink.free(("added", ordinal))

    def _orthogonalise(self) -> None:
        self._keep_momentum()
        for number, shape in enumerate(self.orthogonalised):
            self._update_matrix(number, shape)

    def _update_matrix(self, number: int, shape: tuple[int, ...]) -> None:
        events = muon_update(shape, self.table.trained_dtype, COMPUTE)
        for name, num_bytes in events[:-2]:
            if num_bytes:
                self.sink.allocate(name, Component.TEMPORARIES, num_bytes)
            else:
                self.sink.free(name)
        self.sink.allocate(("update", number), Component.GRADIENTS, events[-2].num_bytes)
        self.sink.free(events[-1].name)

    def _keep_momentum(self) -> None:
        if self._has_momentum or not self.orthogonalised:
            return
        self._has_momentum = True
        for _ in range(2):
            self.sink.keep(Component.OPTIMIZER_STATES, self._muon_elements * self.weight_bytes)

    def step(self, *, is_first: bool) -> None:
        sink = self.sink
        self._owns_partition = False
        self._keep_momentum()
        for group, partition in zip(self.groups, self.partitions, strict=True):
            for numel in slices(group, partition):
                sink.transient(Component.TEMPORARIES, [numel * NORM_BYTES])
        for group, partition in zip(self.groups, self.partitions, strict=True):
            self._flatten_gradients(partition.size, self.weight_bytes)
            self._free_updates(group)
            if not group.uses_muon:
                self._update_flat(partition.size, is_first=is_first)
            self._free_flat()

    def _free_updates(self, group: OptimizerGroup) -> None:
        for ordinal in group.ordinals:
            self.sink.free(ordinal)
        if not group.uses_muon:
            self.sink.free(PARTITION)
            self._free_zeros(self._adamw_zeros)
            return
        for number in range(len(self.orthogonalised)):
            self.sink.free(("update", number))

    # -- who owns what waits -------------------------------------------------------------------------------------

    def _place_of(self, ordinal: int) -> tuple[int, int]:
        number = self._number_of[ordinal]
        group = self.groups[number]
        return group.ends[group.position[ordinal]], self.partitions[number].size

    def _partition_with(self, ordinal: int) -> Partition:
        return self.partitions[self._number_of[ordinal]]

    def _num_owners(self) -> int:
        """The number of runs of one owner, as with one flat buffer; but a matrix that several ranks orthogonalise is
        merged with no neighbour of other ranks (``copy_ranks`` in ``average_tensor``)."""
        runs, previous = 0, (-1, (-1,))
        for ordinal in self._waiting:
            end, size = self._place_of(ordinal)
            first, last = (end - self.table.numels[ordinal]) // size, (end - 1) // size
            is_shared = self.groups[self._number_of[ordinal]].uses_muon and last > first
            for owner in range(first, last + 1):
                run = (owner, tuple(range(first, last + 1)) if is_shared else (owner,))
                runs += run != previous
                previous = run
            if runs > 1:
                return runs
        return runs

    # -- in closed form ------------------------------------------------------------------------------------------

    def states(self) -> ModelStates:
        """Weights pΦ in two flat buffers, master weights mΦ/N, AdamW's states sΦ/N of its group alone, and of Muon's
        2pΦ/N for momentum as it was and as it will be. The step has an update pΦ/N of each matrix besides what the
        step of stages 1 and 2 has, which works on one group after the other: 2Ψ + (4 + 2·2 + 2 + 2 + 4)Φ/N for bf16
        where all are matrices, of which AdamW's has 20Φ/N."""
        table, recipe, p, m = self.table, self.recipe, self.weight_bytes, self.master_bytes
        sizes = [partition.size for partition in self.partitions]
        weights = Components(weights=table.frozen_bytes + sum(sizes) * self.num_ranks * p)
        start = weights + Components(optimizer_states=sum(sizes) * m)
        init = start + Components(temporaries=sum(sizes) * m)
        plain, flat, masters = table.total_bytes, 0, 0
        for group, size in zip(self.groups, sizes, strict=True):
            flat += size * self.num_ranks * p
            init = higher(init, Components(weights=plain + flat, optimizer_states=masters))
            plain -= group.numel * p
            masters += size * m
            clone = 0 if p == m else size * p
            init = higher(init, Components(weights=plain + flat, optimizer_states=masters, temporaries=clone))
        adamw = [(size,) for group, size in zip(self.groups, sizes, strict=True) if not group.uses_muon]
        momentum = self.own_resident_bytes
        resident = start + Components(optimizer_states=state_bytes(recipe, adamw, recipe.master_dtype) + momentum)
        updates, partition = self._muon_elements * p, self.owned_bytes if self._has_adamw else 0
        partition += sum(self._sizes_of(self._adamw_zeros))
        largest = max(largest_slice(*one) for one in zip(self.groups, self.partitions, strict=True))
        step = resident + Components(gradients=updates + partition, temporaries=largest * NORM_BYTES)
        for group, size in zip(self.groups, sizes, strict=True):
            cast = size * (p + (m if m != p else 0))
            step = higher(step, resident + Components(gradients=updates + partition, temporaries=cast))
            updates, partition = (0, partition) if group.uses_muon else (updates, 0)
            used = size * m + (0 if group.uses_muon else update_bytes(recipe, [(size,)], recipe.master_dtype))
            step = higher(step, resident + Components(gradients=updates + partition, temporaries=used))
        return ModelStates(at_start=start, resident=resident, init_peak=init, step_peak=step)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """The updates come when the buckets, all gradients and the momentum are there. On some rank that is more of it
        than on this one."""
        forward, backward = super().micro_batch_bound(profile, accumulates=accumulates)
        p, most = self.weight_bytes, self._most_of_ranks[1]
        shapes = {shape for group in self.groups if group.uses_muon for shape in group.shapes}
        largest = max([peak_bytes(shape, self.table.trained_dtype, COMPUTE) for shape in shapes])
        others = 2 * most * p - self.own_resident_bytes
        return forward + others, backward + others + most * p + largest

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        """Updated weights are gathered group by group."""
        gradients, *_ = super().collectives(trace)
        if self.num_ranks == 1:
            return (gradients,)
        sizes = [partition_size(group.numel, self.num_ranks) for group in self.groups]
        num_bytes = sum(sizes) * self.num_ranks * self.weight_bytes
        return gradients, Collectives(CollectiveKind.ALL_GATHER, StepPhase.STEP, len(sizes), num_bytes)


class _HighestUpdates(MuonZero12):
    """The engine where its peak alone is asked for: what comes and goes in the update of a matrix is one moment."""

    def _update_matrix(self, number: int, shape: tuple[int, ...]) -> None:
        dtype = self.table.trained_dtype
        self.sink.transient(Component.TEMPORARIES, [peak_bytes(shape, dtype, COMPUTE)])
        self.sink.allocate(("update", number), Component.GRADIENTS, muon_update(shape, dtype, COMPUTE)[-2].num_bytes)


def _idle_ordinals(table: ParameterTable, group: OptimizerGroup, partition: Partition) -> list[int]:
    """The parameters of ``group`` that reach into ``partition`` and get no gradient."""
    return [one for one in group.ordinals[slice(*overlapping(group, partition))] if one in table.idle]
