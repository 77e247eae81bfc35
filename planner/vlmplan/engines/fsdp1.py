"""FSDP1: ``torch.distributed.fsdp.FullyShardedDataParallel``, of whole models and of adapters.

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
- Where ranks have copies (``HYBRID_SHARD``), N is the ranks of one. What is reduced is summed over the copies where it
  is, and cast and added on the stream of that; nothing waits for it.
- Until the last micro batch of a step (``no_sync``) the flat gradients stay whole, those of later ones are added.
- adapters: each factor is a unit of its own, flattened and reduced when its gradient is there. While a layer is whole
  the largest of its factors is counted with it; without resharding all are. The weights around them are a unit without
  gradients, which goes when its inputs have theirs (``_post_backward_reshard_only_hook``), and the first adapter of a
  layer gathers what comes ahead of the layer.
- frozen layers beside trained ones: a unit without gradients as well.

Sources (torch 2.13, ``torch/distributed/fsdp``): ``_flat_param.py`` (``FlatParamHandle``), ``_runtime_utils.py``
(``_pre_forward``, ``_post_forward``, ``_pre_backward_hook``, ``_post_backward_hook``,
``_post_backward_final_callback``), ``_init_utils.py`` (``_init_param_handle_from_module``); of gradients
``split_with_sizes_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp`` and ``accumulate_grad.h``.
"""

from collections.abc import Iterable, Mapping, Sequence

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.trace import Run, Trace
from vlmplan.engines.engine import weight
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream
from vlmplan.engines.flat_units import FlatUnit
from vlmplan.engines.fsdp1_formulas import FlatShardFormulas
from vlmplan.engines.layer_groups import ROOT, backward_order, gathered_ahead
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, Method

Key = int | tuple[str, int]
"""A unit: the number of a group, or ``adapter`` and the ordinal of its weight."""


