"""FSDP2: PyTorch's own sharding (``torch.distributed.fsdp.fully_shard``), as the trainer applies it.

Every group (``layer_groups``: a layer, the input embedding, the head, the root with what is left) is gathered by one
collective. Shards have the type of the update (float32 in mixed precision), weights that are whole that of the
computation. With p, m and g bytes of a weight, of a shard of it and of a gradient as it is reduced, and S elements of a
group on N ranks:

- forward: pS/N cast into the collective's input, pS gathered, then copied to pS of weights. The gathered buffer stays
  until the next group has been copied out (implicit prefetching), the last one until forward ends. The root is whole
  from its forward to the end of backward, the head's until its backward is over; a layer and the embedding while they
  run, or until their backward (``reshard_after_forward``). With the ends in the root, that is gathered again when
  backward begins.
- backward: a layer's weights are copied out of what was prefetched, which is freed at once; then the layer before it is
  prefetched (``_backward_prefetch``). When it is over its weights go, gS are copied into the input of a reduce-scatter,
  which stays until the next group's, gS/N come out, and are cast to mS/N of gradients, one tensor for the group. The
  group's last gradient stays until then: the variable of a loop refers to it.
- Where ranks have copies (``dp_shard_size``), N is the ranks of one. What a reduce-scatter gives out is summed over the
  copies, and stays until all of backward is over (``AllReduceState``), beside what it is cast to.
- The root's gradients, and those of a group whose first input needs none, wait whole for the end of backward: of a tied
  embedding too, whose group begins with token ids.

Sources (torch 2.13, ``torch/distributed/fsdp/_fully_shard``): ``_fsdp_param_group.py`` (``unshard``,
``wait_for_unshard``, ``post_backward``), ``_fsdp_collectives.py`` (``foreach_all_gather``,
``foreach_all_gather_copy_out``, ``foreach_reduce``), ``_fsdp_state.py`` (``_pre_backward``,
``_root_post_backward_final_callback``), ``_fsdp_init.py`` (``_move_states_to_device``).
"""

from collections.abc import Iterable, Sequence

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.trace import Run, Trace
from vlmplan.engines.engine import weight
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream
from vlmplan.engines.fsdp2_formulas import FullyShardFormulas
from vlmplan.engines.layer_groups import ROOT, LayerGroup, backward_order
from vlmplan.engines.optimizer_states import norm_sizes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

WAITING = "reduce-scatter input"


