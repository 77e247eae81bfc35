"""ZeRO stage 3 (``stage3.py``, ``partition_parameters.py``): shards of weights, gradients and states.

Every weight is cut into equal shards, padded by itself. Modules all-gather their weights before they run and release
them after (``coordinator``); gradients are copied into a reduce bucket, which lives from ``build`` on, into this rank's
shards. With ``offload_params`` the shards live on the host, with ``offload_optimizer`` everything of the
optimizer does, gradients included. With ``hpz`` there is a secondary partition of every weight, N/hpz as large.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.trace import Trace
from vlmplan.engines.adapter_starts import bytes_for_start
from vlmplan.engines.collectives import overfills
from vlmplan.engines.coordinator.module_uses import used_weights
from vlmplan.engines.coordinator.records import Key
from vlmplan.engines.coordinator.secondary import secondary_among
from vlmplan.engines.dora_lengths import adapted_weights, bytes_for_lengths
from vlmplan.engines.engine import weight
from vlmplan.engines.events import NULL_SINK, Component, Sink, Stream
from vlmplan.engines.optimizer_states import NORM_BYTES, overflow_check_bytes
from vlmplan.engines.parameters import ParameterTable, is_added, is_copy
from vlmplan.engines.zero3_gathers import Zero3Gathers
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.units import DType

NORM_ELEMENTS = 250_000_000
"""Elements at a time of the norm of an offloaded gradient (``_constant_buffered_norm2``)."""


class Zero3(Zero3Gathers):
    """Stage 3."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._waiting: list[int] = []
        self._num_waiting = 0
        self._num_in_bucket = 0
        self._accumulates, self._is_last = False, True
        self.lacks_secondary = False
        self._without_secondary: list[NamedParameter] = []
        self._uses: frozenset[Key] | None = None
        """The weights that micro batches use; None, before any has begun: all."""

    @staticmethod
    def overlapped_micro_batches(recipe: Recipe) -> int:
        return recipe.grad_accum if recipe.zero.overlap_comm else 0

    @property
    def has_streams(self) -> bool:
        return self.recipe.zero.overlap_comm

    # -- load and build ------------------------------------------------------------------------------------------

    def load(self, *, is_on_cpu: bool) -> None:
        """``deepspeed.zero.Init`` shards every module once it is built, and gathers it once more, all its own weights
        together, for the values that the first rank has read (transformers' ``_load_state_dict_into_zero3_model``). A
        tied head is a weight of its own (``no_tie_weights``), and so are those of every layer that shares them, and
        reference cycles hold them until the engine is made. Adapters are added after that."""
        del is_on_cpu
        sink, modules = self.sink, self._modules_of_checkpoint()
        for name in inside_out(modules):
            self._shard_module(modules[name])
        width = self.recipe.precision.dtype.num_bytes
        for number, numel in enumerate(self.table.numels_before_tying):
            shard = 0 if self.offloads_weights else -(-numel // self.num_ranks) * width
            sink.allocate("tied", Component.TEMPORARIES, numel * width)
            copied = -(-numel // self.recipe.hpz) * width if self.shards.has_secondary else 0
            sink.allocate(("tied copy", number), Component.WEIGHTS, copied)
            sink.allocate(("tied shard", number), Component.WEIGHTS, shard)
            sink.free("tied")
        for entries in modules.values():
            shards = [self.shards.shard_bytes(entry.parameter) for entry in entries]
            whole = self._gathered([entry.parameter for entry in entries])
            arriving = shards if self.offloads_weights and not self._is_read(len(entries)) else []
            sink.transient(Component.TEMPORARIES, whole + arriving if len(entries) == 1 else arriving + whole)
        if self.recipe.trains_adapters:
            self._add_adapters()
        self._is_loaded = True

    def _add_adapters(self) -> None:
        """Whole, DoRA's and those that start from the weights with the base layer gathered; then, of what is trained in
        a copy, the original is gathered to be copied, and a tied head, which takes the copy that is there (peft's
        ``BaseTuner.inject_adapter`` and ``ModulesToSaveWrapper.update``)."""
        sink, recipe, temporaries = self.sink, self.recipe, Component.TEMPORARIES
        adapted = adapted_weights(self.table.entries)
        copied = Counter([entry.name.rpartition(".")[0] for entry in self.trained if is_copy(entry)])
        for entry in self.table.added:
            sink.transient(temporaries, bytes_for_start(entry, adapted, recipe, self._gathered))
            sink.transient(temporaries, bytes_for_lengths(entry, adapted, self._gathered))
            if is_copy(entry) and (self.offloads_weights or not self._is_read(copied[entry.name.rpartition(".")[0]])):
                sink.allocate("original", temporaries, self._gathered_bytes(entry.parameter))
            sink.allocate(weight(entry), Component.WEIGHTS, entry.parameter.num_bytes)
            sink.free("original")
            if is_copy(entry) and self.table.copies_tied_head:
                sink.transient(temporaries, [self._gathered_bytes(entry.parameter), entry.parameter.num_bytes])
            elif is_copy(entry) and self.table.ties_weights and entry.parameter.numel == self.table.tied_numel:
                arriving = self.shards.shard_bytes(entry.parameter) if self.offloads_weights else 0
                sink.transient(temporaries, [self._gathered_bytes(entry.parameter), arriving])

    def _is_read(self, num_weights: int) -> bool:
        """Whether weights that are gathered together are this rank's shards themselves: of a single rank all that are
        no weight alone (``_no_gather_coalesced`` in ``_allgather_params_coalesced``, ``partition_parameters.py``)."""
        return self.num_ranks == 1 and num_weights > 1

    def _gathered(self, parameters: Sequence[Parameter]) -> list[int]:
        """Sizes of what a gather of ``parameters`` together makes."""
        if self._is_read(len(parameters)) and not self.offloads_weights:
            return []
        return [self._gathered_bytes(parameter) for parameter in parameters]

    def _gathered_bytes(self, parameter: Parameter) -> int:
        return self.num_ranks * self.shards.shard_bytes(parameter)

    def end_load(self) -> None:
        for number in range(len(self.table.numels_before_tying)):
            self.sink.free(("tied shard", number))
            self.sink.free(("tied copy", number))

    def build(self) -> None:
        """Adapters are sharded; trained shards move through the host into one tensor (``defragment`` in
        ``zero/utils.py``); then master copies, the bucket, gradients, and every trained weight is whole for a moment
        when it gets the hook that takes its gradient (``create_reduce_and_remove_grad_hooks``)."""
        sink = self.sink
        self.end_load()
        for entry in filter(is_added, self.table.entries):
            self._shard(entry)
        trained = self.table.sharded_elements(self.num_ranks)
        if not self.offloads_weights:
            for entry in self.trained:
                sink.free(_part("shard", entry))
            sink.empty_cache()
            sink.keep(Component.WEIGHTS, trained * self.weight_bytes)
        if not self.offloads_optimizer:
            self._make_master_weights()
        if self.recipe.zero.contiguous_gradients:
            bucket = self.recipe.zero.reduce_bucket_size * self.reduced_bytes
            sink.keep(Component.COMMUNICATION_BUFFERS, bucket)
        if not self.offloads_optimizer:
            sink.keep(Component.GRADIENTS, trained * self.gradient_bytes)
        for entry in self.trained:
            shard = self.shards.shard_bytes(entry.parameter)
            sink.transient(Component.TEMPORARIES, [shard * self.num_ranks, shard if self.offloads_weights else 0])

    def _make_master_weights(self) -> None:
        """Master weights by sub-group: a cast and its clone; the cast goes when the next one is there. There is a
        master copy even where the types are the same: ``_create_fp32_partitions`` compares ``tensor.device ==
        self.device``, a ``torch.device`` with the string ``cuda:0``, which are never equal. Then once the gradient of a
        sub-group (``initialize_optimizer_states``)."""
        sink, width = self.sink, self.master_bytes
        groups = self.sub_groups
        for number, numel in enumerate(groups):
            if width != self.weight_bytes:
                sink.allocate(("cast", number), Component.TEMPORARIES, numel * width)
                sink.free(("cast", number - 1))
            sink.keep(Component.OPTIMIZER_STATES, numel * width)
            self._keep_momentum(number)
        sink.free(("cast", len(groups) - 1))
        sink.transient(Component.TEMPORARIES, [max(groups) * width])

    def _keep_momentum(self, number: int) -> None:
        """Make the momentum of an optimizer that has states of a sub-group before its first step."""

    def _modules_of_checkpoint(self) -> dict[str, list[NamedParameter]]:
        """The own weights of each module by its name, in order, without adapters."""
        modules: dict[str, list[NamedParameter]] = {}
        for entry in self.table.entries:
            if not is_added(entry):
                modules.setdefault(entry.name.rpartition(".")[0], []).append(entry)
        return modules

    def _shard_module(self, entries: Sequence[NamedParameter]) -> None:
        """Each weight is made in the type of the run, or made in float32 and cast (``wrapped_fn`` in DeepSpeed's
        ``partition_parameters.py``); all of a module's are whole before they are sharded."""
        for entry in entries:
            if self.makes_wide:
                self.sink.allocate("wide", Component.TEMPORARIES, entry.parameter.numel * DType.FLOAT32.num_bytes)
            self.sink.allocate(weight(entry), Component.WEIGHTS, entry.parameter.num_bytes)
            self.sink.free("wide")
        for entry in entries:
            self._shard(entry)

    def _shard(self, entry: NamedParameter) -> None:
        """A whole weight gives way to its shard, and with ``hpz`` to the second one before (``_partition``)."""
        if self.shards.has_secondary:
            self.sink.allocate(_part("copy", entry), Component.WEIGHTS, self.shards.secondary_bytes(entry.parameter))
        if not self.offloads_weights:
            self.sink.allocate(_part("shard", entry), Component.WEIGHTS, self.shards.shard_bytes(entry.parameter))
        self.sink.free(weight(entry))

    # -- a step --------------------------------------------------------------------------------------------------

    def use_first(self) -> None:
        """Weights up to the persistence threshold are whole from their first use on, but for the optimizer's step."""
        for entry in self._small:
            self.sink.allocate(_part("whole", entry), Component.WEIGHTS, entry.parameter.num_bytes, Stream.GATHER)

    def release_small(self) -> None:
        for entry in self._small:
            self.sink.free(_part("whole", entry))

    @cached_property
    def _small(self) -> list[NamedParameter]:
        if not self.shards.has_whole:
            return []
        return [entry for entry in self.table.entries if self.shards.is_persistent(entry.parameter)]

    def begin_step(self, trace: Trace) -> None:
        """An earlier micro batch, or an evaluation before, has brought the secondary partitions back of all weights
        that it has released: small ones stay whole until the optimizer's step."""
        self._uses = used_weights(trace)
        if secondary_among(self.recipe) == 1:
            self._bring_back(lambda entry: not self.shards.is_persistent(entry.parameter) and self._is_used(entry))

    def restore_secondary(self) -> None:
        """What no module has gathered since has none yet (``_partition_param_sec`` in ``partition_parameters.py``): of
        a vision-language model on samples without images that is all of its vision encoder but small weights."""
        self._bring_back(lambda entry: self.shards.is_persistent(entry.parameter) or self._is_used(entry))

    def _is_used(self, entry: NamedParameter) -> bool:
        return self._uses is None or (id(entry.parameter), entry.layer) in self._uses

    def _bring_back(self, comes: Callable[[NamedParameter], bool]) -> None:
        lacking, self._without_secondary = self._without_secondary, []
        for entry in lacking:
            if comes(entry):
                num_bytes = self.shards.secondary_bytes(entry.parameter)
                self.sink.allocate(_part("copy", entry), Component.WEIGHTS, num_bytes)
            else:
                self._without_secondary.append(entry)
        self.lacks_secondary = False

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        self._accumulates, self._is_last = accumulates, is_last

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """Earlier gradients are in the shards."""

    def hold_gradient(self, ordinal: int) -> None:
        """What waits is reduced already where this gradient will not find room."""
        if overfills(self._num_waiting, self.table.numels[ordinal], self.recipe.zero.reduce_bucket_size):
            self._reduce_waiting()

    def take_gradient(self, ordinal: int) -> None:
        """Into the bucket, where there is room; a larger one waits beside it
        (``reduce_independent_p_g_buckets_and_remove_grads``)."""
        zero, numel = self.recipe.zero, self.table.numels[ordinal]
        self.hold_gradient(ordinal)
        if zero.contiguous_gradients and self._num_waiting + numel <= zero.reduce_bucket_size:
            self.sink.free(ordinal)
            self._num_in_bucket += numel
        self._waiting.append(ordinal)
        self._num_waiting += numel

    def end_backward(self) -> None:
        """The last bucket is reduced, full or not."""
        self._reduce_waiting()

    def _reduce_waiting(self) -> None:
        """Reduce what waits into the shards: scattered from an interleaved copy (``reduce_scatter_coalesced``) unless
        it is one gradient that is cut evenly, or whole and then copied. What is not in the bucket is cast before, where
        its type is another."""
        sink, numels = self.sink, self.table.numels
        if not self._waiting:
            return
        if self.reduced_bytes != self.weight_bytes:
            cast = (self._num_waiting - self._num_in_bucket) * self.reduced_bytes
            sink.allocate("cast", Component.COMMUNICATION_BUFFERS, cast, Stream.REDUCTION)
        if self._reduces_whole(self._num_waiting):
            is_copied = self.num_ranks > 1  # by a product with 1.0 (``__avg_scatter_contiguous_grads``)
        else:
            is_copied = len(self._waiting) > 1 or numels[self._waiting[0]] % self.num_ranks > 0
        if is_copied:
            copied = self._num_waiting * self.reduced_bytes
            sink.allocate("copy", Component.COMMUNICATION_BUFFERS, copied, Stream.REDUCTION)
        if self.reduced_bytes != self.gradient_bytes:
            parts = sum([-(-numels[ordinal] // self.num_ranks) for ordinal in self._waiting])
            own = self._num_waiting if self._reduces_whole(self._num_waiting) else parts
            sink.allocate("own", Component.COMMUNICATION_BUFFERS, own * self.gradient_bytes, Stream.REDUCTION)
            sink.free("copy")
            sink.free("cast")
        if self.offloads_optimizer:
            self._offload_shards([-(-numels[ordinal] // self.num_ranks) for ordinal in self._waiting])
        sink.free("copy")
        sink.free("cast")
        sink.free("own")
        for ordinal in self._waiting:
            sink.free(ordinal)
        self._waiting.clear()
        self._num_waiting = self._num_in_bucket = 0

    def _offload_shards(self, numels: Sequence[int]) -> None:
        """The shard of each gradient comes back to the GPU, in the last micro batch for its norm, and is cast for the
        host. From the second on it is there for those before to be added, and has its name until the next one is made
        (``partition_grads``, ``_offload_grad_partition_at_boundary``). What goes to a drive goes with all others."""
        sink, temporaries = self.sink, Component.TEMPORARIES
        to_drive = self.recipe.offload_optimizer is Offload.NVME
        for place, numel in enumerate(numels):
            shard = numel * self.gradient_bytes
            sink.allocate(("gradient shard", place), Component.COMMUNICATION_BUFFERS, shard, Stream.REDUCTION)
            sink.free(("gradient shard", place - 1))
            if self._is_last:
                sink.transient(temporaries, [min(numel, NORM_ELEMENTS) * NORM_BYTES], Stream.REDUCTION)
                cast = numel * self.master_bytes if self.master_bytes != self.gradient_bytes else 0
                sink.allocate(("cast shard", place), temporaries, cast, Stream.REDUCTION)
                if not to_drive:
                    sink.free(("cast shard", place))
            if not self._accumulates:
                sink.free(("gradient shard", place))
        for place in range(len(numels)):
            sink.free(("gradient shard", place))
            sink.free(("cast shard", place))

    def step(self, *, is_first: bool) -> None:
        """Norms, then sub-group by sub-group: flattened gradients, their cast to the master type, the update. In fp16
        all gradients are looked at for infinities before. Meanwhile small weights are not whole either,
        so that every weight has its secondary partition (``_partition_all_parameters``, and ``_post_step`` gathers)."""
        self.release_small()
        self.restore_secondary()
        self.has_stepped = True
        if not self.offloads_optimizer:
            self._check_overflow()
            self._make_updates()
            for numel in self.table.numels:
                self.sink.transient(Component.TEMPORARIES, [-(-numel // self.num_ranks) * NORM_BYTES])
            for number, numel in enumerate(self.sub_groups):
                self._step_sub_group(number, numel, is_first=is_first)
        self._gather_small_together()
        self.lacks_secondary = self.shards.has_secondary
        self._without_secondary = [*self.trained] if self.lacks_secondary else []
        for entry in self._without_secondary:  # ``invalidate_secondary_tensor``
            self.sink.free(_part("copy", entry))

    def _gather_small_together(self) -> None:
        """At the end of a step: where the host has their shards, all of these are there until the last weight is whole
        (``_allgather_params_coalesced`` of ``Init`` in ``zero/partition_parameters.py``)."""
        for entry in self._small if self.shards.arrives else ():
            self.sink.allocate(_part("arriving", entry), Component.WEIGHTS, self.shards.shard_bytes(entry.parameter))
        self.use_first()
        for entry in self._small:
            self.sink.free(_part("arriving", entry))

    def _check_overflow(self) -> None:
        own = self.table.sharded_elements(self.num_ranks)
        if num_bytes := own * overflow_check_bytes(self.recipe):
            absolute = own * self.gradient_bytes
            self.sink.transient(Component.TEMPORARIES, [absolute, num_bytes - absolute], Stream.REDUCTION)
            self.sink.transient(Component.TEMPORARIES, [own], Stream.REDUCTION)  # ``isnan``

    def _make_updates(self) -> None:
        """All gradients are in the shards: an optimizer may work on whole ones."""

    def _step_sub_group(self, number: int, numel: int, *, is_first: bool) -> None:
        self._flatten_gradients(numel, self.gradient_bytes, is_one=self.sub_group_lengths[number] == 1)
        if self._has_states(number):
            self._update_flat(numel, is_first=is_first)
        self._free_flat()

    def _has_states(self, number: int) -> bool:
        """Whether the optimizer's step has states of the sub-group."""
        del number
        return True

    # -- weights that come and go --------------------------------------------------------------------------------


def _part(kind: str, entry: NamedParameter) -> tuple[str, str]:
    """What a sink knows the shard, the second shard or the whole of a small weight by."""
    return kind, entry.name


def inside_out(names: Iterable[str]) -> list[str]:
    """Modules in the order in which they have been made (``_post_init_method`` of ``zero.Init``): one with modules
    inside of it when all these are, which come behind it in ``names``.

    >>> inside_out(["a", "a.b", "a.b.c", "a.d", "ab"])
    ['a.b.c', 'a.b', 'a.d', 'a', 'ab']
    """
    made, around = list[str](), list[str]()
    for name in names:
        while around and not name.startswith(f"{around[-1]}." if around[-1] else ""):
            made.append(around.pop())
        around.append(name)
    return made + around[::-1]
