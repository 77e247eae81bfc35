"""FSDP1: ``torch.distributed.fsdp.FullyShardedDataParallel``, of models all of whose weights are trained.

Each unit (``flat_units``: a layer, and the root with all else) has one flat parameter, of which a rank keeps a shard.
With p, m and g bytes of a weight, of a shard of it and of a gradient, and S elements of a unit on N ranks:

- made: a unit's weights come whole, are copied into one flat tensor, and a rank's part of that is copied, before both
  go: mS + mS + mS/N.
- gathered: pS/N, the shard cast, and pS. A layer is whole while its forward runs, and from when it is asked for
  (``FlatParameters``) to the end of its backward; the root from its forward to the end of backward. Without resharding
  (``SHARD_GRAD_OP``) all are whole from their forward on.
- gradients: weights are views of the flat parameter, so autograd keeps each weight's gradient until the unit's last is
  there, and copies all into one of gS (the backward of ``torch.split``), with zeros between them and for weights that
  have none. Only then do the weights go. The root's wait for the end of backward, and with them twice the root's size.
- reduced: into gS/N, which are cast to mS/N and added to an earlier one. The flat gradient stays until that is done.
  In another type (``MixedPrecision.reduce_dtype``) it is cast whole before, beside itself.
- Until the last micro batch of a step (``no_sync``) the flat gradients stay whole, those of later ones are added.

Sources (torch 2.13, ``torch/distributed/fsdp``): ``_flat_param.py`` (``FlatParamHandle``), ``_runtime_utils.py``
(``_pre_forward``, ``_post_forward``, ``_pre_backward_hook``, ``_post_backward_hook``,
``_post_backward_final_callback``), ``_init_utils.py`` (``_init_param_handle_from_module``); of gradients
``split_with_sizes_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp`` and ``accumulate_grad.h``.
"""

from collections.abc import Iterable
from functools import cached_property

from vlmplan.architecture.trace import Run, Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components
from vlmplan.engines.engine import ModelStates, weight
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream
from vlmplan.engines.flat_units import FlatUnit, flat_units
from vlmplan.engines.layer_groups import ROOT, backward_order
from vlmplan.engines.layer_shards import LayerShards
from vlmplan.engines.optimizer_states import update_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters


