"""FSDP2 in closed form: what a rank holds of a model, bounds of a micro batch beside that, and what is sent.

For searching, where ``engines.fsdp2`` would walk a step for each of thousands of setups; tests hold one to the other.
"""

from collections.abc import Iterable
from functools import cached_property

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase, arrivals
from vlmplan.engines.components import Components
from vlmplan.engines.layer_groups import BackwardOrder, LayerGroup, backward_order
from vlmplan.engines.layer_shards import LayerShards
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import norm_sizes, update_bytes
from vlmplan.engines.parameter_groups import chosen_of_groups
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe.choices import Method


class FullyShardFormulas(LayerShards):
    """``fully_shard`` as ``Engine`` has it in closed form."""

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes of this rank's rows of weights that get a gradient, without padding; a rank may have none."""
        return [self._own_shape(shape) for shape in self.table.updated_shapes]

    @cached_property
    def _shapes_of_groups(self) -> list[list[tuple[int, ...]]]:
        """The same of each parameter group."""
        groups = chosen_of_groups(self.table, self.recipe, self.table.reduced_ordinals)
        return [[self._own_shape(self.table.trained_shapes[ordinal]) for ordinal in group] for group in groups]

    def _own_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rows = -(-shape[0] // self.num_ranks)
        return (max(0, min(rows, shape[0] - self.rank * rows)), *shape[1:])

    def _largest_shard(self, group: LayerGroup) -> int:
        groups = self.groups
        return max([groups.shard_numel(one) * groups.held_dtype(one).num_bytes for one in group.weights], default=0)

    def states(self) -> ModelStates:
        """mΨ/N shards (frozen ones in their own type), mΦ/N gradients, sΦ/N states."""
        groups, recipe = self.groups.all, self.recipe
        is_there = recipe.method is Method.QLORA  # before the first group is made
        building = before = self.unsharded_packed_bytes + (
            sum([group.arriving_bytes for group in groups]) if is_there else 0
        )
        for group in groups:
            own = self._largest_shard(group) if self.offloads_weights else group.shard_bytes
            building = max(building, before + (0 if is_there else group.arriving_bytes) + own)
            before += 0 if self.offloads_weights else own
            before -= group.arriving_bytes if is_there else 0
        updates = [update_bytes(recipe, shapes, recipe.held_dtype) for shapes in self._shapes_of_groups]
        most = max([*norm_sizes(recipe, {recipe.held_dtype: self._shapes}), *updates])
        used = Components(gradients=self._gradient_bytes, temporaries=most)
        return self._model_states(resting=before, building=building, shapes=self._shapes, used=used)

    @cached_property
    def _gradient_bytes(self) -> int:
        """All gradients in shards."""
        return self.groups.padded_bytes(self.table.reduced_ordinals, self.recipe.held_dtype) // self.num_ranks

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """The root, groups that stay whole and two others whole, or all, with two buffers, and the gradients of three
        groups beside the shards; without a reduction in every micro batch all gradients whole."""
        table, recipe = self.table, self.recipe
        sizes = [group.whole_bytes for group in self.groups.all]
        kept = self.groups.root.whole_bytes
        kept += sum([group.whole_bytes for group in self.groups.layers if group.stays_whole])
        largest = max(sizes)
        live = (kept + 2 * largest if recipe.reshard_after_forward else sum(sizes)) + 3 * largest
        dtype = recipe.reduce_dtype
        reduced = [self.groups.padded_bytes(group.ordinals, dtype) for group in self.groups.all]
        every = table.num_trained * dtype.num_bytes
        whole = every if not recipe.sync_each_batch else sum(sorted(reduced)[-3:])
        earlier = self._gradient_bytes if recipe.sync_each_batch else every
        shards = 0 if self.offloads_weights else self._gradient_bytes
        before = earlier if accumulates else 0
        more = shards + whole + 3 * max(reduced) + 2 * max(reduced) // self.num_ranks
        if self.has_copies:
            more += sum(reduced) // self.num_ranks
        return profile.forward_peak + live + before, profile.dropped_peak + live + before + more

    def loading_bound(self, states: ModelStates) -> int:
        """All weights whole, in host memory, where that is the device, and what packs the largest of them, or measures
        DoRA's lengths of it."""
        del states
        whole = sum([group.arriving_bytes for group in self.groups.all])
        if self.recipe.method is not Method.QLORA:
            return whole
        return whole + self.unsharded_packed_bytes + 5 * self.table.largest_bytes

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """An all-gather of each group with weights forward, and again backward where it was resharded; a reduce-scatter
        of each with gradients, in every micro batch or in the last."""
        if self.num_ranks == 1:
            return ()
        often, groups = self.recipe.grad_accum, self.groups
        order = backward_order(trace, groups)
        gathered = [groups.layers[number].whole_bytes for number in order.forward_order]
        kind = CollectiveKind.ALL_GATHER
        if groups.root.weights:
            gathered.append(groups.root.whole_bytes)
        apart = [groups.layers[number].num_apart for number in order.forward_order]
        num_gathers = often * (len(gathered) + sum(apart))
        sharing = self._group_size
        found = [Collectives(kind, StepPhase.FORWARD, num_gathers, often * sum(gathered), sharing)]
        if self.recipe.reshard_after_forward:
            resharded = [groups.layers[number] for number in _gathered_again(order)]
            resharded += [groups.root] if groups.reshards_root else []
            again = [group.whole_bytes for group in resharded if not group.stays_whole]
            count = len(again) + sum([group.num_apart for group in resharded])
            found.append(Collectives(kind, StepPhase.BACKWARD, often * count, often * sum(again), sharing))
        ordinals: dict[int, list[int]] = {}
        for parameter, layer in arrivals(trace):
            ordinal = self.table.ordinal(parameter, layer)
            ordinals.setdefault(groups.number_of_ordinal[ordinal], []).append(ordinal)
        if self.recipe.seen_adapter_dtype is not None:
            ordinals = {ordinal: [ordinal] for members in ordinals.values() for ordinal in members}
        reduced = [groups.padded_bytes(members, self.recipe.reduce_dtype) for members in ordinals.values()]
        times = often if self.recipe.sync_each_batch else 1
        kind, count = CollectiveKind.REDUCE_SCATTER, times * len(reduced)
        found.append(Collectives(kind, StepPhase.BACKWARD, count, times * sum(reduced), sharing))
        if self.has_copies:
            found.append(self._sums(StepPhase.BACKWARD, count, times * sum(reduced) // self.num_ranks))
        return [one for one in found if one.count]


def _gathered_again(order: BackwardOrder) -> list[int]:
    """Groups that backward asks for: those that have one, and each before such a group (it is prefetched)."""
    numbers = order.forward_order
    return [
        number
        for place, number in enumerate(numbers)
        if number in order.with_output or (place + 1 < len(numbers) and numbers[place + 1] in order.with_output)
    ]
