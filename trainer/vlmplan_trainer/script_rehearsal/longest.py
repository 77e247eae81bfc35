"""``--longest``: every batch that trains is of the longest samples, so that the peak is theirs.

All of them are, not the first alone: in the first step there are no optimizer states yet, and in an accumulating step's
first micro batch no gradients.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.script_rehearsal.loaders import is_training_loader
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

MAX_SECONDS = 60.0
"""For looking through a data set."""
TOKENS = "input_ids"


def size_of(sample: Any) -> int:
    """The number by which samples are compared: their tokens where they have any, else characters, numbers and pixels
    in all.

    >>> size_of({"input_ids": [1, 2, 3], "labels": [1, 2, 3]}), size_of({"text": "Hello"}), size_of([[1, 2], "abc"])
    (3, 5, 5)
    """
    if isinstance(sample, Mapping):
        return size_of(sample[TOKENS]) if TOKENS in sample else sum(size_of(value) for value in sample.values())
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if isinstance(sample, (list, tuple)):
        return sum(size_of(item) for item in sample)
    size = getattr(sample, "size", 1)  # of a picture, or an array's number of elements
    return size[0] * size[1] if isinstance(size, tuple) else size if isinstance(size, int) else 1


class Ranking:
    """Samples of each data set from the longest on; ``say`` gets a sentence where not all were looked at."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: dict[int, tuple[Any, list[int]]] = {}

    def of(self, dataset: Any) -> list[int]:
        if id(dataset) not in self._known:
            self._known[id(dataset)] = dataset, self._ranked(dataset)
        return self._known[id(dataset)][1]

    def _ranked(self, dataset: Any) -> list[int]:
        sizes: list[int] = []
        end = time.monotonic() + MAX_SECONDS
        with _disable_current_modes():
            for index in range(len(dataset)):
                if time.monotonic() > end:
                    self._say(
                        f"--longest looked at the first {index} of {len(dataset)} samples, for {MAX_SECONDS:.0f} s"
                    )
                    break
                sizes.append(size_of(dataset[index]))
        return sorted(range(len(sizes)), key=lambda index: -sizes[index])


@contextmanager
def longest_batches(phases: ScriptPhases, say: Callable[[str], None]) -> Iterator[None]:
    """``say`` gets a sentence about data that cannot be asked for by number: those come in their order."""
    from torch.utils.data import _DatasetKind
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    following, ranking = _BaseDataLoaderIter._next_index, Ranking(say)

    def next_index(self: Any) -> Any:
        index = following(self)
        if not is_training_loader(self, phases):
            return index
        if self._dataset_kind != _DatasetKind.Map:
            say("--longest cannot look through a stream: its samples come in their order")
            return index
        longest = ranking.of(self._dataset)
        if not isinstance(index, list):
            return longest[0]
        return (longest[: len(index)] * len(index))[: len(index)]

    with replaced(_BaseDataLoaderIter, "_next_index", next_index):
        yield
