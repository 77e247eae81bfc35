"""Loops of equal turns on a tape: a few turns run, and one of them stands for all that are as it is.

Linear attention in chunks runs a loop of thousands of turns, which makes the same tensors of the same sizes in each:
the chunks are cut out of whole tensors, and the state that goes from turn to turn keeps its shape. Only the first turns
differ, whose state has no graph yet, and the last, whose state nothing reads. So what is live in between grows by the
same bytes in each turn of forward, all of them saved for the turn's own backward, which frees them; the work is the
same; and the peak lies in the last of such turns forward, in the first of them that backward comes to.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import ClassVar

from vlmplan.architecture.checkpoint_recorder import CheckpointRecorder
from vlmplan.architecture.storage import Storage
from vlmplan.architecture.trace import Kind, Work

NUM_FIRST = 2
"""Turns before the first that is as any later one: the state of the first has no graph, so that it saves less, and the
second lets go of what the first has kept in local variables."""
NUM_LAST = 2
"""Turns behind the last that is as any before: of the last the state is not read, so that some gradients begin with the
one before it."""

_new = object.__new__


class Turn:
    """A turn that stands for itself and so many ``others``. ``held``: what those leave for their backward."""

    __slots__ = ("held", "others")

    def __init__(self, others: int) -> None:
        self.others = others
        self.held: list[Storage] = []


class LoopRecorder(CheckpointRecorder):
    """Records one turn of a loop for all turns like it; ``turn`` is the one that runs, in forward or in backward."""

    storage_class: ClassVar[type[Storage]] = Storage
    runs_every_call: ClassVar[bool] = False
    """Whether equal calls are recorded one by one, and not one for all of them: turns of loops, kernels
    (``attention.joins_calls``), tiles."""
    turn: Turn | None = None
    _outside: Work
    """What the turn's own work is added to when it is over."""

    def turns(self, count: int) -> Iterator[None]:
        """The turns of a loop whose body does the same in each, one after the other."""
        others = count - NUM_FIRST - NUM_LAST - 1
        if others < 1 or self.runs_every_call:
            yield from repeat(None, count)
            return
        yield from repeat(None, NUM_FIRST)
        before, highest, highest_total = list(self.live), self._peak, self._peak_total
        self._peak, self._peak_total = (before[0], before[1], before[2], before[3]), self.total
        turn = Turn(others)
        self.enter_turn(turn)
        yield
        self.enter_turn(None)
        growth = [others * (now - was) for now, was in zip(self.live, before, strict=True)]
        activations, logits, temporaries, gradients = (
            inside + grown for inside, grown in zip(self._peak, growth, strict=True)
        )
        if self._peak_total + sum(growth) > highest_total:
            self._peak = activations, logits, temporaries, gradients
            self._peak_total += sum(growth)
        else:
            self._peak, self._peak_total = highest, highest_total
        turn.held += [self._live_bytes(num_bytes, kind) for num_bytes, kind in zip(growth, Kind, strict=True)]
        yield from repeat(None, NUM_LAST)

    def enter_turn(self, turn: Turn | None) -> None:
        """What runs from here on is of this turn; of one that is over, its work is that of the others too, and in
        backward what they saved goes."""
        left, self.turn = self.turn, turn
        if left is not None:
            self._outside.add(self._work, 1 + left.others)
            self._work = self._outside
            left.held.clear()
        if turn is not None:
            self._outside, self._work = self._work, Work()

    def counted(self, num_bytes: int) -> Storage:
        """A storage for bytes that are counted as live already, which go with it."""
        storage = _new(self.storage_class)
        storage.tape, storage.kind, storage.born, storage.num_bytes = self, self.kind, self.num_nodes, num_bytes
        return storage

    def _live_bytes(self, num_bytes: int, kind: Kind) -> Storage:
        """A storage for ``num_bytes`` that are live from here on."""
        self.live[kind] += num_bytes
        self.total += num_bytes
        with self.charged_to(kind):
            return self.counted(num_bytes)
