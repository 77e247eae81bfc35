"""Heads whose weights a model's forward reads outside of their modules, as its first forward under ZeRO-3 meets them.

That forward gathers such a weight when it comes to it, on the default stream, and from then on the weight counts as one
of the model's own (``ZeROOrderedDict.__getitem__`` of deepspeed 0.19.8 ``zero/parameter_offload.py``): see
``ReadHead``. A second model has an engine of its own, and so a first forward of its own.
"""

from vlmplan.architecture.trace import Fetch
from vlmplan.engines.events import Stream
from vlmplan.memory.gathered_blocks import Changes

OF_EMBEDDING = -1
"""The handle of a weight that is whole for the embedding alone, with which the head shares it."""


class HeadReads:
    """``is_known``: the trained model has run before what is replayed."""

    def __init__(self, *, is_known: bool) -> None:
        self._has_read = {False: is_known, True: False}
        """By whether it is the second model."""
        self._waiting: Changes = []
        self._begun: Fetch | None = None
        self._is_of_copy = False

    def at_fetch(self, event: Fetch, changes: Changes, *, is_of_copy: bool) -> Changes:
        """What happens of ``changes`` where a module fetches its weights."""
        if event.module.reads_head and not self._has_read[is_of_copy]:
            return self._begin(event, changes, is_of_copy=is_of_copy)
        return [*self._for_embedding(event), *changes] if self._waiting else changes

    def read(self) -> Changes:
        """What happens where the head's weight is read."""
        if self._waiting:
            self._has_read[self._is_of_copy] = True
        changes = [(handle, num_bytes, Stream.DEFAULT) for handle, num_bytes, _ in self._waiting]
        self._waiting = []
        return changes

    def _begin(self, event: Fetch, changes: Changes, *, is_of_copy: bool) -> Changes:
        """Where more is gathered, an order of modules is known already, and the weight is gathered with it."""
        if len(changes) != len(event.module.parameters_by_name):
            return changes
        self._waiting, self._begun, self._is_of_copy = changes, event, is_of_copy
        return []

    def _for_embedding(self, event: Fetch) -> Changes:
        """A weight that both use is whole for the embedding, and again for the head."""
        assert self._begun is not None
        own = {id(weight) for weight in event.module.parameters_by_name.values()}
        weights = self._begun.module.parameters_by_name.values()
        shared = [change for weight, change in zip(weights, self._waiting, strict=True) if id(weight) in own]
        made = [(OF_EMBEDDING - place, num_bytes, stream) for place, (_, num_bytes, stream) in enumerate(shared)]
        return [*made, *((handle, 0, stream) for handle, _, stream in made)]
