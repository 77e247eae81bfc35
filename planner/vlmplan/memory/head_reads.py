"""Heads whose weights a model's forward reads outside of their modules, as its first forward under ZeRO-3 meets them.

That forward gathers such a weight when it comes to it, on the default stream, and from then on the weight counts as one
of the model's own (``ZeROOrderedDict.__getitem__`` of deepspeed 0.19.8 ``zero/parameter_offload.py``): see
``ReadHead``. A second model has an engine of its own, and so a first forward of its own.
"""

from vlmplan.architecture.read_weights import ORIGINAL
from vlmplan.architecture.trace import Fetch
from vlmplan.engines.events import Stream
from vlmplan.memory.gathered_blocks import Changes

PASSING = -1
"""The first handle, of those that go down, of what goes as soon as it has come: a weight that is whole for the
embedding alone, with which the head shares it, or a shard that the host brings."""


class HeadReads:
    """``is_known``: the trained model has run before what is replayed. ``num_hosts``: ranks that have their shards in
    host memory, from where each comes beside what is gathered (``_allgather_params_sequential`` in
    ``partition_parameters.py``); 0 where they are on the GPU."""

    def __init__(self, *, is_known: bool, num_hosts: int = 0) -> None:
        self._num_hosts = num_hosts
        self._has_read = {False: is_known, True: False}
        """By whether it is the second model."""
        self._waiting: dict[int, tuple[int, int, Stream]] = {}
        """By the weights' ids."""
        self._is_of_copy = False
        self._unread_originals: set[int] = set()
        """Ids of a head's weights beside a trained copy, which a forward without adapters is to read."""
        self.absent: set[int] = set()
        """Handles of those, of which a forward with adapters gathers none."""

    def at_fetch(self, event: Fetch, changes: Changes, *, is_of_copy: bool) -> Changes:
        """What happens of ``changes`` where a module fetches its weights."""
        if event.module.reads_head and not self._has_read[is_of_copy]:
            return self._begin(event, changes, is_of_copy=is_of_copy)
        if event.module.reads_head and self._unread_originals and not is_of_copy:
            return self._begin_without_adapters(event, changes)
        return [*self._for_embedding(event), *changes] if self._waiting else changes

    def read(self) -> Changes:
        """What happens where the head's weight is read."""
        if self._waiting:
            self._has_read[self._is_of_copy] = True
        changes: Changes = []
        for handle, num_bytes, _ in self._waiting.values():
            changes.append((handle, num_bytes, Stream.DEFAULT))
            if self._num_hosts:
                arriving = -(-num_bytes // self._num_hosts)
                changes += [(PASSING, arriving, Stream.DEFAULT), (PASSING, 0, Stream.DEFAULT)]
        self._waiting = {}
        return changes

    def _begin(self, event: Fetch, changes: Changes, *, is_of_copy: bool) -> Changes:
        """Where more is gathered, an order of modules is known already, and the weight is gathered with it."""
        weights = event.module.parameters_by_name
        together = _staying(changes)
        if len(together) != len(weights):
            return changes
        made = {id(weight): change for weight, change in zip(weights.values(), together, strict=True)}
        originals = [id(weight) for name, weight in weights.items() if name.startswith(ORIGINAL)]
        self.absent.update(made.pop(original)[0] for original in originals)
        self._unread_originals.update(originals)
        self._waiting, self._is_of_copy = made, is_of_copy
        return []

    def _begin_without_adapters(self, event: Fetch, changes: Changes) -> Changes:
        """The copy has been read by now, and comes when the model begins; the original comes where it is read."""
        weights = event.module.parameters_by_name.values()
        originals, self._unread_originals = self._unread_originals, set()
        together = _staying(changes)
        if len(together) != len(weights):
            return changes
        made = {id(weight): change for weight, change in zip(weights, together, strict=True)}
        self._waiting, self._is_of_copy = {one: made.pop(one) for one in originals if one in made}, False
        return [*made.values()]

    def _for_embedding(self, event: Fetch) -> Changes:
        """A weight that both use is whole for the embedding, and again for the head."""
        own = [id(weight) for weight in event.module.parameters_by_name.values()]
        shared = [self._waiting[one] for one in own if one in self._waiting]
        made = [(PASSING - place, num_bytes, stream) for place, (_, num_bytes, stream) in enumerate(shared)]
        return [*made, *((handle, 0, stream) for handle, _, stream in made)]


def _staying(changes: Changes) -> Changes:
    """Without the buffer out of which weights are copied, and without shards that the host brings."""
    made = {handle for handle, num_bytes, _ in changes if num_bytes}
    passing = {handle for handle, num_bytes, _ in changes if not num_bytes and handle in made}
    return [change for change in changes if change[0] not in passing]
