"""ZeRO stage 3 with DeepSpeed's Muon (``stage3.py``): shards of matrices come together, and their updates go apart.

Muon's parameters have sub-groups of their own, before AdamW's. In the optimizer's step, chunk by chunk of them and no
more elements than the reduce bucket has, gradients and momentum are gathered, each rank orthogonalises one matrix of N,
and all ranks send one another what they have made (``_apply_muon_to_accumulated_grads``, ``_muon_update_sub_group``).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from math import prod

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components, higher
from vlmplan.engines.engine import rank_by_states
from vlmplan.engines.events import NULL_SINK, Component, HighWater, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.muon_groups import OptimizerGroup, muon_groups
from vlmplan.engines.newton_schulz import COMPUTE, muon_update, peak_bytes
from vlmplan.engines.optimizer_states import NORM_BYTES, overflow_check_bytes, state_bytes, update_bytes
from vlmplan.engines.parameters import ParameterTable, sub_group_elements, sub_group_lengths
from vlmplan.engines.zero3 import Zero3
from vlmplan.recipe import Recipe

CACHED_BYTES = 256 * 2**20
"""Of buffers that are sent, kept from one gather for the next (``_muon_allgather_max_cached_bytes``)."""
KINDS = ("gradients", "momentum")
BUFFERS, TEMPORARIES = Component.COMMUNICATION_BUFFERS, Component.TEMPORARIES


class MuonZero3(Zero3):
    """Stage 3."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.groups = muon_groups(table, is_sorted=recipe.trains_adapters)
        self._cache: OrderedDict[int, int] = OrderedDict()
        """Bytes of what was sent by elements of a rank's part, the oldest first."""
        self._number = 0

    @classmethod
    def rank_of_highest_step(cls, table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
        """Ranks orthogonalise other matrices, at most one of a round each."""
        return rank_by_states(cls, table, recipe, num_ranks)

    @cached_property
    def sub_groups(self) -> Sequence[int]:
        limit = self.recipe.zero.sub_group_size
        return [n for group in self.groups for n in sub_group_elements(group.numels, self.num_ranks, limit)]

    @cached_property
    def sub_group_lengths(self) -> Sequence[int]:
        limit = self.recipe.zero.sub_group_size
        return [n for group in self.groups for n in sub_group_lengths(group.numels, self.num_ranks, limit)]

    @cached_property
    def _uses_muon(self) -> Sequence[bool]:
        """Whether Muon updates it, of each sub-group."""
        limit = self.recipe.zero.sub_group_size
        return [
            group.uses_muon for group in self.groups for _ in sub_group_elements(group.numels, self.num_ranks, limit)
        ]

    def _chunks(self) -> Iterator[Sequence[tuple[int, ...]]]:
        """Shapes of the matrices that are whole together: those of a sub-group until the next would make them more
        than the reduce bucket has."""
        for group in self.groups:
            if group.uses_muon:
                for shapes in self._shapes_of_sub_groups(group):
                    yield from self._cut(shapes)

    def _shapes_of_sub_groups(self, group: OptimizerGroup) -> Iterator[Sequence[tuple[int, ...]]]:
        start = 0
        for length in sub_group_lengths(group.numels, self.num_ranks, self.recipe.zero.sub_group_size):
            yield group.shapes[start : start + length]
            start += length

    def _cut(self, shapes: Sequence[tuple[int, ...]]) -> Iterator[Sequence[tuple[int, ...]]]:
        chunk: list[tuple[int, ...]] = []
        running = 0
        for shape in shapes:
            if chunk and running + prod(shape) > self.recipe.zero.reduce_bucket_size:
                yield chunk
                chunk, running = [], 0
            chunk.append(shape)
            running += prod(shape)
        yield chunk

    @cached_property
    def orthogonalised(self) -> Sequence[tuple[int, ...]]:
        """Every N-th of a chunk."""
        return [shape for shapes in self._chunks() for shape in shapes[self.rank :: self.num_ranks]]

    # -- the walk ------------------------------------------------------------------------------------------------

    def _keep_momentum(self, number: int) -> None:
        """The sub-group's momentum, in the type in which gradients are sent (``_create_momentum_buffer``)."""
        if self._uses_muon[number]:
            self.sink.keep(Component.OPTIMIZER_STATES, self.sub_groups[number] * self.gradient_bytes)

    def _make_updates(self) -> None:
        """The gradients of a chunk are there until the next chunk is done: the loop that puts them into the shards
        still names one (``update``), and all are one tensor."""
        gradients: int | None = None
        for shapes in self._chunks():
            new = self._gather(shapes)
            self._update_chunk(shapes)
            self.sink.free(("gathered", gradients))
            gradients = new
        self.sink.free(("gathered", gradients))

    def _gather(self, shapes: Sequence[tuple[int, ...]]) -> int | None:
        """All ranks' parts side by side, then each matrix in one piece, which stays under the number returned
        (``_partitioned_buffers_all_gather``). A single rank has its own already."""
        if self.num_ranks == 1:
            return None
        local = sum([self._shard_numel(shape) for shape in shapes])
        width, sink = self.gradient_bytes, self.sink
        num_bytes = (self.num_ranks + 1) * local * width
        is_cached = num_bytes <= CACHED_BYTES
        if local in self._cache:
            self._cache.move_to_end(local)
        else:
            sink.allocate(("sent", local), BUFFERS, self.num_ranks * local * width)
            sink.allocate(("own", local), BUFFERS, local * width)
            while is_cached and self._cache and sum(self._cache.values()) + num_bytes > CACHED_BYTES:
                self._forget(self._cache.popitem(last=False)[0])
            if is_cached:
                self._cache[local] = num_bytes
        self._number += 1
        sink.allocate(("gathered", self._number), BUFFERS, self.num_ranks * local * width)
        if not is_cached:
            self._forget(local)
        return self._number

    def _forget(self, local: int) -> None:
        self.sink.free(("sent", local))
        self.sink.free(("own", local))

    def _shard_numel(self, shape: tuple[int, ...]) -> int:
        return -(-prod(shape) // self.num_ranks)

    def _update_chunk(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Momentum is gathered from copies; then one matrix after another of those that are this rank's turn."""
        sink, width = self.sink, self.gradient_bytes
        for number, shape in enumerate(shapes):
            sink.allocate(("own momentum", number), TEMPORARIES, self._shard_numel(shape) * width)
        momentum = self._gather(shapes)
        self._update_rounds(shapes)
        if self.num_ranks > 1:
            sink.free(("gathered", momentum))
        for number in range(len(shapes)):
            sink.free(("own momentum", number))

    def _update_rounds(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Update a chunk of matrices in rounds, of which nothing stays."""
        held = _Held(self.sink)
        for start in range(0, len(shapes), self.num_ranks):
            self._update_round(shapes[start : start + self.num_ranks], held)
        held.free_all()

    def _update_round(self, shapes: Sequence[tuple[int, ...]], held: "_Held") -> None:
        """A matrix for each rank, of which this one has the ``rank``-th. Where they differ, or are fewer than ranks,
        they travel in buffers as large as the largest; ``dist.all_gather`` of a list has a flat buffer of all besides
        (``allgather`` in torch's ``ProcessGroupNCCL.cpp``)."""
        width, num_ranks = self.gradient_bytes, self.num_ranks
        if self.rank < len(shapes):
            self._update_matrix(shapes[self.rank], held)
        largest = max(map(prod, shapes)) * width
        is_uneven = len(shapes) < num_ranks or len(set(shapes)) > 1
        if is_uneven:
            for name in KINDS:
                held.set(("local", name), largest)
            for name in KINDS:
                held.set(("coming last", name), largest)
                held.set(("out", name), *[largest] * (num_ranks - 1))
        for name in KINDS:
            held.set(("sent", name), largest * num_ranks)
        for name in KINDS if is_uneven else ():
            held.move(("coming last", name), ("last", name))  # which the loop over them still names

    def _update_matrix(self, shape: tuple[int, ...], held: "_Held") -> None:
        events = muon_update(shape, self.recipe.precision.dtype, COMPUTE)
        for name, num_bytes in events[:-2]:
            self.sink.allocate(name, TEMPORARIES, num_bytes) if num_bytes else self.sink.free(name)
        held.set("update", events[-2].num_bytes)
        self.sink.free(events[-1].name)

    def _has_states(self, number: int) -> bool:
        """Whether the step has states of the sub-group: of Muon's the gradient is the update already."""
        return not self._uses_muon[number]

    # -- in closed form ------------------------------------------------------------------------------------------

    def states(self) -> ModelStates:
        """The model states of stage 3 with gΦ/N of momentum for Muon's part in place of AdamW's sΦ/N, and what is sent
        kept. While the updates are made there are the chunk's gradients and momentum whole, and what ranks send one
        another."""
        plain = super().states()
        recipe, g = self.recipe, self.gradient_bytes
        of_muon, of_adamw = (
            [numel for numel, uses in zip(self.sub_groups, self._uses_muon, strict=True) if uses is uses_muon]
            for uses_muon in (True, False)
        )
        made, kept = self._update_peaks
        start = plain.at_start + Components(optimizer_states=sum(of_muon) * g)
        adamw = state_bytes(recipe, [(numel,) for numel in of_adamw], recipe.master_dtype)
        used = start + Components(optimizer_states=adamw, communication_buffers=kept)
        resident = used + Components(weights=self.shards.weight_totals[1])
        flat = [one for one in self.flat_gradients() if one[0] in of_adamw]
        updates = [num_bytes + update_bytes(recipe, [(n,)], recipe.master_dtype) for n, num_bytes in flat]
        norm = -(-self.table.largest_trained // self.num_ranks) * NORM_BYTES
        check = sum(self.sub_groups) * overflow_check_bytes(recipe)
        stepping = used + Components(temporaries=max(self.flattening_bytes, *updates, norm, check))
        making = start + Components(optimizer_states=adamw, communication_buffers=made)
        init = higher(plain.init_peak + Components(optimizer_states=sum(of_muon) * g), self._first_gradients(start))
        return ModelStates(
            at_start=start,
            resident=resident,
            init_peak=init,
            step_peak=higher(resident, higher(stepping, making)),
            secondary=plain.secondary,
        )

    def _first_gradients(self, start: Components) -> Components:
        """Model states with the gradient of the largest sub-group, once the master weights and momentum are there:
        before the bucket and the shards of gradients."""
        made = Components(weights=start.weights, optimizer_states=start.optimizer_states)
        return made + Components(temporaries=max(self.sub_groups) * self.master_bytes)

    @property
    def _update_peaks(self) -> tuple[int, int]:
        """(at most, after it) bytes of the updates of a step but the first, besides what is there all the time: found
        once for all recipes whose sub-groups, chunks and types are the same."""
        recipe = self.recipe
        sizes = recipe.zero.sub_group_size, recipe.zero.reduce_bucket_size
        types = recipe.precision, self.gradient_bytes
        key = (MuonZero3, self.num_ranks, self.rank, *sizes, *types, recipe.trains_adapters)
        if key not in self.table.memo:
            self.table.memo[key] = self._new_update_peaks()
        most, kept = self.table.memo[key]
        return most, kept

    def _new_update_peaks(self) -> tuple[int, int]:
        water = HighWater()
        engine = _HighestUpdates(self.table, self.recipe, num_ranks=self.num_ranks, rank=self.rank, sink=water)
        engine._make_updates()
        kept = water.live
        water.most = kept
        engine._make_updates()
        return water.most, kept

    def collectives(self, trace: Trace) -> Iterable[Collectives]:
        """The collectives of stage 3, with gradients and momentum of every chunk, and what is made of them, to all
        ranks."""
        found = list(super().collectives(trace))
        if self.num_ranks == 1:
            return found
        chunks = list(self._chunks())
        gathered = sum([self._shard_numel(shape) for shapes in chunks for shape in shapes]) * self.num_ranks
        rounds = [shapes[at : at + self.num_ranks] for shapes in chunks for at in range(0, len(shapes), self.num_ranks)]
        made = sum([max(map(prod, shapes)) for shapes in rounds]) * self.num_ranks
        kinds = {
            CollectiveKind.ALL_GATHER: (len(chunks), gathered),
            CollectiveKind.ALL_GATHER_OF_LIST: (len(rounds), made),
        }
        for kind, (count, elements) in kinds.items():  # of gradients and of momentum
            found.append(Collectives(kind, StepPhase.STEP, 2 * count, 2 * elements * self.gradient_bytes))
        return found


class _HighestUpdates(MuonZero3):
    """The engine where its peak alone is asked for: what comes and goes together is one moment, found once for all
    chunks of equal matrices."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._most_of_rounds: dict[tuple[tuple[int, ...], ...], int] = {}

    def _update_rounds(self, shapes: Sequence[tuple[int, ...]]) -> None:
        key = tuple(shapes)
        if key not in self._most_of_rounds:
            self._most_of_rounds[key] = self._most_during(shapes)
        self.sink.transient(TEMPORARIES, [self._most_of_rounds[key]])

    def _most_during(self, shapes: Sequence[tuple[int, ...]]) -> int:
        water = HighWater()
        sink, self.sink = self.sink, water
        super()._update_rounds(shapes)
        self.sink = sink
        return water.most

    def _update_matrix(self, shape: tuple[int, ...], held: "_Held") -> None:
        """The update before it, which is held until then, is there meanwhile."""
        dtype = self.recipe.precision.dtype
        self.sink.transient(TEMPORARIES, [peak_bytes(shape, dtype, COMPUTE)])
        held.set("update", muon_update(shape, dtype, COMPUTE)[-2].num_bytes)


class _Held:
    """Tensors by the names of Python: one that is given again lets its old tensors go, after the new ones are there."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._count = sink, 0
        self._owners: dict[Hashable, list[int]] = {}

    def set(self, name: Hashable, *sizes: int) -> None:
        owners: list[int] = []
        for num_bytes in sizes:
            self._count += 1
            self._sink.allocate(("held", self._count), BUFFERS, num_bytes)
            owners.append(self._count)
        self._free(name)
        self._owners[name] = owners

    def move(self, name: Hashable, new_name: Hashable) -> None:
        self._free(new_name)
        self._owners[new_name] = self._owners.pop(name)

    def _free(self, name: Hashable) -> None:
        for owner in self._owners.pop(name, ()):
            self._sink.free(("held", owner))

    def free_all(self) -> None:
        for name in list(self._owners):
            self._free(name)
