"""Bytes of one GPU by component."""

from operator import add
from typing import NamedTuple


class Components(NamedTuple):
    """Bytes live at one moment, by what they are. Adding moments adds components; ``total`` is what torch counts.

    A search adds thousands of them.
    """

    weights: int = 0
    gradients: int = 0
    optimizer_states: int = 0
    activations: int = 0
    logits: int = 0
    communication_buffers: int = 0
    temporaries: int = 0
    inference_engine: int = 0
    """Of vLLM, which generates on the same GPU."""

    @property
    def total(self) -> int:
        return sum(self)

    def __add__(self, other: "Components") -> "Components":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Components._make(map(add, self, other))

    def as_json(self) -> dict[str, int]:
        values = self._asdict()
        if not self.inference_engine:
            del values["inference_engine"]
        return values


COMPONENT_NAMES = Components._fields
"""All of them, those that most GPUs have nothing of too."""
NOTHING = Components()


def higher(left: Components, right: Components) -> Components:
    """The moment with more bytes; the first one if equal."""
    return right if right.total > left.total else left
