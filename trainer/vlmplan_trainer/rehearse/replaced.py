"""An attribute that is something else for a while."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` while this lasts."""
    old = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextmanager
def replaced_wherever_imported(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace it in every module that has taken ``owner.name`` into its own names: ``from owner import name``."""
    old = getattr(owner, name)
    places = [
        (module, own_name)
        for module in list(sys.modules.values())
        for own_name, found in list(getattr(module, "__dict__", {}).items())
        if found is old
    ]
    with ExitStack() as stack:
        for module, own_name in places:
            stack.enter_context(replaced(module, own_name, value))
        yield
