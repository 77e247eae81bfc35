"""ZeRO stage 0: every rank keeps everything; 16-bit weights under ``FP16_UnfusedOptimizer``, or where DeepSpeed makes
AdamW itself under ``FP16_Optimizer``.

Gradients are all-reduced in copied chunks after the last micro batch (``buffered_allreduce_fallback`` in
``engine.py``).
"""

from collections.abc import Sequence

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase, chunk_elements
from vlmplan.engines.components import Components
from vlmplan.engines.engine import Engine, weight
from vlmplan.engines.events import NULL_SINK, Component, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import state_bytes, update_bytes
from vlmplan.engines.parameter_groups import parameter_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.units import DType

CHUNK_ELEMENTS = 500_000_000
"""Elements after which a chunk of gradients is reduced."""
MASTER = DType.FLOAT32


class Zero0(Engine):
    """DeepSpeed without partitions."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._with_gradient: set[int] = set()

    @property
    def has_master(self) -> bool:
        """Whether there are master weights: in float32 there is no second copy."""
        return self.table.trained_dtype is not MASTER

    def build(self) -> None:
        """Master copies, and a step on gradients of zero that makes the optimizer's states
        (``initialize_optimizer_states`` in ``fp16/unfused_optimizer.py``)."""
        super().build()
        if not self.has_master:
            return
        sink, numels = self.sink, self.table.numels
        for numel in numels:
            sink.allocate("clone", Component.TEMPORARIES, numel * self.weight_bytes)
            sink.keep(Component.OPTIMIZER_STATES, numel * MASTER.num_bytes)
            sink.free("clone")
        copies = ((Component.GRADIENTS, self.weight_bytes), (Component.TEMPORARIES, MASTER.num_bytes))
        for component, width in copies:
            for ordinal, numel in enumerate(numels):
                sink.allocate((component, ordinal), component, numel * width)
        self._update_groups(makes_states=True)
        for component, _ in copies:
            for ordinal in range(len(numels)):
                sink.free((component, ordinal))

    def take_gradient(self, ordinal: int) -> None:
        self._with_gradient.add(ordinal)

    def reduce_gradients(self) -> None:
        """A weight that no output depends on gets a gradient of zero here, so that all ranks reduce the same
        (``_get_gradients_for_reduction``)."""
        for ordinal, num_bytes in enumerate(self.table.gradient_sizes):
            if ordinal not in self._with_gradient:
                self.sink.allocate(ordinal, Component.GRADIENTS, num_bytes)
        self._with_gradient.clear()
        for numel in chunk_elements(self.table.numels, CHUNK_ELEMENTS):
            self.sink.transient(Component.COMMUNICATION_BUFFERS, [numel * self.weight_bytes])

    def step(self, *, is_first: bool) -> None:
        """Norms of the weights, one cast to float32 at a time (``get_weight_norm``), then a copy of every gradient in
        the type of the master weights. States are there from ``build`` on but in float32."""
        sink = self.sink
        if not self.has_master:
            self._update_groups(makes_states=is_first)
            self._free_gradients()
            return
        for numel in self.table.numels:
            sink.transient(Component.TEMPORARIES, [numel * MASTER.num_bytes])
        for ordinal, numel in enumerate(self.table.numels):
            sink.allocate(("copy", ordinal), Component.TEMPORARIES, numel * MASTER.num_bytes)
        self._update_groups(makes_states=False)
        for ordinal in range(len(self.table.numels)):
            sink.free(("copy", ordinal))
        self._free_gradients()

    @property
    def _shapes_of_groups(self) -> list[list[tuple[int, ...]]]:
        shapes = self.table.trained_shapes
        return [[shapes[ordinal] for ordinal in group] for group in parameter_groups(self.table, self.recipe)]

    def _update_groups(self, *, makes_states: bool) -> None:
        for shapes in self._shapes_of_groups:
            if makes_states:
                self._keep_states(shapes, MASTER)
            self._update(shapes, MASTER)

    def states(self) -> ModelStates:
        """pΦ weights + 4Φ master + sΦ; the step adds a copy of every gradient in the master type: 2 + 4 + 8 + 2 + 4 =
        20 bytes a weight for bf16 and AdamW, and so does the trial step at init, on gradients of zero."""
        table, recipe, shapes = self.table, self.recipe, self.table.trained_shapes
        master_bytes = table.num_trained * MASTER.num_bytes if self.has_master else 0
        states = state_bytes(recipe, shapes, MASTER)
        resident = Components(weights=table.total_bytes, optimizer_states=master_bytes + states)
        updates = [update_bytes(recipe, group, MASTER) for group in self._shapes_of_groups]
        update, later = max(updates), 0
        making: list[int] = []  # in the step that makes the states, those of later groups are not there yet
        for group, num_bytes in zip(reversed(self._shapes_of_groups), reversed(updates), strict=True):
            making.append(num_bytes - later)
            later += state_bytes(recipe, group, MASTER)
        norm = table.largest_trained * MASTER.num_bytes if self.has_master else 0
        gradients = Components(gradients=table.trained_bytes)
        step = resident + gradients + Components(temporaries=max(norm, master_bytes + update))
        start = resident if self.has_master else Components(weights=table.total_bytes)
        init = resident + gradients + Components(temporaries=master_bytes + max(making)) if self.has_master else start
        return ModelStates(at_start=start, resident=resident, init_peak=init, step_peak=step)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        largest = self.table.largest_trained * self.weight_bytes
        chunk = min(self.table.trained_bytes, CHUNK_ELEMENTS * self.weight_bytes + largest)
        made = max(0, self.table.trained_bytes - profile.gradient_bytes)  # gradients of zero, before the reduction
        forward, backward = super().micro_batch_bound(profile, accumulates=accumulates)
        return forward, backward + made + chunk

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        chunks = len(chunk_elements(self.table.numels, CHUNK_ELEMENTS))
        return (Collectives(CollectiveKind.ALL_REDUCE, StepPhase.BACKWARD, chunks, self.table.trained_bytes),)


class FlatZero0(Zero0):
    """``FP16_Optimizer`` (deepspeed 0.19.8 ``runtime/fp16/fused_optimizer.py``) around DeepSpeed's ``FusedAdam``: of
    each parameter group trained weights and their master copies are one flat buffer, and gradients in the step."""

    @property
    def _sizes_of_groups(self) -> list[int]:
        """How many elements each group has."""
        numels = self.table.numels
        return [sum([numels[ordinal] for ordinal in group]) for group in parameter_groups(self.table, self.recipe)]

    def build(self) -> None:
        """Group by group: clones of the weights, the flat buffer of them in place of the weights, and the master copy
        by way of a clone. Then a step on zeros (``initialize_optimizer_states``)."""
        Engine.build(self)
        sink, trained = self.sink, self.trained
        sizes = self._sizes_of_groups
        for ordinals, numel in zip(parameter_groups(self.table, self.recipe), sizes, strict=True):
            for ordinal in ordinals:
                sink.allocate(("clone", ordinal), Component.TEMPORARIES, self.table.numels[ordinal] * self.weight_bytes)
            if len(ordinals) > 1:
                sink.keep(Component.WEIGHTS, numel * self.weight_bytes)
                for ordinal in ordinals:
                    sink.free(("clone", ordinal))
            for ordinal in ordinals:
                sink.free(weight(trained[ordinal]))
            sink.allocate("clone", Component.TEMPORARIES, numel * self.weight_bytes)
            sink.keep(Component.OPTIMIZER_STATES, numel * MASTER.num_bytes)
            sink.free("clone")
        for number, numel in enumerate(sizes):
            sink.allocate(("zeros", number), Component.TEMPORARIES, numel * MASTER.num_bytes)
        self._update_groups(makes_states=True)
        for number in range(len(sizes)):
            sink.free(("zeros", number))

    def step(self, *, is_first: bool) -> None:
        """Copies of the gradients of a group in the type of the master weights, and a flat one of them, before these
        gradients go; the flat ones of all groups stay until the update is over."""
        sink, numels = self.sink, self.table.numels
        groups = parameter_groups(self.table, self.recipe)
        for number, ordinals in enumerate(groups):
            for ordinal in ordinals:
                sink.allocate(("copy", ordinal), Component.TEMPORARIES, numels[ordinal] * MASTER.num_bytes)
            if len(ordinals) > 1:
                flat = sum([numels[ordinal] for ordinal in ordinals]) * MASTER.num_bytes
                sink.allocate(("flat", number), Component.TEMPORARIES, flat)
                for ordinal in ordinals:
                    sink.free(("copy", ordinal))
            for ordinal in ordinals:
                sink.free(ordinal)
        self._free_gradients()
        for number in range(len(groups)):
            sink.free(("flat", number))
        for ordinal in range(len(numels)):
            sink.free(("copy", ordinal))

    def states(self) -> ModelStates:
        """With one group, and all weights trained in bf16: 2 + 4 + 8 + 2 + 4 + 4 = 24 bytes a weight in the step, and
        2 + 4 + 8 + 4 = 18 in the trial step at init."""
        found = super().states()
        groups = parameter_groups(self.table, self.recipe)
        masters = [numel * MASTER.num_bytes for numel in self._sizes_of_groups]
        peaks: list[Components] = []
        gradient_bytes, flat = self.table.trained_bytes, 0
        for ordinals, num_bytes in zip(groups, masters, strict=True):  # a lone tensor is its own flat buffer
            copies = num_bytes if len(ordinals) > 1 else 0
            peaks.append(Components(gradients=gradient_bytes, temporaries=flat + copies + num_bytes))
            gradient_bytes -= sum([self.table.gradient_sizes[ordinal] for ordinal in ordinals])
            flat += num_bytes
        most = max(peaks, key=lambda peak: peak.total)
        return found._replace(
            init_peak=found.resident + Components(temporaries=sum(masters)),
            step_peak=found.resident + most,
        )
