"""FSDP1 in closed form: what a rank holds of a model, bounds of a micro batch beside that, and what is sent.

For searching; tests hold it to the walk of ``engines.fsdp1``.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.flat_units import FlatUnit, flat_units
from vlmplan.engines.layer_groups import ROOT, backward_order
from vlmplan.engines.layer_shards import LayerShards
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import update_bytes
from vlmplan.engines.parameter_groups import chosen_of_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method


class FlatShardFormulas(LayerShards):
    """``FullyShardedDataParallel`` as ``Engine`` has it in closed form."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.units = flat_units(table, recipe, self.num_ranks)

    @cached_property
    def _updated(self) -> list[FlatUnit]:
        """Units that get a gradient: zeros of weights that get none. The root has its flat parameter before those of
        modules in it (``_register_flat_param`` in ``_flat_param.py``)."""
        reduced = self.table.reduced_ordinals
        if self.recipe.trains_adapters:
            return [self.units.adapters[ordinal] for ordinal in reduced]
        numbers = {self.groups.number_of_ordinal[ordinal] for ordinal in reduced}
        return [self.units[number] for number in (ROOT, *range(len(self.groups.layers))) if number in numbers]

    def _shapes_of(self, units: Iterable[FlatUnit]) -> list[tuple[int, ...]]:
        """What the optimizer has of ``units`` on this rank: parts of weights, or flat parameters."""
        if not self.recipe.uses_orig_params:
            return [(unit.shard_numel,) for unit in units]
        return [(numel,) for numel in self.units.own_numels(units, self.rank)]

    @cached_property
    def _shapes_of_groups(self) -> list[list[tuple[int, ...]]]:
        """Of each parameter group."""
        if not self.recipe.trains_adapters:
            return [self._shapes_of(self._updated)]
        groups = chosen_of_groups(self.table, self.recipe, self.table.reduced_ordinals)
        return [self._shapes_of([self.units.adapters[ordinal] for ordinal in group]) for group in groups]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [shape for shapes in self._shapes_of_groups for shape in shapes]

    @cached_property
    def _gradient_bytes(self) -> int:
        """All gradients in shards."""
        return sum([unit.shard_bytes for unit in self._updated])

    def states(self) -> ModelStates:
        """mΨ/N shards (frozen ones in their own type), mΦ/N gradients, sΦ/N states."""
        units = self.units.all
        is_there = self.recipe.method is Method.QLORA  # before the first unit is made
        arriving = [unit.weights_numel * unit.held for unit in units]
        building = before = self.unsharded_packed_bytes + (sum(arriving) if is_there else 0)
        for unit, whole in zip(units, arriving, strict=True):
            flat = (0 if is_there else whole) + unit.numel * unit.held + unit.shard_bytes
            building = max(building, before + flat)
            before += (0 if self.offloads_weights else unit.shard_bytes) - (whole if is_there else 0)
        updates = [update_bytes(self.recipe, shapes, self.recipe.held_dtype) for shapes in self._shapes_of_groups]
        used = Components(gradients=self._gradient_bytes, temporaries=max(updates))
        return self._model_states(resting=before, building=building, shapes=self._shapes, used=used)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """The root and three units whole, or all, and a shard cast, each with its adapters; beside them gradients of
        the root and of three units, one more that is padded, two shards of one and all shards. Where the reduction is
        in another type, one that is cast, and padded, beside."""
        recipe = self.recipe
        sizes = [self._whole_bytes(number) for number in (*range(len(self.groups.layers)), ROOT)]
        largest, every = max(sizes), sum(sizes)
        shard = max(unit.shard_numel * (unit.computed + unit.held) for unit in self.units.all)
        live = (sizes[-1] + 3 * largest if recipe.reshard_after_forward else every) + shard
        flat = [unit.whole_bytes for unit in self._updated]
        earlier = self._gradient_bytes if recipe.sync_each_batch else sum(flat)
        before = earlier if accumulates else 0
        waiting = 0 if recipe.sync_each_batch else sum(flat)
        root = self.units.root.whole_bytes if self.units.root in self._updated else 0
        gradients = root + 4 * max(flat) + waiting + shard + self._gradient_bytes
        if recipe.reduce_dtype is not recipe.trained_dtype:
            gradients += 2 * max(unit.padded_numel for unit in self._updated) * recipe.reduce_dtype.num_bytes
        return profile.forward_peak + live + before, profile.dropped_peak + live + before + gradients

    def _whole_bytes(self, number: int) -> int:
        units = self.units.made(number)
        return sum([unit.whole_bytes + self._keeps_moved(unit) * unit.shard_bytes for unit in units])

    def _keeps_moved(self, unit: FlatUnit) -> bool:
        """Whether the copy of a shard of the host stays while the unit is whole."""
        return self.offloads_weights and unit.computed == unit.held and self.recipe.uses_orig_params

    def loading_bound(self, states: ModelStates) -> int:
        """All weights whole, in host memory, where that is the device, and what packs the largest of them."""
        del states
        whole = sum([unit.weights_numel * unit.held for unit in self.units.all])
        if self.recipe.method is not Method.QLORA:
            return whole
        return whole + self.unsharded_packed_bytes + 5 * self.table.largest_bytes

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """An all-gather of each unit forward, and of each but the root's backward where it was resharded; a
        reduce-scatter of each with gradients, in every micro batch or in the last, of which copies of the model sum
        what is left. What is not resharded stays until a reduction. An adapter in a layer that runs again is gathered
        for that too, but for the factor whose backward has begun, where that is what the layer runs again for
        (``_pre_forward``)."""
        recipe, often = self.recipe, self.recipe.grad_accum
        order, reductions = backward_order(trace, self.groups), often if recipe.sync_each_batch else 1
        forward = [unit for number in order.forward_order for unit in self.units.made(number)]
        backward: list[FlatUnit] = []
        if recipe.reshard_after_forward:
            begun = {self.groups.begun_by(run) for run, section in trace.forward() if section.ends_in_adapter}
            numbers = [number for number in order.forward_order if number in order.with_output]
            backward = [unit for number in numbers for unit in self._again(number, is_begun=number in begun)]
            backward += self.units.adapters_by_number[ROOT]
        gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        before = often if recipe.reshard_after_forward else reductions
        parts: Sequence[tuple[CollectiveKind, StepPhase, int, Sequence[FlatUnit]]] = (
            (gather, StepPhase.FORWARD, before, [*forward, *self.units.made(ROOT)]),
            (gather, StepPhase.BACKWARD, often, backward),
            (scatter, StepPhase.BACKWARD, reductions, self._updated),
        )
        widths = {gather: recipe.trained_dtype.num_bytes, scatter: recipe.reduce_dtype.num_bytes}
        sizes = [times * widths[kind] * sum([unit.padded_numel for unit in units]) for kind, _, times, units in parts]
        found = [
            Collectives(kind, phase, times * len(units), num_bytes, self._group_size)
            for (kind, phase, times, units), num_bytes in zip(parts, sizes, strict=True)
        ]
        if self.has_copies:
            found.append(self._sums(StepPhase.BACKWARD, found[-1].count, sizes[-1] // self.num_ranks))
        return [one for one in found if one.count]

    def _again(self, number: int, *, is_begun: bool) -> list[FlatUnit]:
        """What the backward of a layer gathers."""
        adapters = self.units.adapters_by_number[number]
        runs_again = self.recipe.activation_checkpointing
        twice = adapters[: len(adapters) - is_begun] if runs_again else ()
        return [*adapters, *twice, self.units[number]]
