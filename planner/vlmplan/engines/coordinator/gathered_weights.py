"""ZeRO stage 3: which weights are whole on a GPU while the model runs.

A simulation of ``PartitionedParameterCoordinator`` (``deepspeed/runtime/zero/partitioned_param_coordinator.py``,
0.19.8) in its steady state, from the third forward on, when the order of modules is known and weights are prefetched.
Every use of a module is a step: it fetches what is missing, prefetches what comes next, and releases what is not used
again soon. Limits are in elements, as DeepSpeed counts them.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.reference import loses_order
from vlmplan.architecture.trace import Drop, Fetch, Hold, Prefetch, Release, Run, Trace
from vlmplan.engines.coordinator.counts import GatherCounts
from vlmplan.engines.coordinator.live_bytes import GatheredBytes
from vlmplan.engines.coordinator.module_order import Lost, SmallWeights, keeps_small
from vlmplan.engines.coordinator.module_uses import GatherSteps
from vlmplan.engines.coordinator.records import Decisions, Gather, GatheredModule, GatheredWeight, Key, Passed
from vlmplan.engines.coordinator.wait_order import waits
from vlmplan.engines.coordinator.wrapper_modules import INSIDE_HEAD, WITHOUT_ADAPTERS, Wrappers
from vlmplan.engines.events import NULL_SINK, Sink, Stream
from vlmplan.recipe.zero import ZeroSettings


class GatheredWeights(GatheredBytes):
    """The gathered weights of one rank over one micro batch.

    ``fetch`` returns the most that was live during it, but for shards that come from the host, and ``gathers`` are the
    gathers during it. ``sent`` are the collectives so far, of forward and of backward.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        zero: ZeroSettings,
        num_ranks: int,
        wrappers: Wrappers = WITHOUT_ADAPTERS,
        offloads: bool = False,
        sink: Sink = NULL_SINK,
        omitted: Mapping[int, Passed] | None = None,
        secondary_among: int = 1,
        decisions: Decisions | None = None,
        small: SmallWeights = SmallWeights.WHOLE,
    ) -> None:
        """``wrappers``: what the function of that name says of the recipe; ``secondary_among``: what the function of
        that name does.
        ``omitted``: elements that the modules have which the schedule leaves out before a step; distances between steps
        count them. ``decisions``: those that were made before, and stand; a dictionary that lacks some gets them.
        """
        steps = GatherSteps(trace, zero, num_ranks=num_ranks, omitted=omitted or {}, small=small)
        super().__init__(steps.weight_by_key, num_ranks=num_ranks, offloads=offloads, sink=sink)
        self._zero, self._wrappers, self._small = zero, wrappers, small
        self.lack_secondary(secondary_among)
        self._knows_order = not loses_order(trace)
        self._max_live = zero.stage3_max_live_parameters
        self.sent = (GatherCounts(), GatherCounts())
        self._steps, self._modules = steps.modules, steps.module_by_key
        self._order, self._traversed, self._first_of_backward = steps.order, steps.traversed, steps.first_of_backward
        self._order_of_copy, self._first_of_copy = steps.order_of_copy, steps.first_of_copy
        self._second_of_copy = steps.second_of_copy
        self._waiting: tuple[deque[tuple[GatheredWeight, int]], int, int] = deque(), 0, 0  # while a second model runs
        self._inside_reader, self._order_at_first = wrappers.inside, steps.order_at_first(wrappers.lost)
        self._begins_again = {again.start for again in steps.again}
        self._order_ends, self._first_adapter = {again.stop for again in steps.again}, steps.first_adapter
        if wrappers.lost is Lost.AT_ADAPTERS:
            self.lose_order_at_adapters()
        if self._steps and self._steps[0].reads_head:
            self._wrappers = wrappers.around_reader(calls_head=self._steps[0].calls_head)
        self._inside_head, self._comes_later = steps.inside_head, steps.comes_later
        self._active: dict[GatheredModule, None] = {}  # of those with weights: fetched and not released
        self.decisions = decisions
        self.keeps_looked_at = False
        """Whether weights that a module reads of those inside it stay, once DeepSpeed goes by an order: it remembers
        what to release (``lru_cache`` of ``__params_to_release``) from forwards in which the module read none."""
        self.begin_forward()

    def lose_order_at_adapters(self) -> None:
        """What comes at the first adapter is not what the order says."""
        self._order_ends = {self._first_adapter}

    def begin_evaluation(self, *, secondary_among: int = 1) -> None:
        """Forwards follow each other, of which the first goes as in training. ``secondary_among``: as trained weights
        lack secondary partitions then."""
        self.decisions = {} if self.decisions is None else self.decisions.copy()
        self.lack_secondary(secondary_among)

    def begin_forward(self) -> int:
        """A forward begins, after a step or after a forward without a backward: what is under way goes when it has
        arrived, and what is whole stays so, but is counted no more (``reset_step``). Returns the most that was live."""
        self._peak = self.live_bytes
        self._end_order()
        self._follow(self._order_at_first, knows=self._knows_order)
        self._step, self._shift, self._is_in_backward = 0, 0, False
        return self._peak

    def _begin_copy(self) -> None:
        """The forward of a second model begins, whose engine has a coordinator of its own: the model's own goes on from
        where it is when backward begins."""
        waiting = self._queue, self._num_available, self._shift
        end = self._second_of_copy
        order = self._order_of_copy if end is None else [use for use in self._order_of_copy if use[1] < end]
        self._follow(order, knows=True)
        self._step, self._shift, self._waiting = self._first_of_copy, 0, waiting

    def _begin_second_copy(self, start: int) -> None:
        """The second model runs once more: by the same order, from its beginning (``reset_step``)."""
        for weight, _ in self._order_of_copy:
            weight.fetched_for = -1
            weight.uses.clear()
        self._follow([use for use in self._order_of_copy if use[1] >= start], knows=True)

    def _end_copy(self) -> None:
        if self._step > self._first_of_copy:
            self._queue, self._num_available, self._shift = self._waiting
            self._step = self._first_of_backward

    def _end_order(self, *, spares_used: bool = False) -> None:
        self._end_gathers(spares_used=spares_used)
        for weight in self._weights.values():
            weight.fetched_for = -1
            weight.uses.clear()

    def _follow(self, order: Sequence[tuple[GatheredWeight, int]], *, knows: bool) -> None:
        """Uses of weights come in this ``order``; ``knows``: and DeepSpeed prefetches by it."""
        self._queue = deque(order)
        for weight, step in order:
            weight.uses.append(step)
        self._num_available = self.num_small = 0
        self._follows_order = knows
        self._keeps_small = keeps_small(self._small, knows_order=knows)
        self._most_prefetched = self._zero.stage3_prefetch_bucket_size if knows else 0
        self._max_reused = self._zero.stage3_max_reuse_distance if knows else 0

    def _begin_again(self) -> None:
        """A second forward of the same modules begins, and is expected to go as the first has (``reset_step``)."""
        for weight in self._weights.values():
            weight.fetched_for = -1
            weight.uses.clear()
        self._shift = self._step
        self._follow([use for use in self._order if use[1] < self._step], knows=True)
        self._prefetch_times(self._wrappers.forward)

    def _lose_order(self) -> None:
        """Another module has come than was expected: what is under way goes when it has arrived, unless it is in use
        (``_invalidate_trace``)."""
        self._end_order(spares_used=True)
        available, self._shift = self._num_available, 0
        self._follow([use for use in self._order if use[1] >= self._step], knows=False)
        self._num_available = available

    def make_whole(self, keys: Iterable[Key]) -> None:
        """Weights that something else has gathered."""
        for key in keys:
            weight = self._weights[key]
            self._gather([weight])
            if weight.gather is not None:
                self._wait(weight, weight.gather)

    @property
    def next_prefetched_step(self) -> int:
        """The first step of which prefetch has not looked at all weights yet."""
        return self._queue[0][1] + self._shift if self._queue else len(self._steps)

    @property
    def _known_step(self) -> int:
        """The step in the order that is followed."""
        return self._step - self._shift

    def state(self, name: Callable[[Key], Hashable]) -> Hashable:
        """All that what comes depends on, but for the bytes that are live: equal states go on in the same way.

        ``name``: what a weight or module is called, by its key, so that states of different layers can be equal.
        """
        waiting: dict[Gather, list[Hashable]] = {}
        weights: list[Hashable] = []
        for weight in self._weights.values():
            ahead = weight.fetched_for - self._known_step
            if ahead <= 0 and weight.gather is None and (weight.storage is None or weight.is_small):
                continue
            ahead = max(0, ahead)
            if weight.gather is not None:
                waiting.setdefault(weight.gather, []).append(name(weight.key))
            if weight.storage is not None or ahead:
                num_views = None if weight.storage is None else weight.storage.num_views
                users = frozenset([name(user.key) for user in weight.users])
                weights.append((name(weight.key), num_views, ahead, users, weight.has_secondary))
        gathers = frozenset([(one.flat_bytes, one.num_waiting, one.is_done, *of) for one, of in waiting.items()])
        next_step = self.next_prefetched_step
        num_ahead = len(list(takewhile(lambda use: use[1] + self._shift == next_step, self._queue)))
        num_available = self._num_available - self.num_small
        return num_available, next_step - self._step, num_ahead, gathers, frozenset(weights)

    # -- events --------------------------------------------------------------------------------------------------

    def fetch(self, before: int = 0) -> int:
        """The next module of the trace is about to run, and ``before`` it so many without weights of their own: gather
        what it needs, then prefetch (``fetch_sub_module``)."""
        self._peak = self.live_bytes
        if self.gathers:
            self.gathers = []
        if not self._another_order() and self._step == self._inside_head:
            self._prefetch_times(self._wrappers.inside)
        if before:
            self._prefetch_times(before)
        module = self._steps[self._step]
        if module.weights:
            self._active[module] = None
            self._use(module)
        if self._num_available < self._max_live and self._queue:
            self._prefetch()
        if module.reads_head:  # the modules inside of it have no weights of their own, nor have those around the norm
            inside = 0 if module.calls_head else self._inside_reader
            self._prefetch_times(inside if self._is_in_backward else INSIDE_HEAD)
        self._step += 1
        return self._peak if self._peak > self.live_bytes else self.live_bytes

    def _another_order(self) -> bool:
        """Whether the next module begins a forward, or ends what is known of its order: then that is seen to."""
        if self._step == 0:
            self._prefetch_times(self._wrappers.forward)
        elif self._order_of_copy and self._step == self._first_of_backward and not self._is_in_backward:
            self._begin_copy()
        elif self._step == self._second_of_copy:
            self._begin_second_copy(self._step)
        elif self._step in self._begins_again:
            self._begin_again()
        elif self._step in self._order_ends:
            self._lose_order()
        else:
            return False
        return True

    def prefetch(self, times: int) -> int:
        """Prefetch for so many modules without weights of their own, which are about to run; the most that was live."""
        self._peak, self.gathers = self.live_bytes, []
        self._prefetch_times(times)
        return max(self._peak, self.live_bytes)

    def begin_backward(self) -> int:
        """Backward begins with the modules around all others, before that of a loss which is made inside of one of
        them. Returns the most that was live."""
        self._peak, self.gathers = self.live_bytes, []
        self._end_copy()
        self._is_in_backward, self.meets_reads = True, False
        if self._wrappers.lost is Lost.AT_BACKWARD:
            self._lose_order()
        self._prefetch_times(self._wrappers.outside)
        return max(self._peak, self.live_bytes)

    def _prefetch_times(self, number: int) -> None:
        for _ in range(number):
            if self._num_available >= self._max_live or not self._queue:
                break
            self._prefetch()

    def _use(self, module: GatheredModule) -> None:
        missing = [weight for weight in module.weights if weight.storage is None and weight.gather is None]
        read = [weight for weight in missing if weight.key[0] in module.reads] if self.meets_reads else []
        for weight in module.weights:
            if weight not in read:  # what is met inside of the module is registered with it later
                weight.users.add(module)
        if len(read) < len(missing):
            self._gather([weight for weight in missing if weight not in read])
        for weight in read:
            self._gather([weight], Stream.DEFAULT)
        for weight, gather in waits(module):
            self._wait(weight, gather)
        self._drop_from_queue()

    def release(self, event: Release, run: Run) -> int:
        """The module is done: partition what is not used again within the reuse distance (``release_sub_module``).
        Returns the most that was live.

        A module around layers is done behind the backward of the first where nothing before that layer is trained.
        """
        module = self.module_of(event.module, run)
        self._peak = self.live_bytes
        self._active.pop(module, None)
        for weight in module.weights:
            users, storage = weight.users, weight.storage
            users.discard(module)
            if weight.is_small and (event.ends_recomputation or self._keeps_small):
                continue
            if self.keeps_looked_at and self._follows_order and event.module.is_container:
                continue
            if storage is None or users:
                if self.decisions is not None:
                    self._stays(weight, is_leaf=module.is_leaf)
                continue
            if event.ends_recomputation or not self._stays(weight, is_leaf=module.is_leaf):
                self._take(weight, storage)
        return self._peak

    def module_of(self, module: WeightUser, run: Run) -> GatheredModule:
        of_layer = self._modules.get((id(module), run.layer))
        return self._modules[(id(module), None)] if of_layer is None else of_layer

    def end_backward(self) -> None:
        """Release the modules whose input needed no gradient, so that none told them that their backward is done
        (``release_backward_leftovers``, after the last reduction of gradients)."""
        for module in self._active:
            for weight in module.weights:
                if weight.storage is not None:
                    self._take(weight, weight.storage)
        self._active.clear()

    def _gather(self, weights: list[GatheredWeight], stream: Stream = Stream.GATHER) -> None:
        later = [weight for weight in weights if not weight.has_secondary] if self._secondary_among > 1 else []
        for together in ([weight for weight in weights if weight not in later], later) if later else (weights,):
            if together:
                self._start(together, stream)
        sent = self.sent[self._is_in_backward]
        sent.add(
            [weight.num_bytes for weight in weights if weight.is_trained],
            [weight.num_bytes for weight in weights if not weight.is_trained],
        )

    def _drop_from_queue(self) -> None:
        """What the module uses now needs no prefetch any more. Uses leave the queue in their order."""
        queue, step = self._queue, self._step - self._shift
        while queue and queue[0][1] <= step:
            weight, weight_step = queue.popleft()
            weight.fetched_for = weight_step

    def _prefetch(self) -> None:
        """Gather the next weights of the order together (the end of ``fetch_sub_module``), as many as make
        ``stage3_prefetch_bucket_size`` elements or, where that is less, what ``stage3_max_live_parameters`` leaves. The
        last one may go beyond it; what is whole or under way already counts for nothing."""
        queue = self._queue
        room = self._max_live - self._num_available
        if room > self._most_prefetched:
            room = self._most_prefetched
        if room <= 0 or not queue:
            return
        chosen: dict[GatheredWeight, None] = {}
        num_elements = 0
        while queue and num_elements < room:
            weight, step = queue.popleft()
            weight.fetched_for = step  # steps leave the queue in their order
            if weight.storage is None and weight.gather is None and weight not in chosen:
                chosen[weight] = None
                num_elements += weight.numel
        if chosen:
            self._gather(list(chosen))

    def _stays(self, weight: GatheredWeight, *, is_leaf: bool) -> bool:
        """Whether a weight stays whole: ``_is_kept``, which DeepSpeed asks once for each step and remembers
        (``lru_cache`` of ``__params_to_release``): a later forward releases what the first one released."""
        if self.decisions is None or not self._follows_order:
            return self._is_kept(weight, is_leaf=is_leaf)
        key = self._step, weight.number
        if key not in self.decisions:
            self.decisions[key] = self._is_kept(weight, is_leaf=is_leaf)
        return self.decisions[key]

    def _is_later(self, step: int) -> bool:
        """Whether modules without weights come before ``step``, of which each is a step to DeepSpeed: the head's own
        backward comes after that of the modules around it."""
        if step == self._first_of_backward and self._wrappers.outside:
            return step not in self._order_ends  # the order of a forward alone ends there
        return step in self._comes_later or (step == self._inside_head and self._wrappers.inside > 0)

    def _is_kept(self, weight: GatheredWeight, *, is_leaf: bool) -> bool:
        """Whether the weight stays: prefetch counted on it for a later step than the one that comes next, or it is used
        again within the reuse distance."""
        step = self._known_step
        if weight.fetched_for > step or (weight.fetched_for == step and self._is_later(self._step)):
            return True
        if not self._max_reused:
            return False
        uses = weight.uses
        while uses and uses[0] < step:
            uses.popleft()
        if not uses:
            return False
        traversed = self._traversed[is_leaf]
        return traversed[uses[0]] - traversed[step] < self._max_reused


def notify(gathered: GatheredWeights, event: Any, run: Run) -> int:
    """Tell ``gathered`` of an event. Returns the most bytes that were live during it."""
    if type(event) is Fetch:
        return gathered.fetch(event.before)
    if type(event) is Prefetch:
        return gathered.prefetch(event.times)
    if type(event) is Release:
        return gathered.release(event, run)
    if type(event) is Hold:
        gathered.hold(event, run)
    elif type(event) is Drop:
        gathered.drop(event, run)
    return gathered.live_bytes
