"""A tape that notes which module makes each storage: what forward leaves for backward, by module.

torch keeps no such note; the snapshots of its allocator have the line of code instead.
"""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from vlmplan.architecture.model import Model
from vlmplan.architecture.storage_log import EngineEvent, LoggingTape, expanded
from vlmplan.architecture.trace import Allocation, Kind, Trace

LAYER = re.compile(r"\.\d+(?=\.|$)")
"""The number of a layer in a module's name."""


def module_kind(name: str) -> str:
    """The name that a module has in common with its likes in other layers.

    >>> module_kind("model.layers.11.mlp.up_proj")
    'model.layers.*.mlp.up_proj'
    """
    return LAYER.sub(".*", name)


class ModuleTape(LoggingTape):
    """``makers``: of each storage, by its handle, the innermost module that was running and the component."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.makers: dict[int, tuple[str, Kind]] = {}
        self.running: list[str] = [""]

    def log_allocation(self, num_bytes: int) -> int:
        handle = super().log_allocation(num_bytes)
        self.makers[handle] = self.running[-1], self.kind
        return handle


@contextmanager
def followed(model: Model, tape: ModuleTape) -> Generator[None]:
    """Meanwhile every module of ``model`` says when its forward runs."""
    modules = [(name, module) for name, module in model.distinct_modules() if hasattr(type(module), "forward")]
    try:
        for name, module in modules:
            object.__setattr__(module, "forward", _telling(module.forward, module_kind(name), tape.running))
        yield
    finally:
        for _, module in modules:
            vars(module).pop("forward", None)


def _telling(forward: Callable[..., Any], name: str, running: list[str]) -> Callable[..., Any]:
    def told(*args: Any, **kwargs: Any) -> Any:
        running.append(name)
        try:
            return forward(*args, **kwargs)
        finally:
            running.pop()

    return told


def kept_bytes(trace: Trace, tape: ModuleTape) -> dict[tuple[str, Kind], int]:
    """What is alive when forward ends and backward begins, by the module that made it, equal layers together."""
    makers: list[tuple[str, Kind]] = []
    for run in trace.schedule:
        events = trace.sections[run.key].forward
        makers += [tape.makers[event.handle] for event in events if isinstance(event, Allocation)]
    alive: dict[int, int] = {}
    for operation in expanded(trace).forward:  # counts the storages of all layers in that order, from 1
        if isinstance(operation, EngineEvent):
            alive.pop(operation.handle, None)
        elif operation[1]:
            alive[operation[0]] = operation[1]
        else:
            alive.pop(operation[0], None)
    kept: dict[tuple[str, Kind], int] = {}
    for handle, num_bytes in alive.items():
        maker = makers[handle - 1]
        kept[maker] = kept.get(maker, 0) + num_bytes
    return kept
