"""What is shown while a command looks for something, for whoever calls it from a terminal."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlmplan.workload import ModelFiles

Waiting = Callable[[], AbstractContextManager[None]]
"""Shows that something goes on until it is left; ``nullcontext`` shows nothing."""


def shown(model: "ModelFiles", waiting: Waiting) -> AbstractContextManager[None]:
    """What ``waiting`` shows, unless the model is rehearsed, which shows how far that is itself."""
    from vlmplan.models.tree import ProbedModelFiles

    return nullcontext() if isinstance(model, ProbedModelFiles) else waiting()
