"""Activation checkpointing as a tape records it: a layer runs and keeps nothing, and again before its backward.

The first run counts the tensors that the graph would save; the second ends at the last of them, as torch's early stop
does (``torch/utils/checkpoint.py``).
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from vlmplan.architecture.empty_calls import EmptyCall
from vlmplan.architecture.parameter import Parameter, WeightUser
from vlmplan.architecture.recomputation import Recomputation
from vlmplan.architecture.recorder import Recorder
from vlmplan.architecture.trace import KeptCast, LastAdapter
from vlmplan.recipe.adapter_views import AdapterViews

Given = TypeVar("Given")


class OpenContainer(NamedTuple):
    """A module that calls others, whose backward is not over before theirs is. ``start``: the last graph node before
    it."""

    module: WeightUser
    start: int
    has_input_grad: bool

    def is_over_before(self, sequence: int) -> bool:
        """Whether its backward is over when it has come to the node with this number."""
        return sequence <= self.start


class CheckpointRecorder(Recorder):
    """Records the first and the second forward of checkpointed layers.

    ``num_nodes`` counts the nodes of the graph, ``modules`` are those around the operation that runs, the outermost
    first. The tape, which makes the nodes, says how many tensors each saves (``_count_saved``).
    """

    is_reentrant = False
    """Whether checkpoints are reentrant: a layer runs again to its end, and what its nodes hold as attributes goes with
    its backward."""
    _detaches = False
    """Whether what runs has no backward, see ``detaching``."""
    notes_adapters = False
    """Whether it is noted when adapters begin, ``LastAdapter``."""

    def __init__(self, *, follows_weights: bool) -> None:
        super().__init__(follows_weights=follows_weights)
        self.modules: list[WeightUser] = []
        self.adapter_views = AdapterViews()
        self.num_nodes: int = 0
        self._begins_again = False
        self._containers: dict[tuple[int, str | None], OpenContainer] = {}
        # Containers whose backward has begun and is not over, from outside in.
        self.open_containers: list[OpenContainer] = []
        # While packing: the weights of which autocast keeps casts.
        self._kept_casts: dict[int, Parameter] = {}
        # While packing: how many modules are around the packed function.
        self._num_around = 0
        # While packing, nodes are made but keep nothing; replaying ends at the last tensor that is saved.
        self._packs = False
        self._num_saved = 0
        self._last_saved = 0
        self._stop_after: int | None = None
        self.stopped_at = sys.maxsize  # the number of the last node before that
        # The modules, from outside in, around the last operation of a packed function that would have saved something.
        self.last_users: tuple[Any, ...] = ()
        self.last_empty_call: EmptyCall | None = None
        # While packing: the adapter whose last factor would have saved the last tensor, and the one whose is about to.
        self.last_adapter: object = None
        self._beginning_adapter: object = None
        self._block_start, self._is_in_block, self.ends_in_block = 0, False, False
        # What graph nodes hold as attributes.
        self._attached: list[Any] = []
        # Casts of weights that layers share, and how often a layer has come upon one that another has made.
        self._layer_casts: dict[int, Any] = {}
        self.joined_uses: dict[int, int] = {}
        # What checkpoints inside the one that runs hold, see ``checkpointing.named_input``.
        self.held_inside: list[Any] = []

    def pack(self, function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, int, int]:
        """``function(*inputs)`` with nodes that keep nothing, how many tensors they would have saved, and the sequence
        number of the node that would have saved the last."""
        self._packs, self._num_saved, self._last_saved, self._num_around = True, 0, 0, len(self.modules)
        self._kept_casts = {key: weight for key, weight in self._kept_casts.items() if weight.shared_uses}
        self.held_inside = []
        self.last_users, self.last_empty_call, self.ends_in_block = (), None, False
        self.last_adapter = self._beginning_adapter = None
        try:
            return function(*inputs), self._num_saved, self._last_saved
        finally:
            self._packs = False
            self._sections[self._key].ends_in_adapter = self.last_adapter is not None

    def replay(self, function: Callable[..., Any], inputs: Sequence[Any], num_saved: int, last_adapter: object) -> Any:
        """Run ``function`` again with its graph, up to the last tensor that its backward needs, which ``last_adapter``
        saves, where it is one that does."""
        work, self._work = self._work, self._sections[self._key].recompute_work
        self._num_saved, self._stop_after, self._recomputed, self._begins_again = 0, num_saved, [], True
        self.stopped_at = sys.maxsize
        self.last_adapter = last_adapter
        try:
            return function(*inputs)
        finally:
            self._stop_after, self._is_phantom, self._work = None, False, work

    @property
    def saves_aliases(self) -> bool:
        """Whether what is saved of tensors that need a gradient is ``x.detach()``, which keeps a gathered weight whole
        until its node has run: in the second forward of a checkpoint that is not reentrant (``_recomputation_hook`` in
        torch's ``utils/checkpoint.py``)."""
        return self._stop_after is not None and not (self.is_reentrant or self._detaches)

    @contextmanager
    def detaching(self) -> Generator[None]:
        """No backward comes to what runs inside, so that the first forward has let go of its nodes, and the second
        saves nothing for them."""
        self._detaches = True
        try:
            yield
        finally:
            self._detaches = False

    def attach(self, node: Any, *tensors: Any) -> None:
        """``ctx.name = x`` of an autograd function, which no hook for saved tensors sees: x stays as long as the graph,
        under a checkpoint too, and goes when the step forgets the loss. ``node`` is None where there is no graph, as in
        the first forward of a reentrant checkpoint."""
        if node is None or (self._packs and self.is_reentrant):
            return
        self._attached += [x.detached() for x in tensors]
        self._leaves_to_end = True

    @contextmanager
    def graph_of_its_own(self) -> Generator[list[Any]]:
        """What runs inside has a graph of its own, a tile's or that of a layer that runs again: what its nodes hold as
        attributes is given."""
        outside, self._attached = self._attached, []
        try:
            yield self._attached
        finally:
            self._attached = outside

    @contextmanager
    def looking_ahead(self) -> Generator[None]:
        """What runs inside is counted nowhere."""
        outside, self._is_phantom = self._is_phantom, True
        try:
            yield
        finally:
            self._is_phantom = outside

    @property
    def is_packing(self) -> bool:
        """Whether a checkpointed layer is running for the first time, with a graph that keeps nothing."""
        return self._packs

    @property
    def is_replaying(self) -> bool:
        """Whether a checkpointed layer is running again."""
        return self._stop_after is not None

    def keep_cast(self, weight: Parameter, num_bytes: int) -> None:
        """autocast keeps the cast of a weight of the layer that is running for the first time."""
        if id(weight) not in self._kept_casts:
            self._kept_casts[id(weight)] = weight
            self._flush()
            self._events.append(KeptCast(num_bytes))

    def join_uses(self, weight: Parameter) -> None:
        """A layer takes the cast of a shared weight that another has made: their gradients come back as one."""
        if weight.shared_uses:
            self.joined_uses[id(weight)] = self.joined_uses.get(id(weight), 0) + 1

    def sees_shards(self, adapter: object) -> bool:
        """Whether the matrices of ``adapter`` are shards where it looks at them."""
        views = self.adapter_views
        if not self.is_replaying:
            return views.in_forward
        return views.of_last if adapter is self.last_adapter else views.again

    def noting_adapter(self, x: Given, adapter: object) -> Given:
        """``x``, which the last factor of ``adapter`` gets, which begins; in what runs again torch gathers nothing
        ahead (``_needs_pre_forward_unshard`` in ``torch/distributed/fsdp/_runtime_utils.py``)."""
        self._beginning_adapter = adapter
        if self.notes_adapters and not self.is_replaying:
            self._flush()
            self._events.append(LastAdapter())
        return x

    def take_recomputation(self, users: Sequence[WeightUser], *, ends_in_block: bool) -> Recomputation:
        """The recomputation of the last replay, which the backward of ``users`` asked for."""
        modules, self._recomputed = self._recomputed or (), None
        return Recomputation(users, modules, self._block_start if ends_in_block else None)

    def enter_container(self, module: WeightUser, *, has_input_grad: bool) -> None:
        """``module``, which calls others, begins, in the running section or around sections."""
        section = None if self.is_between_sections else self._key
        self._containers[id(module), section] = OpenContainer(module, self.num_nodes, has_input_grad)

    def container(self, module: WeightUser, section: str) -> OpenContainer | None:
        """The last call of a container in a section or around it; None for a module that calls no other."""
        return self._containers.get((id(module), section)) or self._containers.get((id(module), None))

    def enter_empty_call(self) -> EmptyCall | None:
        """A module without weights of its own is called. Returns what ``empty_call`` has to be when it returns.

        A layer that runs again is not: checkpoints are inside of it (``GradientCheckpointingLayer`` of transformers
        5.23 wraps its ``forward``), and its backward has begun.
        """
        outer, self.empty_call = self.empty_call, EmptyCall(self.empty_call)
        if self._begins_again:
            self._begins_again = False
            self.empty_call.begin_backward()
        else:
            self.prefetch()
        return outer

    def enter_block(self) -> None:
        """A module without weights of its own begins, whose last operation that saves anything is in none inside."""
        self._block_start, self._is_in_block = self.num_nodes, True

    def leave_block(self) -> None:
        self._is_in_block = False

    def _count_saved(self, count: int) -> None:
        self._num_saved += count
        if count:
            self._last_saved = self.num_nodes
            if self._packs:
                self.last_adapter, self._beginning_adapter = self._beginning_adapter, None
            if self._packs and self.follows_weights:
                self.last_users, self.last_empty_call = tuple(self.modules[self._num_around :]), self.empty_call
                self.ends_in_block = self._is_in_block and not self.last_users
        if self._stop_after is not None and count and self._num_saved >= self._stop_after:
            self._is_phantom, self.stopped_at = True, self.num_nodes
            if self.empty_call is not None:
                self.empty_call.begin_backward()
