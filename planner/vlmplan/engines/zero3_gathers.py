"""ZeRO stage 3's weights while modules run: the walks of its coordinator over an engine's micro batches.

What is gathered, prefetched and released, module by module, is ``coordinator``; here is what it asks of the engine.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.reference import is_of_copy
from vlmplan.architecture.trace import HEAD, Fetch, Run, Section, Trace
from vlmplan.engines.coordinator.behind_evaluation import walk_behind_evaluation
from vlmplan.engines.coordinator.first_pass import (
    NOTHING_DECIDED,
    begin_after_recording,
    decided_before,
    finds_small_whole,
    first_decisions,
)
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
from vlmplan.engines.coordinator.module_order import (
    BEHIND_EVALUATION,
    LATER,
    RECORDING_FIRST,
    UNKNOWN_ORDER,
    Begun,
    Lost,
    SmallWeights,
    number_of_following,
    small_in_last,
    small_without_order,
    training_sizes,
)
from vlmplan.engines.coordinator.module_uses import used_weights
from vlmplan.engines.coordinator.replay import GatherReplay
from vlmplan.engines.coordinator.secondary import secondary_among
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.wrapper_modules import wrappers
from vlmplan.engines.events import Component, Sink
from vlmplan.engines.zero3_formulas import Zero3Formulas
from vlmplan.recipe.task_choices import Reference


class Zero3Gathers(Zero3Formulas):
    """Where weights are gathered."""

    has_stepped = False
    _reads: Mapping[str, Sequence[Parameter]] = {}
    """What the forward under way reads outside of its modules, by sections."""

    @cached_property
    def _have_read(self) -> set[Hashable]:
        """Weights that have been read, of a layer and by whether it is the second model's."""
        return set()

    @cached_property
    def _being_read(self) -> list[Hashable]:
        """Those that the section which runs has made."""
        return []

    def begin_forward(self, trace: Trace) -> None:
        """On one rank that has all weights nothing is gathered, but for what a forward reads outside of its module, the
        first time: ``all_gather`` makes that anew for any number of ranks (``ZeROOrderedDict.__getitem__`` in
        deepspeed 0.19.8 ``zero/parameter_offload.py``, ``_allgather_params_sequential``)."""
        self._reads = {} if self.gathers_weights else read_weights(trace)
        self.follows_layers = len(self._reads) > 0

    def enter(self, run: Run, *, is_backward: bool) -> None:
        is_known = self.has_stepped or (self._knows_own and not self._is_of_second(run))
        if is_backward or is_known or run.key not in self._reads:
            return
        names = {(self._is_of_second(run), id(one), run.layer): one for one in self._reads[run.key]}
        for name in [name for name in names if name not in self._have_read]:
            self.sink.allocate(("read", name), Component.WEIGHTS, names[name].num_bytes)
            self._being_read.append(name)
        self._have_read.update(names)

    def _is_of_second(self, run: Run) -> bool:
        return self.runs_second_model or is_of_copy(run)

    @property
    def _knows_own(self) -> bool:
        """Whether the trained model has run before all else: log-probabilities are precomputed by it."""
        return self.recipe.reference is Reference.PRECOMPUTED

    def leave(self, run: Run, *, is_backward: bool) -> None:
        while self._being_read:
            self.sink.free(("read", self._being_read.pop()))

    def end_forward(self) -> None:
        self._reads, self.follows_layers = {}, False

    @property
    def gathers_weights(self) -> bool:
        """There is something to fetch from: other ranks, or the host."""
        return self.num_ranks > 1 or self.offloads_weights

    def gather_replay(self, trace: Trace) -> GatherReplay | None:
        if not self.gathers_weights:
            return None
        small = small_in_last(trace, self.recipe)
        walk = gather_walk(
            trace,
            training_sizes(self.recipe),
            wrappers=wrappers(self.recipe, self.table),
            num_ranks=self._distinct_ranks,
            secondary_among=secondary_among(self.recipe),
            decided=decided_before(self.recipe, self.table),
            small=small,
        )
        return GatherReplay(walk, hosts=self._num_hosts, has_small=small is not SmallWeights.WHOLE)

    def gather_replay_at_first(self, trace: Trace, number: int = 0) -> GatherReplay | None:
        if not self.gathers_weights or number >= self.recipe.grad_accum:
            return None
        if number == number_of_following(self.recipe):
            return self._following_replay(trace)
        return self._recording_replay(trace) if number == 0 and _has_head_of_several(trace) else None

    def _following_replay(self, trace: Trace) -> GatherReplay | None:
        """That of the first micro batch that goes by an order, where it takes more than later ones: small weights come
        with large ones then, which may be alone later. Out of a buffer that several share each is copied, so that a
        large one is there twice."""
        recipe = self.recipe
        if finds_small_whole(trace, recipe.zero) or small_without_order(trace, recipe):
            return None
        decided = decided_before(recipe, self.table)._replace(within_step=False)  # it is the one that decides
        walk = gather_walk(
            trace,
            recipe.zero,
            wrappers=wrappers(recipe, self.table),
            num_ranks=self._distinct_ranks,
            decided=decided,
            small=SmallWeights.STAY,
        )
        later = self.gather_replay(trace)
        whole_bytes = self.shards.weight_totals[1]
        if later is not None and not walk.takes_more_than(later.walk, whole_bytes):
            return None
        return GatherReplay(walk, hosts=self._num_hosts)

    def replay_beside_idle(self, trace: Trace) -> GatherReplay | None:
        return self._recording_replay(trace) if self._has_idle_secondary(trace) else None

    def _has_idle_secondary(self, trace: Trace) -> bool:
        """Whether trained weights that no module gathers have secondary partitions until the first step ends."""
        if not self.shards.has_secondary:
            return False
        uses = used_weights(trace)
        gathered = (entry for entry in self.trained if not self.shards.is_persistent(entry.parameter))
        return any((id(entry.parameter), entry.layer) not in uses for entry in gathered)

    def _recording_replay(self, trace: Trace) -> GatherReplay:
        walk = gather_walk(
            trace,
            replace(self.recipe.zero, **UNKNOWN_ORDER),
            wrappers=wrappers(self.recipe, self.table),
            num_ranks=self._distinct_ranks,
            small=SmallWeights.COME_AND_GO,
        )
        return GatherReplay(walk, hosts=self._num_hosts)

    @property
    def _distinct_ranks(self) -> int:
        """Ranks that pad no weight have the same live, however many they are."""
        gathered = [one for one, _ in self.table.kinds if not self.shards.is_persistent(one)]
        is_padded = any(one.numel * one.dtype.num_bytes % self.num_ranks for one in gathered)
        return self.num_ranks if is_padded else min(self.num_ranks, 2)

    @property
    def _num_hosts(self) -> int:
        """Ranks that bring a part of every gather from their host."""
        return self.num_ranks if self.offloads_weights and self.num_ranks > 1 else 0

    def gather_replay_behind(self, trace: Trace, evaluated: Sequence[Trace]) -> GatherReplay | None:
        if not self.gathers_weights:
            return None
        walk = walk_behind_evaluation(
            trace,
            evaluated,
            training_sizes(self.recipe),
            wrappers=wrappers(self.recipe, self.table),
            num_ranks=self._distinct_ranks,
            secondary_among=self.recipe.hpz,
            by_another_order=self.recipe.evaluates_by_another_order,
            decided=decided_before(self.recipe, self.table),
        )
        return GatherReplay(walk, hosts=self._num_hosts)

    def gathered_weights(self, trace: Trace, sink: Sink, begun: Begun = LATER) -> GatheredWeights | None:
        """The simulation of the coordinator for one micro batch; None where nothing is gathered. In the first of all
        the order of modules is not known: nothing is prefetched, and nothing kept for its next use
        (``ZeRoTraceMode.RECORD`` in ``partitioned_param_coordinator.py``)."""
        if not self.gathers_weights:
            return None
        records = begun.lost is Lost.AT_START
        zero = replace(self.recipe.zero, **UNKNOWN_ORDER) if records else self.recipe.zero
        around = wrappers(self.recipe, self.table)
        decided = NOTHING_DECIDED if records else decided_before(self.recipe, self.table)
        if begun.lost is Lost.AT_BACKWARD:
            around = around._replace(lost=begun.lost)
        gathered = GatheredWeights(
            trace=trace,
            zero=zero,
            num_ranks=self.num_ranks,
            wrappers=around,
            offloads=self.offloads_weights,
            sink=sink,
            secondary_among=self._secondary_at(begun),
            decisions=first_decisions(trace, zero, around, decided),
            small=begun.small,
        )
        gathered.places = self.table.places_sharded
        gathered.meets_reads = begun == RECORDING_FIRST and not self._evaluates_first
        if begun.small is SmallWeights.STAY:
            begin_after_recording(gathered, trace, zero.stage3_param_persistence_threshold)
        if begun.small is SmallWeights.WHOLE_AT_FIRST:
            gathered.begin_with_small()
        return gathered

    @property
    def _evaluates_first(self) -> bool:
        return self.recipe.evaluation is not None and self.recipe.evaluation.on_start

    def _secondary_at(self, begun: Begun) -> int:
        if begun.lacks_secondary:
            return self.recipe.hpz
        return 1 if begun in (RECORDING_FIRST, BEHIND_EVALUATION) else secondary_among(self.recipe)

    def gathers_by(self, begun: Begun) -> Hashable:
        zero = self.recipe.zero
        sizes = (
            *(zero.stage3_prefetch_bucket_size, zero.stage3_max_reuse_distance),
            *(zero.stage3_max_live_parameters, zero.stage3_param_persistence_threshold),
        )
        found = wrappers(self.recipe, self.table), secondary_among(self.recipe)
        decided = decided_before(self.recipe, self.table)
        return sizes, self.num_ranks, self.offloads_weights, found, begun, decided


def read_weights(trace: Trace) -> Mapping[str, Sequence[Parameter]]:
    """The weights of other modules that modules of each section read in forward; where the model reads its head's, the
    head's section does."""
    if read_weights not in trace.memo:
        found: dict[str, list[Parameter]] = {}
        for key, section in trace.sections.items():
            for module in (event.module for event in section.forward if isinstance(event, Fetch)):
                weights = module.parameters_by_name.values()
                if module.reads_head:
                    found |= {head: [*weights] for head in trace.sections if head.rpartition(".")[2] == HEAD}
                elif module.reads:
                    found.setdefault(key, []).extend([one for one in weights if id(one) in module.reads])
        trace.memo[read_weights] = found
    return trace.memo[read_weights]


def _has_head_of_several(trace: Trace) -> bool:
    """Whether the output head has a bias. Its weights then share one all-gather in the first micro batch, out of whose
    buffer they are copied, so that the head is there twice when backward begins with it, beside its whole gradient. In
    later ones it stays whole since forward, for its next use."""
    head = trace.sections.get(HEAD, Section())
    return any(type(event) is Fetch and len(event.module.parameters_by_name) > 1 for event in head.forward)
