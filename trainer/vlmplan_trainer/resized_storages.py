"""FSDP2 frees and makes whole weights by resizing the storages of tensors that stay, which no operation tells of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def telling_of_resized_storages(listener: Callable[[Tensor], None]) -> Iterator[None]:
    """While this lasts, ``listener`` is called with each tensor whose storage FSDP2 may have resized
    (``alloc_storage`` and ``free_storage`` in ``_fsdp_param.py``, torch 2.13)."""
    import torch.distributed.fsdp._fully_shard._fsdp_param as parameters
    import torch.distributed.fsdp._fully_shard._fsdp_param_group as groups

    places: list[tuple[Any, str]] = [(parameters, "alloc_storage"), (parameters, "free_storage")]
    places.append((groups, "alloc_storage"))
    originals = [getattr(module, name) for module, name in places]

    def telling(resize: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def resized(tensor: Tensor) -> None:
            resize(tensor)
            listener(tensor)

        return resized

    try:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, telling(original))
        yield
    finally:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, original)