class FlatShard(LayerShards):
    """A rank with shards of flat parameters. The root stays whole until the backward that follows."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.units = flat_units(table, recipe, num_ranks)
        self._computed, self._held = recipe.trained_dtype.num_bytes, recipe.held_dtype.num_bytes
        self._reduced = recipe.reduce_dtype.num_bytes
        self._waits: set[int] = set()
        """Units with whole flat gradients of earlier micro batches."""
        self._is_updated = False
        """Whether the shards' gradients are those of a step that was made."""

    @property
    def _numbers(self) -> list[int]:
        """Of all units with weights, in the order in which they are made."""
        return [*range(len(self.units.layers)), *([ROOT] if self.units.root.weights else [])]

    # -- load and build ------------------------------------------------------------------------------------------

    def load(self, *, is_on_cpu: bool) -> None:
        """Weights come to host memory in the types in which they are sharded."""
        if is_on_cpu:
            for number in self._numbers:
                self._load_whole(number)
            self._is_loaded = True

    def build(self) -> None:
        for number in self._numbers:
            unit = self.units[number]
            if not self._is_loaded:
                self._load_whole(number)
            self.sink.allocate("flat", Component.WEIGHTS, unit.numel * self._held)
            num_bytes = unit.shard_numel * self._held
            if self.offloads_weights:
                self.sink.transient(Component.WEIGHTS, [num_bytes])
            else:
                self.sink.allocate(("shard", number), Component.WEIGHTS, num_bytes)
            self.sink.free("flat")
            for entry in unit.weights:
                self.sink.free(weight(entry))

    def _load_whole(self, number: int) -> None:
        for entry in self.units[number].weights:
            self.sink.allocate(weight(entry), Component.WEIGHTS, entry.parameter.numel * self._held)

    def use_first(self) -> None:
        """What is gathered into is made and freed, in the type of the shards too (``init_flat_param_attributes``)."""
        for number in self._numbers:
            for width in {self._computed, self._held}:
                self.sink.transient(Component.WEIGHTS, [self.units[number].padded_numel * width])

    # -- forward -------------------------------------------------------------------------------------------------

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """Earlier gradients are in shards, or whole; so are weights that are not resharded until a reduction."""
        self._free_updated()
        for number in {self.groups.number_of_ordinal[ordinal] for ordinal in ordinals}:
            if self.recipe.sync_each_batch:
                self._keep_shard(number)
                continue
            self.sink.allocate("arriving", Component.GRADIENTS, self.units[number].numel * self._computed)
            self._keep_flat(number)
            if not self.recipe.reshard_after_forward:
                self._unshard(number)

    def begin_forward(self, trace: Trace) -> None:
        """Gradients of weights that the optimizer has let go are still those of the flat parameters until now
        (``_reset_flat_param_grad_info_if_needed``)."""
        self._order = backward_order(trace, self.groups)
        self._free_updated()
        self._unshard(ROOT)
        self._prefetch_forward(0)

    def enter(self, run: Run, *, is_backward: bool) -> None:
        number = self._begun(run, is_backward=is_backward)
        if number is None:
            return
        if not is_backward:
            self._unshard(number)
            self._prefetch_forward(self._order.forward_order.index(number) + 1)
        elif number in self._order.with_output:
            self._unshard(number)
            if self.recipe.flat_parameters is FlatParameters.BACKWARD_PRE:
                self._prefetch_before(number)

    def leave(self, run: Run, *, is_backward: bool) -> None:
        number = self._ended(run, is_backward=is_backward)
        if number is None:
            return
        if is_backward:
            self._end_behind(number)
        elif self.recipe.reshard_after_forward:
            self._reshard(number)

    def _unshard(self, number: int) -> None:
        """A shard that has another type is cast first, or comes from the host (``pre_unshard``)."""
        unit = self.units[number]
        if number in self._whole or not unit.weights:
            return
        buffers, casts = Component.COMMUNICATION_BUFFERS, self._computed != self._held
        if casts or self.offloads_weights:
            self.sink.allocate("cast", buffers, unit.shard_numel * self._computed, Stream.GATHER)
        if casts and self.offloads_weights:
            self.sink.transient(buffers, [unit.shard_numel * self._held], Stream.GATHER)
        whole = unit.padded_numel * self._computed
        self.sink.allocate(("whole", number), Component.WEIGHTS, whole, Stream.GATHER)
        self.sink.free("cast")
        self._whole.add(number)

    def _prefetch_forward(self, place: int) -> None:
        """The unit whose forward comes so many after the first, from the second iteration on."""
        if self.recipe.prefetches_forward and place < len(self._order.forward_order):
            self._unshard(self._order.forward_order[place])

    def _reshard(self, number: int) -> None:
        self.sink.free(("whole", number))
        self._whole.discard(number)

    # -- backward ------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """The loss has the root's hook."""
        if self.recipe.flat_parameters is FlatParameters.BACKWARD_PRE and self.units.root.weights:
            self._prefetch(len(self._order.forward_order) - 1)

    def _prefetch_before(self, number: int) -> None:
        self._prefetch(self._order.forward_order.index(number) - 1)

    def _prefetch(self, place: int) -> None:
        """The unit whose forward was so many before, where its backward is going to ask for it."""
        if place >= 0 and self._order.forward_order[place] in self._order.with_output:
            self._unshard(self._order.forward_order[place])

    def end_backward(self) -> None:
        """The units that wait, the root last, and those that are whole though no hook has freed them
        (``_catch_all_reshard``)."""
        for number in (*range(len(self.units.layers)), ROOT):
            self._end_unit(number)
            if self._frees_in_backward:
                self._reshard(number)
        if self.offloads_weights:
            self._free_shards()

    @property
    def _frees_in_backward(self) -> bool:
        """``_should_free_in_backward``."""
        return self._reduces or self.recipe.reshard_after_forward

    def _end_behind(self, number: int) -> None:
        """The backward of this unit's operations is over. What makes the flat gradient comes next in autograd's order,
        that of the forward turned round; where forward has gathered ahead, it was made before the operations of the
        unit in front, and waits for their backward."""
        if not self.recipe.prefetches_forward:
            self._end_unit(number)
            return
        behind = self._order.forward_order.index(number) + 1
        for waiting in self._order.forward_order[behind : behind + 1]:
            self._end_unit(waiting)

    def _end_unit(self, number: int) -> None:
        """``_post_backward_hook``, behind the node of the graph that makes the flat gradient."""
        arrived = self._arrived.pop(number, [])
        if not arrived:
            return
        sink, unit, buffers = self.sink, self.units[number], Component.COMMUNICATION_BUFFERS
        given = sum([self.table.numels[ordinal] for ordinal in arrived])
        sink.allocate("zeros", Component.GRADIENTS, (unit.numel - given) * self._computed)
        sink.allocate("arriving", Component.GRADIENTS, unit.numel * self._computed)
        sink.free("zeros")
        for ordinal in arrived:
            sink.free(ordinal)
        if self._frees_in_backward:
            self._reshard(number)
        if self.recipe.flat_parameters is FlatParameters.BACKWARD_POST and number != ROOT:
            self._prefetch_before(number)
        if not self._reduces:
            self._keep_flat(number)
            return
        if self._reduced != self._computed:
            sink.allocate("cast gradient", buffers, unit.numel * self._reduced, Stream.REDUCTION)
        if unit.padded_numel != unit.numel:
            sink.allocate("padded", buffers, unit.padded_numel * self._reduced, Stream.REDUCTION)
        if self._reduced != self._held:
            sink.allocate("reduced", buffers, unit.shard_numel * self._reduced, Stream.REDUCTION)
        self._keep_shard(number)
        for owner in ("reduced", "padded", "cast gradient", "arriving", ("flat", number)):
            sink.free(owner)
        self._waits.discard(number)

    def _keep_flat(self, number: int) -> None:
        """The flat gradient waits for the last micro batch, or is added to the one that does."""
        if number in self._waits:
            self.sink.free("arriving")
        self.sink.rename("arriving", ("flat", number))
        self._waits.add(number)

    def _keep_shard(self, number: int) -> None:
        """This rank's part, which stays or is added to an earlier one; the host has a copy, behind which it stays
        until backward is over."""
        num_bytes = self.units[number].shard_numel * self._held
        if number in self._has_shards:
            self.sink.transient(Component.GRADIENTS, [num_bytes], Stream.REDUCTION)
            return
        self.sink.allocate(("gradients", number), Component.GRADIENTS, num_bytes, Stream.REDUCTION)
        self._has_shards.add(number)

    # -- the update ----------------------------------------------------------------------------------------------

    def step(self, *, is_first: bool) -> None:
        if not self.offloads_weights:
            if is_first:
                self._keep_states(self._shapes, self.recipe.held_dtype)
            self._update(self._shapes, self.recipe.held_dtype)
        self._is_updated = self.recipe.uses_orig_params
        if not self._is_updated:
            self._free_shards()

    def _free_updated(self) -> None:
        if self._is_updated:
            self._free_shards()

    def _free_shards(self) -> None:
        self._is_updated = False
        for number in self._has_shards:
            self.sink.free(("gradients", number))
        self._has_shards.clear()

    # -- in closed form ------------------------------------------------------------------------------------------

    @cached_property
    def _updated(self) -> list[FlatUnit]:
        """Units that get a gradient: zeros of weights that get none."""
        number_of_ordinal = self.groups.number_of_ordinal
        numbers = {number_of_ordinal[ordinal] for ordinal in self.table.reduced_ordinals}
        return [self.units[number] for number in self._numbers if number in numbers]

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        """What the optimizer has on this rank: parts of weights, or flat parameters."""
        if not self.recipe.uses_orig_params:
            return [(unit.shard_numel,) for unit in self._updated]
        return [(numel,) for unit in self._updated for numel in unit.own_numels(self.rank)]

    @cached_property
    def _gradient_bytes(self) -> int:
        """All gradients in shards."""
        return sum([unit.shard_numel for unit in self._updated]) * self._held

    def states(self) -> ModelStates:
        """mΨ/N shards, mΦ/N gradients, sΦ/N states."""
        building = before = 0
        for unit in self.units.all:
            own = unit.shard_numel * self._held
            building = max(building, before + (unit.weights_numel + unit.numel) * self._held + own)
            before += 0 if self.offloads_weights else own
        updates = update_bytes(self.recipe, self._shapes, self.recipe.held_dtype)
        used = Components(gradients=self._gradient_bytes, temporaries=updates)
        return self._model_states(resting=before, building=building, shapes=self._shapes, used=used)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """The root and three units whole, or all, and a shard cast; beside them gradients of the root and of three
        units, one more that is padded, two shards of one and all shards. Where the reduction is in another type, one
        that is cast, and padded, beside."""
        recipe, units = self.recipe, self.units.all
        largest, every = max(unit.padded_numel for unit in units), sum([unit.padded_numel for unit in units])
        shard = -(-largest // self.num_ranks) * (self._computed + self._held)
        kept = self.units.root.padded_numel + 3 * largest if recipe.reshard_after_forward else every
        live = kept * self._computed + shard
        earlier = self._gradient_bytes if recipe.sync_each_batch else every * self._computed
        before = earlier if accumulates else 0
        wait = 0 if recipe.sync_each_batch else every
        gradients = (self.units.root.padded_numel + 4 * largest + wait) * self._computed + shard + self._gradient_bytes
        if self._reduced != self._computed:
            gradients += 2 * largest * self._reduced
        return profile.forward_peak + live + before, profile.dropped_peak + live + before + gradients

    def loading_bound(self, states: ModelStates) -> int:
        """All weights whole, in host memory, where that is the device."""
        del states
        return self.table.num_params * self._held

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """An all-gather of each unit forward, and of each layer backward where it was resharded; a reduce-scatter of
        each with gradients, in every micro batch or in the last. What is not resharded stays until a reduction."""
        recipe, often = self.recipe, self.recipe.grad_accum
        order, reductions = backward_order(trace, self.groups), often if recipe.sync_each_batch else 1
        forward = [self.units[number].padded_numel for number in order.forward_order]
        forward += [self.units.root.padded_numel] if self.units.root.weights else []
        backward: list[int] = []
        if recipe.reshard_after_forward:
            backward = [
                self.units[number].padded_numel for number in order.forward_order if number in order.with_output
            ]
        reduced = [unit.padded_numel for unit in self._updated]
        parts = (
            (
                CollectiveKind.ALL_GATHER,
                StepPhase.FORWARD,
                often if recipe.reshard_after_forward else reductions,
                forward,
            ),
            (CollectiveKind.ALL_GATHER, StepPhase.BACKWARD, often, backward),
            (CollectiveKind.REDUCE_SCATTER, StepPhase.BACKWARD, reductions, reduced),
        )
        widths = {CollectiveKind.ALL_GATHER: self._computed, CollectiveKind.REDUCE_SCATTER: self._reduced}
        return [
            Collectives(kind, phase, times * len(numels), times * sum(numels) * widths[kind])
            for kind, phase, times, numels in parts
            if numels
        ]
