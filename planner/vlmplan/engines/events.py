"""What an engine does with memory, event by event.

An engine walks from load to save and tells a ``Sink`` which tensors it allocates, on which stream, and when it frees
them. ``memory.peaks`` turns the events into the peaks of each phase, ``memory.blocks`` hands them to a model of torch's
caching allocator.
"""

from collections.abc import Hashable, Sequence
from enum import IntEnum


class Stream(IntEnum):
    """Streams on which engines ask for memory: torch's allocator keeps the blocks of each apart.

    DeepSpeed's (0.19.8), with ``overlap_comm`` off all the default one: ``reduction_stream`` in ``stage_1_and_2.py``
    and ``reduce_and_partition_stream`` in ``stage3.py``; ``__allgather_stream`` in ``parameter_offload.py``. FSDP2's
    (torch 2.13 ``_fsdp_param_group.py``, ``FSDPCommContext``): ``all_gather_stream``, ``reduce_scatter_stream``, and
    ``all_reduce_stream`` where ranks have copies.
    FSDP1's (``_init_streams`` in ``_runtime_utils.py``): ``_post_backward_stream``, ``_unshard_stream``,
    ``_all_reduce_stream`` where ranks have copies, and ``_pre_unshard_stream`` for shards that are cast or come from
    the host before they are gathered. A second model under stage 3 has an engine of its own, which gathers on a stream
    of its own.
    """

    DEFAULT = 0
    REDUCTION = 1
    GATHER = 2
    PRE_GATHER = 3
    GATHER_OF_COPY = 4
    SUM = 5


Marked = tuple[int, ...] | None
"""What is done until the next mark: gradients of these ordinals are reduced, of which ranks keep different shares; with
none of them, a rank makes updates of its own; None: every rank does the same."""


class Component(IntEnum):
    """What a tensor is, in the order of the fields of ``Components``."""

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER_STATES = 2
    ACTIVATIONS = 3
    LOGITS = 4
    COMMUNICATION_BUFFERS = 5
    TEMPORARIES = 6


class Sink:
    """Listens to an engine. This one ignores everything."""

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        """``owner`` gets a tensor, and has no other."""

    def keep(self, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        """A tensor that is never freed."""

    def free(self, owner: Hashable) -> None:
        """The tensor of ``owner`` is freed, if it has one."""

    def clone(self, owner: Hashable, num_bytes: int) -> None:
        """The tensor of ``owner``, if it has one, of so many bytes, is copied, and the copy takes its place."""

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        """Tensors of these ``sizes`` are allocated one after another and freed together."""

    def rename(self, owner: Hashable, new_owner: Hashable) -> None:
        """The tensor of ``owner``, if it has one, is ``new_owner``'s from now on."""

    def mark(self, marked: Marked) -> None:
        """What comes until the next mark differs among ranks by no more than ``marked`` says."""

    def empty_cache(self) -> None:
        """The allocator's free blocks go back to the device (``torch.cuda.empty_cache``)."""


class HighWater(Sink):
    """How many bytes are live, and the most that ever were."""

    def __init__(self) -> None:
        self.live = self.most = 0
        self._sizes: dict[Hashable, int] = {}

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self._sizes[owner] = num_bytes
        self.live += num_bytes
        self.most = max(self.most, self.live)

    def keep(self, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self.allocate(object(), component, num_bytes)

    def free(self, owner: Hashable) -> None:
        self.live -= self._sizes.pop(owner, 0)

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        self.most = max(self.most, self.live + sum(sizes))


NULL_SINK = Sink()