class FullyShard(FullyShardFormulas):
    """A rank with its shards. Where the host has them (``CPUOffloadPolicy``), gradients and states too."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._last_gathered: int | None = None
        """The group whose gathered buffer waits, in forward, for the next one."""
        self._prefetched: set[int] = set()
        self._done: set[int] = set()
        self._wide: set[int] = set()
        """Whole gradients in the type of the reduction, from earlier micro batches."""

    # -- load and build ------------------------------------------------------------------------------------------

    def load(self, *, is_on_cpu: bool) -> None:
        """Weights come to host memory in the types in which they are sharded; beside packed ones, which the device
        packs, all come to the device."""
        if self.recipe.method is Method.QLORA:
            self._load_weights()
        elif is_on_cpu:
            for group in self.groups.all:
                self._load_whole(group.weights)
            self._is_loaded = True

    def loaded_bytes(self, entry: NamedParameter) -> int:
        return entry.parameter.numel * self.groups.held_dtype(entry).num_bytes

    def build(self) -> None:
        """Group by group, layers first: all weights of a group come whole to the device, then each is cut, and when
        the call returns the whole ones go."""
        for number, group in enumerate(self.groups.all):
            if not self._is_loaded:
                self._load_whole(group.weights)
            if self.offloads_weights:
                for num_bytes in group.shard_sizes:
                    self.sink.transient(Component.TEMPORARIES, [num_bytes])
            else:
                for place, num_bytes in enumerate(group.shard_sizes):
                    self.sink.allocate(("shard", number, place), Component.WEIGHTS, num_bytes)
            for entry in group.weights:
                self.sink.free(weight(entry))

    # -- forward -------------------------------------------------------------------------------------------------

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        super().begin_micro_batch(accumulates=accumulates, is_last=is_last)
        self._done.clear()

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """Earlier gradients are in shards, or whole."""
        if not self.recipe.sync_each_batch:
            if self._accumulates_wide:
                for ordinal in ordinals:
                    self._keep_wide(ordinal)
            else:
                super().resume_accumulation(ordinals)
            return
        by_group: dict[int, list[int]] = {}
        for ordinal in ordinals:
            by_group.setdefault(self.groups.number_of_ordinal[ordinal], []).append(ordinal)
        for number, members in by_group.items():
            self._keep_gradients(number, members)

    def begin_forward(self, trace: Trace) -> None:
        """The root is gathered before anything runs."""
        self._order = backward_order(trace, self.groups)
        self._unshard(ROOT, is_forward=True)

    def enter(self, run: Run, *, is_backward: bool) -> None:
        number = self._begun(run, is_backward=is_backward)
        if number is None:
            return
        if not is_backward:
            self._unshard(number, is_forward=True)
        elif number in self._order.with_output:
            self._unshard(number, is_forward=False)
            if not self.groups[number].num_apart:
                self._prefetch_before(number)

    def leave(self, run: Run, *, is_backward: bool) -> None:
        number = self._ended(run, is_backward=is_backward)
        if number is None:
            return
        if not is_backward:
            if self.recipe.reshard_after_forward and not self.groups[number].stays_whole:
                self._reshard(number)
        elif number in self._order.with_input:
            self._end_group(number)

    def end_forward(self) -> None:
        if self.groups.reshards_root:
            self._reshard(ROOT)
        self._free_last_gathered()

    def end_evaluation(self) -> None:
        for number in list(self._whole):
            self._reshard(number)

    @property
    def _accumulates_wide(self) -> bool:
        """Whether whole gradients wait in another type than they come in (``to_accumulated_grad_if_needed``)."""
        return self.recipe.reduce_dtype is not self.recipe.trained_dtype

    def _keep_wide(self, ordinal: int) -> None:
        """The cast of a whole gradient, to which later ones are added."""
        if ordinal not in self._wide:
            num_bytes = self.table.numels[ordinal] * self.recipe.reduce_dtype.num_bytes
            self.sink.allocate(("wide", ordinal), Component.GRADIENTS, num_bytes)
            self._wide.add(ordinal)
        self.sink.free(ordinal)

    def _unshard(self, number: int, *, is_forward: bool) -> None:
        """A rank that is alone casts and copies weight by weight."""
        group = self.groups[number]
        if number in self._whole or not group.weights:
            return
        if self.num_ranks > 1 and not self._is_read_as_shards(number):
            if number not in self._prefetched:
                self._gather(number)
            self._prefetched.discard(number)
            self._allocate_whole(number)
            if is_forward:  # the one before has a name until ``wait_for_unshard`` returns
                self._free_last_gathered()
                self._last_gathered = number
                if group.num_apart:  # the first matrix of an adapter comes next, in a buffer of its own
                    self._free_last_gathered()
            else:
                self.sink.free(("gathered", number))
        else:
            self._allocate_whole(number)
        self._whole.add(number)

    def _allocate_whole(self, number: int) -> None:
        for place, num_bytes in enumerate(self.groups[number].whole_sizes):
            self.sink.allocate(("whole", number, place), Component.WEIGHTS, num_bytes)

    def _is_read_as_shards(self, number: int) -> bool:
        """TRL reads the head's weight without calling the head: where nothing has gathered it, it makes a whole one of
        the shards (``full_tensor`` in ``add_fused_lm_head``, TRL 1.16 ``trl/trainer/utils.py``)."""
        return self.recipe.loss is LossKind.TRL and number == self.groups.tail and self.groups.gathers_head_alone

    def _gather(self, number: int) -> None:
        """``_get_param_all_gather_inputs``: all casts in one flat tensor."""
        group, sink = self.groups[number], self.sink
        owner, buffers = ("gathered", number), Component.COMMUNICATION_BUFFERS
        if self.offloads_weights:
            self._bring_inputs(group)
        else:
            sink.allocate(("input", 0), buffers, group.cast_bytes, Stream.GATHER)
        sink.allocate(owner, buffers, group.whole_bytes, Stream.GATHER)
        for place in reversed(range(len(group.weights))):  # as a list lets go of its elements
            sink.free(("input", place))

    def _bring_inputs(self, group: LayerGroup) -> None:
        """Shards come from the host one by one, each in the type in which it lies there until it is cast
        (``all_gather_inputs`` in ``_fsdp_param.py``)."""
        sink, buffers = self.sink, Component.COMMUNICATION_BUFFERS
        for place, entry in enumerate(group.weights):
            is_cast = self.groups.held_dtype(entry) is not entry.parameter.dtype
            sink.allocate("moved", buffers, group.shard_sizes[place] if is_cast else 0, Stream.GATHER)
            sink.allocate(("input", place), buffers, group.whole_sizes[place] // self.num_ranks, Stream.GATHER)
            sink.free("moved")

    def _free_last_gathered(self) -> None:
        if self._last_gathered is not None:
            self.sink.free(("gathered", self._last_gathered))
            self._last_gathered = None

    def _reshard(self, number: int) -> None:
        for place in range(len(self.groups[number].weights)):
            self.sink.free(("whole", number, place))
        self._whole.discard(number)

    # -- backward ------------------------------------------------------------------------------------------------

    def begin_backward(self) -> None:
        """The loss has the root's hook, which prefetches the last group: that of the head is whole."""
        if self.groups.reshards_root:
            self._unshard(ROOT, is_forward=False)
            self._prefetch(self._order.forward_order[-1:])

    def _prefetch_before(self, number: int) -> None:
        place = self._order.forward_order.index(number)
        self._prefetch(self._order.forward_order[max(0, place - 1) : place])

    def _prefetch(self, numbers: Sequence[int]) -> None:
        """The groups of these ``numbers`` are gathered ahead, those without a backward too: their buffers wait until
        backward is over (``finalize_backward``)."""
        for number in numbers if self.num_ranks > 1 else ():
            if number not in self._whole and number not in self._prefetched:
                self._gather(number)
                self._prefetched.add(number)

    def take_gradient(self, ordinal: int) -> None:
        """Where each matrix of an adapter is a group, a layer's own prefetch is its last matrix, and the first one's is
        the layer before: its backward begins when all others have their gradients."""
        super().take_gradient(ordinal)
        number = self.groups.number_of_ordinal[ordinal]
        group = self.groups[number]
        if group.num_apart and len(self._arrived[number]) == len(group.ordinals) - 1 and number != ROOT:
            self._prefetch_before(number)

    def end_backward(self) -> None:
        """``_root_post_backward_final_callback``: the root, then groups whose backward nobody has ended."""
        for number in (ROOT, *range(len(self.groups.layers))):
            if number not in self._done:
                self._end_group(number)
            self.sink.free(("summed", number))
        self.sink.free(WAITING)
        for number in self._prefetched:
            self.sink.free(("gathered", number))
        self._prefetched.clear()

    def _end_group(self, number: int) -> None:
        """``post_backward``."""
        self._done.add(number)
        arrived = self._arrived.pop(number, [])
        wide = [one for one in self.groups[number].ordinals if one in self._wide]
        for ordinal in wide:
            self.sink.free(ordinal)  # added
        self._reshard(number)
        if not self._reduces:
            for ordinal in arrived if self._accumulates_wide else ():
                self._keep_wide(ordinal)
            return
        arrived = [one for one in self.groups[number].ordinals if one in {*arrived, *wide}]
        self.sink.free(WAITING)
        if not arrived:
            return
        sink, num_bytes = self.sink, self.groups.padded_bytes(arrived, self.recipe.reduce_dtype)
        sink.allocate(WAITING, Component.COMMUNICATION_BUFFERS, num_bytes)
        at_once = arrived if self.num_ranks == 1 else arrived[:-1]  # ``foreach_reduce`` has a name for the last
        self._free_whole(at_once)
        part, owner = num_bytes // self.num_ranks, ("summed", number) if self.has_copies else "reduced"
        if self._casts_reduced:
            sink.allocate(owner, Component.COMMUNICATION_BUFFERS, part, Stream.REDUCTION)
        if self.has_copies and not self._casts_reduced and self._adds_or_moves(number):
            sink.allocate(owner, Component.GRADIENTS, part, Stream.REDUCTION)  # which outlasts what is done with it
        else:
            self._keep_gradients(number, arrived)
        sink.free("reduced")
        self._free_whole(arrived[len(at_once) :])

    def _free_whole(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self.sink.free(ordinal)
            self.sink.free(("wide", ordinal))
        self._wide.difference_update(ordinals)

    def _keep_gradients(self, number: int, ordinals: Sequence[int]) -> None:
        """This rank's part, one tensor of the group; it is added to an earlier one, or goes to the host."""
        num_bytes = self.groups.padded_bytes(ordinals, self.recipe.held_dtype) // self.num_ranks
        stream = Stream.SUM if self.has_copies and self._casts_reduced else Stream.REDUCTION
        if self._adds_or_moves(number):
            self.sink.transient(Component.GRADIENTS, [num_bytes], stream)
            return
        self.sink.allocate(("gradients", number), Component.GRADIENTS, num_bytes, stream)
        self._has_shards.add(number)

    @property
    def _casts_reduced(self) -> bool:
        """Whether gradients are reduced in another type than that in which they wait for the update."""
        return self.recipe.held_dtype is not self.recipe.reduce_dtype

    def _adds_or_moves(self, number: int) -> bool:
        """Whether a new gradient of the group is added to an earlier one, or goes to the host."""
        return self.offloads_weights or number in self._has_shards

    # -- the update ----------------------------------------------------------------------------------------------

    def step(self, *, is_first: bool) -> None:
        """torch's optimizer on this rank's rows."""
        if not self.offloads_weights:
            for num_bytes in norm_sizes(self.recipe, {self.recipe.held_dtype: self._shapes}):
                self.sink.transient(Component.TEMPORARIES, [num_bytes])
            for shapes in self._shapes_of_groups:
                if is_first:
                    self._keep_states(shapes, self.recipe.held_dtype)
                self._update(shapes, self.recipe.held_dtype)
        for number in self._has_shards:
            self.sink.free(("gradients", number))
        self._has_shards.clear()
