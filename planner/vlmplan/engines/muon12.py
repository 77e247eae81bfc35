"""ZeRO stages 1 and 2 with DeepSpeed's Muon (``stage_1_and_2.py``): two flat buffers, and updates made of gradients.

At the end of a step's last backward a rank orthogonalises every matrix that reaches into its partition, whole
(``get_flat_partition``): its momentum, which has the type of the gradient, lies twice, as it was and as it will be once
the step is known to be finite (``_muon_staging_momentum``), and each update is a tensor of its own until the
optimizer's step. What AdamW's group has of the gradients is a view of all of them.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

from vlmplan.engines.events import NULL_SINK, Component, HighWater, Sink
from vlmplan.engines.groups12 import GroupedZero12
from vlmplan.engines.muon_groups import muon_groups
from vlmplan.engines.newton_schulz import COMPUTE, muon_update, peak_bytes
from vlmplan.engines.parameter_groups import OptimizerGroup, flat_order
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import overlapping
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.engines.zero12 import PARTITION
from vlmplan.recipe import Recipe


class MuonZero12(GroupedZero12):
    """Stage 1 or 2, as ``recipe.zero_stage`` says.

    Its states are weights pΦ in two flat buffers, master weights mΦ/N, AdamW's states sΦ/N of its group alone, and of
    Muon's 2pΦ/N for momentum as it was and as it will be. The step has an update pΦ/N of each matrix besides what the
    step of stages 1 and 2 has, which works on one group after the other: 2Ψ + (4 + 2·2 + 2 + 2 + 4)Φ/N for bf16 where
    all are matrices, of which AdamW's has 20Φ/N.
    """

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._has_momentum = False

    def _make_groups(self) -> Sequence[OptimizerGroup]:
        groups = muon_groups(self.table, is_sorted=True)
        if not self.recipe.zero.round_robin_gradients:
            return groups
        orders = [flat_order(group.ordinals, self.recipe, self.num_ranks) for group in groups]
        return [
            OptimizerGroup(self.table, order, uses_muon=group.uses_muon)
            for group, order in zip(groups, orders, strict=True)
        ]

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

    @property
    def _most_muon_elements(self) -> int:
        """The most elements of Muon's matrices that any rank has."""
        key = (MuonZero12, MuonZero12._most_muon_elements, self.num_ranks, self.recipe.zero.round_robin_gradients)
        if key not in self.table.memo:
            ranks = [
                MuonZero12(self.table, self.recipe, num_ranks=self.num_ranks, rank=n) for n in range(self.num_ranks)
            ]
            self.table.memo[key] = max([rank._muon_elements for rank in ranks])
        return int(self.table.memo[key])

    # -- the walk ------------------------------------------------------------------------------------------------

    def end_backward(self) -> None:
        """End backward. Without AdamW's group nothing refers to the gradients any more."""
        super().end_backward()
        if self._is_last and self._reduces_on_arrival and self._last_view < 0:
            self.sink.free(PARTITION)

    def reduce_gradients(self) -> None:
        super().reduce_gradients()
        if self._last_view < 0:
            self.sink.free(PARTITION)

    def _work_on_gradients(self, number: int) -> None:
        """Momentum of Muon's group, which the first step makes, and every update."""
        if self.groups[number].uses_muon and self._is_last:
            self._keep_momentum()
            for at, shape in enumerate(self.orthogonalised):
                self._update_matrix(at, shape)
            self._free_zeros(self._zeros[number])

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
        self._keep_momentum()
        super().step(is_first=is_first)

    def _free_gradients_of(self, number: int) -> None:
        super()._free_gradients_of(number)
        if self.groups[number].uses_muon:
            for at in range(len(self.orthogonalised)):
                self.sink.free(("update", at))

    # -- who owns what waits -------------------------------------------------------------------------------------

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

    @property
    def _updates_bytes(self) -> int:
        return self._muon_elements * self.weight_bytes

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """The updates come when the buckets, all gradients and the momentum are there. On some rank that is more of it
        than on this one."""
        forward, backward = super().micro_batch_bound(profile, accumulates=accumulates)
        p, most = self.weight_bytes, self._most_muon_elements
        shapes = {shape for group in self.groups if group.uses_muon for shape in group.shapes}
        largest = max([peak_bytes(shape, self.table.trained_dtype, COMPUTE) for shape in shapes])
        others = 2 * most * p - self.own_resident_bytes
        return forward + others, backward + others + most * p + largest


class _HighestUpdates(MuonZero12):
    """The engine where its peak alone is asked for: what comes and goes in the update of a matrix is one moment."""

    def _update_matrix(self, number: int, shape: tuple[int, ...]) -> None:
        dtype = self.table.trained_dtype
        self.sink.transient(Component.TEMPORARIES, [peak_bytes(shape, dtype, COMPUTE)])
        self.sink.allocate(("update", number), Component.GRADIENTS, muon_update(shape, dtype, COMPUTE)[-2].num_bytes)
