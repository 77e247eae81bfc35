"""What every engine has: one rank's walk from load to save, model states in closed form, bounds and collectives.

    load → build → { forward → backward → step } → save

An ``Engine`` is one rank under one recipe. The methods of the walk tell a ``Sink`` what is allocated and freed; whoever
replays a micro batch calls them in the order in which training does. ``states`` gives the same bytes in closed form for
searching; tests hold it to the walk.

Symbols in the engines' docstrings: p bytes of a trained weight and of its gradient, m bytes of a master weight, Φ
trained elements, Ψ all, N data-parallel ranks, s bytes of optimizer states. ``deepspeed`` is 0.19.8.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.trace import GradientPart, Run, Trace
from vlmplan.engines.autocast import cached_casts
from vlmplan.engines.collectives import Collectives
from vlmplan.engines.coordinator.module_order import LATER, Begun
from vlmplan.engines.events import NULL_SINK, Component, Marked, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import state_sizes, update_sizes
from vlmplan.engines.packed_loading import (
    MAGNITUDE,
    MEASURING_BOUND_BYTES,
    base_layer_name,
    halves_bytes,
    measuring_sizes,
    scale_sizes,
    wide_scale_bytes,
)
from vlmplan.engines.parameters import ParameterTable, arriving_bytes
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.units import DType

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
    from vlmplan.engines.coordinator.replay import GatherReplay


class OwnBytes(NamedTuple):
    """What one rank has and others may not, between two marks: when it begins, and at most."""

    at_start: int
    most: int


class Engine:
    """One rank of ``num_ranks``. The gradient of a trained parameter is owned by its ordinal in ``table``."""

    follows_layers = False
    """Whether it is told when sections of a micro batch begin and end, by ``enter`` and ``leave``."""
    runs_second_model = False
    """Whether forwards alone that follow are a second model's."""
    saves_whole = False
    """Whether weights that an evaluation leaves whole stay so through a checkpoint."""
    room_bytes: int | None = None
    """What tensors may take on the GPU, where that decides how the engine is built; None: there is enough."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        self.table, self.recipe, self.num_ranks, self.rank, self.sink = table, recipe, num_ranks, rank, sink
        self.weight_bytes, self.master_bytes = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
        self.offloads_optimizer = recipe.offload_optimizer is not Offload.NONE
        self.offloads_weights = recipe.offload_params is not Offload.NONE
        self.shares_samples = recipe.sequence_parallel > 1
        self._is_loaded = False

    @staticmethod
    def overlapped_micro_batches(recipe: Recipe) -> int:
        """Micro batches of a step behind whose computation collectives hide; 0: the GPU waits for every one."""
        del recipe
        return 0

    @property
    def reduces_last_alone(self) -> bool:
        """Whether gradients stay whole in all micro batches of a step but the last: the one before may take more."""
        return False

    @classmethod
    def rank_of_highest_step(cls, table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
        """The rank whose optimizer step takes most, where they differ; of equals the first. In closed form: that of a
        timeline may be another."""
        del table, recipe, num_ranks
        return 0

    @property
    def has_streams(self) -> bool:
        """Whether reductions and gathers run on streams of their own."""
        return False

    @property
    def flattened_on_host_bytes(self) -> int:
        """Host memory in which a rank flattens weights while the engine is built."""
        return 0

    @cached_property
    def orthogonalised(self) -> Sequence[tuple[int, ...]]:
        """Shapes of the matrices that this rank makes orthogonal in a step: Muon's."""
        return ()

    @cached_property
    def trained(self) -> list[NamedParameter]:
        return [entry for entry in self.table.entries if entry.parameter.requires_grad]

    # -- the walk ------------------------------------------------------------------------------------------------

    def load(self, *, is_on_cpu: bool) -> None:
        """The checkpoint is read. Weights that are not packed come to host memory, from where ``build`` moves them;
        ``is_on_cpu``: the device is the host itself."""
        if is_on_cpu and self.recipe.casts_loaded:
            self._load_to_be_cast()
        elif is_on_cpu or self.recipe.method.packs_weights:
            self._load_weights()

    def end_load(self) -> None:
        """What only reference cycles hold after loading goes, before ``build``."""

    def build(self) -> None:
        """The engine is made: weights come to the device where they have not yet, then what it keeps beside them."""
        self.place()

    def place(self) -> None:
        """Weights come to the device, where they have not yet: a model may run before its engine is made."""
        if not self._is_loaded:
            self._load_weights()

    def use_first(self) -> None:
        """Do what the engine does before the first step of all."""

    def release_small(self) -> None:
        """Weights up to the persistence threshold come and go as all others do until the step."""

    lacks_secondary = False
    """Whether trained weights have no secondary partition (hpZ) until they are released again."""

    def begin_step(self, trace: Trace) -> None:
        """Do what the engine does before the first micro batch of every step, all of which are like ``trace``."""

    def restore_secondary(self) -> None:
        """A forward behind a step has brought secondary partitions back: the engine has them from now on."""

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """What earlier micro batches of a step leave to the last, where these weights get gradients: a walk may begin
        with that."""
        for ordinal in ordinals:
            self.sink.allocate(ordinal, Component.GRADIENTS, self.table.gradient_sizes[ordinal])

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        """``accumulates``: not the first of its step. ``is_last``: a step follows."""

    def begin_forward(self, trace: Trace) -> None:
        """The forward of a micro batch or of an evaluation like ``trace`` is about to begin."""

    def enter(self, run: Run, *, is_backward: bool) -> None:
        """A section is about to run."""

    def begin_last_adapter(self, run: Run) -> None:
        """Of a section's adapters the last factor is about to run forward, where the trace has noted that."""

    def leave(self, run: Run, *, is_backward: bool) -> None:
        """A section has run."""

    def end_forward(self) -> None:
        """The loss is there."""

    def end_evaluation(self) -> None:
        """What forwards without a backward have left whole goes: training goes on."""

    def begin_backward(self) -> None:
        """Autograd is about to begin."""

    def expect_gradient(self) -> None:
        """A gradient is about to reach the engine; autograd's tensor is still there."""

    def take_part(self, ordinal: int, part: GradientPart) -> None:
        """A gradient, or a part of it, is in place, added to an earlier one if there was one."""
        if part.is_last:
            self.take_gradient(ordinal)
        else:
            self.hold_gradient(ordinal)

    def hold_gradient(self, ordinal: int) -> None:
        """Leave a gradient of which more parts come where it is, as DeepSpeed's hooks do (``ds_grad_is_ready``)."""

    def take_gradient(self, ordinal: int) -> None:
        """The gradient is in place, added to an earlier one if there was one. Here it stays until the step."""

    def end_backward(self) -> None:
        """Autograd is done."""

    def reduce_gradients(self) -> None:
        """Reduce gradients after the last micro batch of a step, where the engine reduces none earlier."""

    def step(self, *, is_first: bool) -> None:
        """The optimizer's step; the first one makes its states. Gradients are freed."""
        raise NotImplementedError

    @property
    def gathers_weights(self) -> bool:
        """Whether weights come and go during a micro batch."""
        return False

    def gather_replay(self, trace: Trace) -> "GatherReplay | None":
        """The bytes of weights that come and go during a micro batch, from the third of all on; None where all stay."""

    def gather_replay_at_first(self, trace: Trace, number: int = 0) -> "GatherReplay | None":
        """``gather_replay`` of the first step's micro batch of this number, where more may come then than later."""

    def replay_beside_idle(self, trace: Trace) -> "GatherReplay | None":
        """The same where the first step alone has secondary partitions (hpZ) of trained weights that nothing uses."""

    def gather_replay_behind(self, trace: Trace, evaluated: Sequence[Trace]) -> "GatherReplay | None":
        """``gather_replay`` of a micro batch that follows forwards like those of ``evaluated`` without a backward."""

    def gathered_weights(self, trace: Trace, sink: Sink, begun: Begun = LATER) -> "GatheredWeights | None":
        """Weights that come and go during a micro batch; None where all stay."""

    def gathers_by(self, begun: Begun) -> Hashable:
        """All that ``gathered_weights`` goes by, but for the trace and the table."""

    # -- in closed form ------------------------------------------------------------------------------------------

    def states(self) -> ModelStates:
        """What the walk holds at the end of each phase but forward and backward, and the peaks of those phases."""
        raise NotImplementedError

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """Bytes that are at least the peaks of (forward, backward) beside ``states().resident``. Here every gradient
        stays."""
        table = self.table
        largest = table.largest_trained * self.weight_bytes
        accumulated = table.trained_bytes if accumulates else 0
        backward = max(profile.kept_peak, profile.dropped_peak + accumulated) + largest
        casts = cached_casts(table, self.recipe, with_vectors=True)
        return profile.forward_peak + accumulated + sum(casts), backward

    def loading_bound(self, states: ModelStates) -> int:
        """Bytes that are at least the peak of ``load``, but for the checkpoint that a CPU rank reads."""
        del states
        if self.recipe.casts_loaded:
            return self.table.num_params * DType.FLOAT32.num_bytes + self.table.largest_bytes
        is_int8 = self.recipe.method is Method.LORA_8BIT
        copies = 2 if is_int8 else 1  # see ``_pack``
        wide = self.table.num_trained * DType.FLOAT32.num_bytes if is_int8 else 0  # see ``arriving_bytes``
        measured = MEASURING_BOUND_BYTES * self.table.largest_numel if self.recipe.use_dora else 0
        return self.table.total_bytes + max(copies * self.table.largest_bytes, measured) + wide

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """The collectives of an optimizer step of ``grad_accum`` micro batches like ``trace``. Plain PyTorch starts
        none; a single rank of DeepSpeed sends gradients to itself."""
        del trace
        return ()

    def own_bytes(self, marks: Iterable[Marked], *, accumulates: bool) -> Iterable[OwnBytes]:
        """What this rank has of its own in a later step, for each of ``marks``, as ``Sink`` has been told them in the
        last backward, up to the updates. ``accumulates``: the step has other micro batches before."""
        del accumulates
        return [OwnBytes(0, 0) for _ in marks]

    def share_begins(self, places: Mapping[int, int]) -> int | None:
        """The first of the ``places`` of gradients at which this rank gets its share, where ranks differ in that and in
        ``own_gradient_bytes`` alone; else None."""
        del places

    @property
    def saving_bytes(self) -> int:
        """What writing a checkpoint takes beside what is there after a step."""
        return 0

    @property
    def own_resident_bytes(self) -> int:
        """What this rank has through all later steps and others may not."""
        return 0

    @property
    def own_gradient_bytes(self) -> int:
        """Bytes of this rank's gradients when the optimizer step begins, where ranks differ in them."""
        return 0

    # -- parts of the walk ---------------------------------------------------------------------------------------

    def _flatten_gradients(self, numel: int, gradient_bytes: int, *, is_one: bool = False) -> None:
        """``numel`` gradients of ``gradient_bytes`` each in one flat tensor, a view where all are of one weight, whose
        cast to the master type takes its place where that is another."""
        self.sink.allocate("flat", Component.TEMPORARIES, 0 if is_one else numel * gradient_bytes)
        if gradient_bytes != self.master_bytes:
            self.sink.allocate("cast", Component.TEMPORARIES, numel * self.master_bytes)
            self.sink.free("flat")

    def _update_flat(self, numel: int, *, is_first: bool) -> None:
        """The optimizer's step on one flat tensor of master weights; the first one makes its states."""
        if is_first:
            self._keep_states([(numel,)], self.recipe.master_dtype)
        self._update([(numel,)], self.recipe.master_dtype)

    def _free_flat(self) -> None:
        self.sink.free("flat")
        self.sink.free("cast")

    def _load_weights(self) -> None:
        """Each weight straight to where it stays. Where some are to be packed, though no layer of the model may be, in
        the order of their names, one by one, adapters after them, and then each that arrived in another type is cast
        (``param.data = param.data.to(dtype)``)."""
        entries = self.table.entries
        loads_by_name = self.recipe.method in (Method.QLORA, Method.LORA_8BIT)
        if loads_by_name:
            entries = [*self.table.loaded_by_name, *self.table.added]
        packed: dict[str, Parameter] = {}
        bases = {entry.name: entry.parameter for entry in entries} if loads_by_name else {}
        cast: list[NamedParameter] = []
        arriving_by_parameter: dict[int, int] = {}  # equal layers share theirs
        for entry in entries:
            arriving = arriving_by_parameter.get(id(entry.parameter))
            if arriving is None:
                is_beside_packed = base_layer_name(entry.name) in packed
                arriving = arriving_bytes(
                    entry.parameter, self.recipe, self.loaded_bytes(entry), is_beside_packed=is_beside_packed
                )
                arriving_by_parameter[id(entry.parameter)] = arriving
            if entry.parameter.stored_bytes is not None:
                self._pack(entry, arriving)
                packed[entry.name] = entry.parameter
            else:
                self._measure(bases.get(base_layer_name(entry.name)) if MAGNITUDE in entry.name else None)
                self.sink.allocate(weight(entry), Component.WEIGHTS, arriving or self.loaded_bytes(entry))
                if arriving:
                    cast.append(entry)
        for entry in sorted(cast, key=self.table.entries.index):
            self.sink.allocate("cast", Component.WEIGHTS, self.loaded_bytes(entry))
            self.sink.free(weight(entry))
            self.sink.rename("cast", weight(entry))
        self._is_loaded = True

    def loaded_bytes(self, entry: NamedParameter) -> int:
        """Bytes of a weight when the model is made and the engine is not."""
        return entry.parameter.num_bytes

    def _load_to_be_cast(self) -> None:
        """All of it in float32, then each weight is cast alone (``_cast_module_mixed_precision`` of DeepSpeed's
        ``engine.py``, ``p.data = p.data.to(param_dtype)``)."""
        for entry in self.table.entries:
            wide = entry.parameter.numel * DType.FLOAT32.num_bytes
            self.sink.allocate(("loaded", entry.name), Component.WEIGHTS, wide)
        for entry in self.table.entries:
            self.sink.allocate(weight(entry), Component.WEIGHTS, entry.parameter.num_bytes)
            self.sink.free(("loaded", entry.name))
        self._is_loaded = True

    def _pack(self, entry: NamedParameter, arriving: int) -> None:
        """A weight of 16 bit, and beside it the packed one with what its elements stand for."""
        parameter = entry.parameter
        self.sink.allocate("arriving", Component.TEMPORARIES, arriving)
        self.sink.allocate("halves", Component.TEMPORARIES, halves_bytes(parameter, self.recipe))
        self.sink.allocate(weight(entry), Component.WEIGHTS, parameter.packed_bytes)
        for owner in ("scales", "centred scales"):
            self.sink.allocate(owner, Component.TEMPORARIES, wide_scale_bytes(parameter, self.recipe))
        for num_bytes in scale_sizes(parameter, self.recipe):
            self.sink.keep(Component.WEIGHTS, num_bytes)
        for owner in ("centred scales", "scales", "halves", "arriving"):
            self.sink.free(owner)

    def _measure(self, base: Parameter | None) -> None:
        """The lengths that DoRA's magnitudes begin with, of a weight that has come to the device before."""
        for sizes in () if base is None else measuring_sizes(base, self.recipe):
            self.sink.transient(Component.TEMPORARIES, sizes)

    def _free_gradients(self) -> None:
        for ordinal in range(len(self.table.numels)):
            self.sink.free(ordinal)

    def _keep_states(self, shapes: Sequence[tuple[int, ...]], dtype: DType) -> None:
        for shape in shapes:
            for num_bytes in state_sizes(self.recipe.optimizer, shape, dtype):
                self.sink.keep(Component.OPTIMIZER_STATES, num_bytes)

    def _update(self, shapes: Sequence[tuple[int, ...]], dtype: DType) -> None:
        for sizes in update_sizes(self.recipe, shapes, dtype):
            self.sink.transient(Component.TEMPORARIES, sizes)


def rank_by_states(kind: type[Engine], table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """The rank under which the optimizer step of an engine takes most in closed form; of equals the first."""
    key = (kind, num_ranks, recipe.engine_key, recipe.optimizer, recipe.fuses_optimizer, recipe.precision)
    if key not in table.memo:
        engines = [kind(table, recipe, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)]
        taken = [engine.states().step_peak.total for engine in engines]
        table.memo[key] = taken.index(max(taken))
    return int(table.memo[key])


def weight(entry: NamedParameter) -> tuple[str, str]:
    """Owner of a whole weight."""
    return "weight", entry.name
