"""Bytes on the device that symbolic tensors refer to, counted by the recorder of their tape."""

from typing import Any

from vlmplan.architecture.trace import Kind


class Storage:
    """Bytes on the device: allocated when made, freed when the last reference goes.

    CPython frees an object with its last reference, as torch frees a storage, so what a ``forward`` keeps in local
    variables here lives as long as in the code it describes.
    """

    __slots__ = ("born", "kind", "num_bytes", "tape")
    tape: Any
    """The tape that made it, a ``Recorder``, which ``Tensor`` knows as what it is."""
    kind: Kind
    born: int
    num_bytes: int

    def __del__(self) -> None:
        tape, num_bytes = self.tape, self.num_bytes
        if self.born < tape.oldest_own:
            tape.free_shared(num_bytes, self.kind)
        else:  # as ``tape.free``, whose call would cost more than that
            tape.live[self.kind] -= num_bytes
            tape.total -= num_bytes

    def shrink(self, num_bytes: int) -> None:
        """Free all but ``num_bytes``: one storage represents several that are freed one after the other."""
        self.tape.free(self.num_bytes - num_bytes, self.kind)
        self.num_bytes = num_bytes

    def charge_to(self, kind: Kind) -> None:
        """Charge it to another component from here on."""
        self.tape.live[self.kind] -= self.num_bytes
        self.tape.live[kind] += self.num_bytes
        self.kind = kind


class LayerInput(Storage):
    """What a first layer gets for the storage of its input, whose bytes it does not count: to see when it goes."""

    __slots__ = ("whole",)
    whole: Storage

    def __del__(self) -> None:
        self.tape.release_input(self.born)