class FlatShard(FlatShardFormulas):
    """A rank with shards of flat parameters. The root stays whole until the backward that follows."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._waits: set[Key] = set()
        """Units with whole flat gradients of earlier micro batches."""
        self._num_adapted: dict[int, int] = {}
        """How many adapters of each group have had their gradients in this micro batch."""
        self._ahead: Mapping[Run | None, int] = {}
        """``gathered_ahead`` where forward prefetches."""
        self._knows_order = False
        """Whether a backward is over, by which torch knows what comes next in forward (``is_first_iter``)."""
        self._is_updated = False
        """Whether the shards' gradients are those of a step that was made."""
        self._prefetched: set[int] = set()
        """Groups that have been prefetched, and not used since."""

    # -- load and build ------------------------------------------------------------------------------------------

    def load(self, *, is_on_cpu: bool) -> None:
        """Weights come to host memory in the types in which they are sharded; beside packed ones, which the device
        packs, all come to the device."""
        if self.recipe.method is Method.QLORA:
            self._load_weights()
        elif is_on_cpu:
            for unit in self.units.all:
                self._load_whole(unit.weights)
            self._is_loaded = True

    def loaded_bytes(self, entry: NamedParameter) -> int:
        return entry.parameter.numel * self.groups.held_dtype(entry).num_bytes

    def build(self) -> None:
        for place, unit in enumerate(self.units.all):
            if not self._is_loaded:
                self._load_whole(unit.weights)
            self.sink.allocate("flat", Component.WEIGHTS, unit.numel * unit.held)
            if self.offloads_weights:
                self.sink.transient(Component.WEIGHTS, [unit.shard_bytes])
            else:
                self.sink.allocate(("shard", place), Component.WEIGHTS, unit.shard_bytes)
            self.sink.free("flat")
            for entry in unit.weights:
                self.sink.free(weight(entry))

    def use_first(self) -> None:
        """What is gathered into is made and freed, in the type of the shards too (``init_flat_param_attributes``)."""
        for unit in self.units.all:
            for width in {unit.computed, unit.held}:
                self.sink.transient(Component.WEIGHTS, [unit.padded_numel * width])

    # -- forward -------------------------------------------------------------------------------------------------

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        super().begin_micro_batch(accumulates=accumulates, is_last=is_last)
        self._num_adapted.clear()

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """Earlier gradients are in shards, or whole; so are weights that are not resharded until a reduction."""
        self._free_updated()
        for key in dict.fromkeys(self._key_of(ordinal) for ordinal in ordinals):
            if self.recipe.sync_each_batch:
                self._keep_shard(key)
                continue
            unit = self._unit(key)
            self.sink.allocate("arriving", Component.GRADIENTS, unit.numel * unit.computed)
            self._keep_flat(key)
        if not self.recipe.sync_each_batch and not self.recipe.reshard_after_forward:
            for number in (*range(len(self.groups.layers)), ROOT):
                self._unshard(number)

    def _key_of(self, ordinal: int) -> Key:
        """The unit of a trained weight."""
        return ("adapter", ordinal) if ordinal in self.units.adapters else self.groups.number_of_ordinal[ordinal]

    def _unit(self, key: Key) -> FlatUnit:
        return self.units[key] if isinstance(key, int) else self.units.adapters[key[1]]

    def begin_forward(self, trace: Trace) -> None:
        """Gradients of weights that the optimizer has let go are still those of the flat parameters until now
        (``_reset_flat_param_grad_info_if_needed``)."""
        self._order = backward_order(trace, self.groups)
        self._free_updated()
        self._prefetched.clear()
        self._use(ROOT)
        gathers_ahead = self.recipe.prefetches_forward and self._knows_order
        self._ahead = gathered_ahead(trace, self.groups) if gathers_ahead else {}
        self._prefetch_forward(None)

    def enter(self, run: Run, *, is_backward: bool) -> None:
        number = self._begun(run, is_backward=is_backward)
        if number is None:
            return
        if not is_backward:
            self._use(number)
            if not self._adapters(number):
                self._prefetch_forward(run)
        elif number in self._order.with_output:
            self._use(number)
            if self.recipe.flat_parameters is FlatParameters.BACKWARD_PRE and not self._adapters(number):
                self._prefetch_before(number)

    def leave(self, run: Run, *, is_backward: bool) -> None:
        number = self._ended(run, is_backward=is_backward)
        if number is None:
            return
        if is_backward:
            self._end_behind(number)
            return
        if self.recipe.reshard_after_forward:
            self._reshard(number)

    def _adapters(self, number: int) -> Sequence[FlatUnit]:
        return self.units.adapters_by_number[number]

    def _use(self, number: int) -> None:
        """The hook before a unit's forward or backward, which leaves out what has been prefetched."""
        if number in self._prefetched:
            self._prefetched.remove(number)
        else:
            self._unshard(number)

    def _unshard(self, number: int) -> None:
        """A shard that has another type is cast first, or comes from the host (``pre_unshard``). One that comes as it
        is stays until the unit is sharded again where the optimizer has the weights, which are views of it meanwhile
        (``flat_param_to``)."""
        unit = self.units[number]
        if number in self._whole:
            self._bring_again(unit)
            return
        self._whole.add(number)
        sizes = [one.whole_bytes for one in self._adapters(number)]
        adapters = max(sizes, default=0) if self.recipe.reshard_after_forward else sum(sizes)
        self.sink.allocate(("adapters", number), Component.WEIGHTS, adapters, Stream.GATHER)
        if not unit.weights:
            return
        buffers, casts = Component.COMMUNICATION_BUFFERS, unit.computed != unit.held
        if self._keeps_moved(unit):
            self.sink.allocate(("moved", number), Component.WEIGHTS, unit.shard_bytes, Stream.PRE_GATHER)
        elif casts or self.offloads_weights:
            self.sink.allocate("cast", buffers, unit.shard_numel * unit.computed, Stream.PRE_GATHER)
        if casts and self.offloads_weights:
            self.sink.transient(buffers, [unit.shard_bytes], Stream.PRE_GATHER)
        self.sink.allocate(("whole", number), Component.WEIGHTS, unit.whole_bytes, Stream.GATHER)
        self.sink.free("cast")

    def _bring_again(self, unit: FlatUnit) -> None:
        """A shard on the host is cast though the unit is whole: ``pre_unshard`` asks for that without
        ``offload_params`` alone."""
        if self.offloads_weights and unit.weights and unit.computed != unit.held:
            sizes = [unit.shard_numel * unit.computed, unit.shard_bytes]
            self.sink.transient(Component.COMMUNICATION_BUFFERS, sizes, Stream.PRE_GATHER)

    def begin_last_adapter(self, run: Run) -> None:
        self._prefetch_forward(run)

    def _prefetch_forward(self, run: Run | None) -> None:
        """The unit that comes next, from the second iteration on. Before an adapter comes the one before it."""
        number = self._ahead.get(run)
        if number is not None:
            self._unshard(number)
            self._prefetched.add(number)

    def _reshard(self, number: int) -> None:
        for what in ("whole", "moved", "adapters"):
            self.sink.free((what, number))
        self._whole.discard(number)

    # -- backward ------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """The loss has the root's hook."""
        self._use(ROOT)
        if self.recipe.flat_parameters is FlatParameters.BACKWARD_PRE and self.units.root.weights:
            self._prefetch(len(self._order.forward_order) - 1)

    def _prefetch_before(self, number: int) -> None:
        self._prefetch(self._order.forward_order.index(number) - 1)

    def _prefetch(self, place: int) -> None:
        """The unit whose forward was so many before, where its backward is going to ask for it."""
        number = self._order.forward_order[place] if place >= 0 else ROOT
        if number in self._order.with_output and number not in self._prefetched:
            self._unshard(number)
            self._prefetched.add(number)

    def take_gradient(self, ordinal: int) -> None:
        """Autograd keeps it until the flat one is made: that of an adapter at once."""
        if ordinal not in self.units.adapters:
            super().take_gradient(ordinal)
            return
        number = self.groups.number_of_ordinal[ordinal]
        self._num_adapted[number] = self._num_adapted.get(number, 0) + 1
        is_last = self._num_adapted[number] == len(self._adapters(number)) and number != ROOT
        if is_last and self.recipe.flat_parameters is not FlatParameters.ON_DEMAND:
            self._prefetch_before(number)
        self._flatten(("adapter", ordinal), [ordinal])
        self._reduce(("adapter", ordinal))

    def end_backward(self) -> None:
        """The units that wait, the root last, and those that are whole though no hook has freed them
        (``_catch_all_reshard``)."""
        self._prefetched.clear()
        for number in (*range(len(self.groups.layers)), ROOT):
            self._end_unit(number)
            if self._frees_in_backward:
                self._reshard(number)
        if self.offloads_weights:
            self._free_shards()
        self._knows_order = True

    @property
    def _frees_in_backward(self) -> bool:
        """``_should_free_in_backward``."""
        return self._reduces or self.recipe.reshard_after_forward

    def _end_behind(self, number: int) -> None:
        """The backward of this unit's operations is over. What makes the flat gradient comes next in autograd's order,
        that of the forward turned round; where forward has gathered ahead, it was made before the operations of the
        unit in front, and waits for their backward."""
        if self.recipe.trains_adapters:
            self._end_frozen(number)
            return
        if not self.units[number].ordinals:
            self._end_frozen(number)
            if self.recipe.flat_parameters is FlatParameters.BACKWARD_POST and number in self._order.with_input:
                self._prefetch_before(number)
            return
        if not self._ahead:
            self._end_unit(number)
            return
        behind = self._order.forward_order.index(number) + 1
        for waiting in self._order.forward_order[behind : behind + 1]:
            self._end_unit(waiting)

    def _end_frozen(self, number: int) -> None:
        """``_post_backward_reshard_only_hook``, behind the gradients of what the unit got. Where that is what the unit
        before gave, this one's hook is on the same tensor, and was there first: it gathers."""
        if number not in self._order.with_input or not self._frees_in_backward:
            return
        if number in self._order.reading_output:
            self._prefetch_before(number)
        self._reshard(number)

    def _end_unit(self, number: int) -> None:
        """``_post_backward_hook``, behind the node of the graph that makes the flat gradient."""
        arrived = self._arrived.pop(number, [])
        if not arrived:
            return
        self._flatten(number, arrived)
        if self._frees_in_backward:
            self._reshard(number)
        if self.recipe.flat_parameters is FlatParameters.BACKWARD_POST and number != ROOT:
            self._prefetch_before(number)
        self._reduce(number)

    def _flatten(self, key: Key, arrived: Sequence[int]) -> None:
        """The flat gradient of a unit takes the place of those of its weights."""
        sink, unit = self.sink, self._unit(key)
        given = sum([self.table.numels[ordinal] for ordinal in arrived])
        sink.allocate("zeros", Component.GRADIENTS, (unit.numel - given) * unit.computed)
        sink.allocate("arriving", Component.GRADIENTS, unit.numel * unit.computed)
        sink.free("zeros")
        for ordinal in arrived:
            sink.free(ordinal)

    def _reduce(self, key: Key) -> None:
        """It is reduced, or waits for the last micro batch."""
        sink, unit, buffers = self.sink, self._unit(key), Component.COMMUNICATION_BUFFERS
        if not self._reduces:
            self._give_views(key)
            self._keep_flat(key)
            return
        reduced = self.recipe.reduce_dtype.num_bytes
        if reduced != unit.computed:
            sink.allocate("cast gradient", buffers, unit.numel * reduced, Stream.REDUCTION)
        if unit.padded_numel != unit.numel:
            sink.allocate("padded", buffers, unit.padded_numel * reduced, Stream.REDUCTION)
        if reduced != unit.held:
            sink.allocate("reduced", buffers, unit.shard_numel * reduced, Stream.REDUCTION)
        self._keep_shard(key)
        for owner in ("reduced", "padded", "cast gradient", "arriving", ("flat", key)):
            sink.free(owner)
        self._waits.discard(key)

    def _give_views(self, key: Key) -> None:
        """Where the optimizer has weights, the first flat gradient of a step is given to each. It is part of the shard
        again then, and gets an empty gradient of that size, which the view replaces (``_use_unsharded_grad_views``)."""
        if key in self._waits or not self.recipe.uses_orig_params or self.offloads_weights:
            return
        unit = self._unit(key)
        for _, numel in unit.own_numels(self.rank):
            self.sink.transient(Component.GRADIENTS, [numel * unit.held])

    def _keep_flat(self, key: Key) -> None:
        """The flat gradient waits for the last micro batch, or is added to the one that does."""
        if key in self._waits:
            self.sink.free("arriving")
        self.sink.rename("arriving", ("flat", key))
        self._waits.add(key)

    def _keep_shard(self, key: Key) -> None:
        """This rank's part, which stays or is added to an earlier one; the host has a copy, behind which it stays
        until backward is over."""
        unit = self._unit(key)
        is_cast = unit.held != self.recipe.reduce_dtype.num_bytes
        stream = Stream.SUM if self.has_copies and is_cast else Stream.REDUCTION
        if key in self._has_shards:
            self.sink.transient(Component.GRADIENTS, [unit.shard_bytes], stream)
            return
        self.sink.allocate(("gradients", key), Component.GRADIENTS, unit.shard_bytes, stream)
        self._has_shards.add(key)

    # -- the update ----------------------------------------------------------------------------------------------

    def step(self, *, is_first: bool) -> None:
        if is_first and not self.offloads_weights:
            self._keep_all_shards()
        for shapes in () if self.offloads_weights else self._shapes_of_groups:
            if is_first:
                self._keep_states(shapes, self.recipe.held_dtype)
            self._update(shapes, self.recipe.held_dtype)
        self._is_updated, self._knows_order = self.recipe.uses_orig_params, True
        if not self._is_updated:
            self._free_shards()

    def _keep_all_shards(self) -> None:
        """Gradients of the first step, whose backward may not have been walked: the next forward begins beside them."""
        for key in dict.fromkeys(self._key_of(ordinal) for ordinal in self.table.reduced_ordinals):
            if key not in self._has_shards:
                self._keep_shard(key)

    def _free_updated(self) -> None:
        if self._is_updated:
            self._free_shards()

    def _free_shards(self) -> None:
        self._is_updated = False
        for key in self._has_shards:
            self.sink.free(("gradients", key))
        self._has_shards.clear()
