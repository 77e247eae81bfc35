"""What FSDP1 and FSDP2 share: units that are gathered and reduced one by one, on streams of their own."""

from collections.abc import Hashable, Iterable
from functools import cached_property

from vlmplan.architecture.model import NamedParameter
from vlmplan.architecture.trace import Run
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components, higher
from vlmplan.engines.engine import Engine, weight
from vlmplan.engines.events import NULL_SINK, Component, Sink
from vlmplan.engines.layer_groups import BackwardOrder, layer_groups
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import state_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe


class LayerShards(Engine):
    """A rank with its shards. Where the host has them (``CPUOffload``, ``CPUOffloadPolicy``), gradients and states
    too. ``num_ranks`` and ``rank`` are those among which one copy of the model is cut."""

    follows_layers = True
    saves_whole = True
    """A checkpoint reads shards, and the next backward reshards."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        num_copies, num_ranks = num_ranks, recipe.sharing_ranks(num_ranks)
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank % num_ranks, sink=sink)
        self._num_copies = num_copies // num_ranks
        self.has_copies = self._num_copies > 1
        """Whether ranks share several copies of the model, over which gradients are summed."""
        self.groups = layer_groups(table, recipe, num_ranks)
        self._order = BackwardOrder((), frozenset(), frozenset(), frozenset())
        self._reduces = True
        self._whole: set[int] = set()
        self._arrived: dict[int, list[int]] = {}
        """Of each group the gradients of this micro batch that wait for the others."""
        self._has_shards: set[Hashable] = set()
        """What has gradients in shards."""

    @staticmethod
    def overlapped_micro_batches(recipe: Recipe) -> int:
        """The next layer's weights come, and gradients go, while a layer computes."""
        return recipe.grad_accum

    @property
    def has_streams(self) -> bool:
        return True

    @property
    def reduces_last_alone(self) -> bool:
        return not self.recipe.sync_each_batch

    @property
    def _group_size(self) -> int | None:
        """Ranks that gather from each other; None: all."""
        return self.num_ranks if self.has_copies else None

    def _sums(self, phase: StepPhase, count: int, num_bytes: int) -> Collectives:
        """All-reduces of this rank's gradients over the copies of the model."""
        kind, apart = CollectiveKind.ALL_REDUCE, self.num_ranks
        return Collectives(kind, phase, count, num_bytes, self._num_copies, ranks_apart=apart)

    def _load_whole(self, weights: Iterable[NamedParameter]) -> None:
        for entry in weights:
            self.sink.allocate(weight(entry), Component.WEIGHTS, self.loaded_bytes(entry))

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        self._reduces = self.recipe.sync_each_batch or is_last
        self._arrived.clear()

    def take_gradient(self, ordinal: int) -> None:
        """The gradient stays whole until its group is through."""
        self._arrived.setdefault(self.groups.number_of_ordinal[ordinal], []).append(ordinal)

    def _begun(self, run: Run, *, is_backward: bool) -> int | None:
        """The group whose forward or backward begins with a section."""
        return self.groups.ended_by(run) if is_backward else self.groups.begun_by(run)

    def _ended(self, run: Run, *, is_backward: bool) -> int | None:
        """The group whose forward or backward ends with a section."""
        return self.groups.begun_by(run) if is_backward else self.groups.ended_by(run)

    def _model_states(
        self, *, resting: int, building: int, shapes: Iterable[tuple[int, ...]], used: Components
    ) -> ModelStates:
        """``resting`` bytes of weights, at most ``building`` while the engine is built; the optimizer's states of this
        rank's ``shapes``, beside which a step has ``used``."""
        start, init_peak = Components(weights=resting), Components(weights=building)
        if self.offloads_weights:
            return ModelStates(at_start=start, resident=start, init_peak=init_peak, step_peak=start)
        states = state_bytes(self.recipe, [*shapes], self.recipe.held_dtype)
        resident = start + Components(optimizer_states=states)
        return ModelStates(
            at_start=start, resident=resident, init_peak=higher(start, init_peak), step_peak=resident + used
        )

    @cached_property
    def unsharded_packed_bytes(self) -> int:
        """Of 4-bit weights what no group has: their scales, or all of them."""
        found = 0
        for one, count in self.table.kinds:
            if one.stored_bytes is not None:
                found += count * (one.num_bytes - (0 if self.recipe.leaves_out_packed else -(-one.numel // 2)))
        return found
