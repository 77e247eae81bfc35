"""A distributed sampler: the order of an epoch, and which rank takes what.

The order is a permutation by seed and epoch alone: the same on every rank and for every number of ranks. Together the
ranks go through it from the front, ``micro_batch × num_ranks`` samples at a time, of which rank r takes the r-th
``micro_batch``. So after any number of steps exactly the first ``position`` samples of the order are used up, and
training can go on from there with another number of ranks.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlmplan.errors import InputError

SORTED_SAMPLES = 2048
"""Samples that are sorted by length among themselves: for even batches, yet well shuffled. A choice."""
RUN_SAMPLES = 128
"""Neighbours in length that stay together when what was sorted is shuffled: a global batch or so. A choice."""


def epoch_order(num_samples: int, *, seed: int, epoch: int, lengths: Sequence[int] | None = None) -> list[int]:
    """A permutation of ``range(num_samples)``. With ``lengths``, neighbours are of about equal length."""
    drawn = random.Random(f"{seed}/{epoch}")
    order = list(range(num_samples))
    drawn.shuffle(order)
    if lengths is None:
        return order
    runs: list[list[int]] = []
    for start in range(0, num_samples, SORTED_SAMPLES):
        part = sorted(order[start : start + SORTED_SAMPLES], key=lambda index: lengths[index])
        runs.extend(part[first : first + RUN_SAMPLES] for first in range(0, len(part), RUN_SAMPLES))
    drawn.shuffle(runs)
    return [index for run in runs for index in run]


def packed(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """Rows of at most ``limit`` tokens, each the indices of its samples: the longest sample first, each where least
    room is left (best fit decreasing, as TRL's ``bfd``). No length is above the limit.

    >>> packed([3, 5, 2, 6], 8)
    [[3, 2], [1, 0]]
    """
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens that are free, row), in order
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True):
        place = bisect_left(rooms, (lengths[index], -1))
        if place < len(rooms):
            room, row = rooms.pop(place)
            rows[row].append(index)
        else:
            room, row = limit, len(rows)
            rows.append([index])
        if room > lengths[index]:
            insort(rooms, (room - lengths[index], row))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How samples go to ranks."""

    micro_batch: int
    num_ranks: int
    rank: int
    grad_accum: int = 1
    takes_all: bool = False
    """The last micro batches have fewer samples, or none, and nothing is left out: evaluation."""

    def __post_init__(self) -> None:
        for name in ("micro_batch", "num_ranks", "grad_accum"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; 1 or more is needed")
        if not 0 <= self.rank < self.num_ranks:
            raise InputError(f"rank is {self.rank}; 0 to {self.num_ranks - 1} is needed")

    @property
    def samples_per_micro_step(self) -> int:
        return self.micro_batch * self.num_ranks

    @property
    def samples_per_step(self) -> int:
        """The global batch."""
        return self.samples_per_micro_step * self.grad_accum

    @property
    def least_samples(self) -> int:
        """Fewer make no step."""
        return 1 if self.takes_all else self.samples_per_step

    def num_micro_batches(self, num_samples: int) -> int:
        """Micro batches of this rank, as of every rank, in whole steps on ``num_samples``; the rest is left out, or
        a step of its own."""
        num_taken = num_samples - self.num_left_over(num_samples)
        return -(-num_taken // self.samples_per_step) * self.grad_accum

    def num_left_over(self, num_samples: int) -> int:
        """Samples of ``num_samples`` that no rank takes."""
        return 0 if self.takes_all else num_samples % self.samples_per_step

    def micro_batches(self, order: Sequence[int], *, position: int = 0) -> Iterator[list[int]]:
        """This rank's micro batches of what ``order`` holds after ``position``, as indices of samples."""
        for number in range(self.num_micro_batches(len(order) - position)):
            start = position + number * self.samples_per_micro_step + self.rank * self.micro_batch
            yield list(order[start : start + self.micro_batch])
