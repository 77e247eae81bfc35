"""``torch.Generator`` of a card: on a machine without one torch makes none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced

_OfTheHost: Any = torch.Generator
_Kind: Any = type(_OfTheHost)


class _IsAnyGenerator(_Kind):
    """Generators that torch has made itself are instances too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return _Kind.__instancecheck__(_OfTheHost, instance)


class CardGenerator(_OfTheHost, metaclass=_IsAnyGenerator):
    """A generator of the host that says that it is the card's: what it draws there is unknown anyway."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = _OfTheHost.__new__(cls, "cpu")
        made._named = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        return self._named


@contextmanager
def generators_of_the_card() -> Iterator[None]:
    """Within, ``torch.Generator("cuda")`` makes one."""
    with replaced(torch, "Generator", CardGenerator):
        yield
