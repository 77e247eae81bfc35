"""Bytes of storages that live while something runs."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Live(TorchDispatchMode):
    """Storages that were made since it began: bytes of each in order, of those that live, the most at once."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.most = 0
        self.made: list[int] = []
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and what would guard against it takes seconds to import."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: Any) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.made.append(num_bytes)
        self.live += num_bytes
        self.most = max(self.most, self.live)
        weakref.finalize(storage, self._forget, key, num_bytes)

    def _forget(self, key: int, num_bytes: int) -> None:
        self._seen.discard(key)
        self.live -= num_bytes
