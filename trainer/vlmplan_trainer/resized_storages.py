"""Storages that get another size while their tensors stay, which no operation tells of.

FSDP frees weights and makes them whole again so: FSDP2 by ``UntypedStorage.resize_`` (``alloc_storage`` and
``free_storage`` in ``_fsdp_param.py``, torch 2.13), FSDP1 by ``TypedStorage._resize_``, which calls it
(``torch/distributed/utils.py``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def telling_of_resized_storages(listener: Callable[[Any], None]) -> Iterator[None]:
    """While this lasts, ``listener`` is called with each storage that may have been resized."""
    storages: Any = torch.UntypedStorage
    resize = storages.resize_

    def resized(self: Any, *size: Any) -> Any:
        result = resize(self, *size)
        listener(self)
        return result

    storages.resize_ = resized
    try:
        yield
    finally:
        storages.resize_ = resize
