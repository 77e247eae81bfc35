"""``DistributedDataParallel``: plain PyTorch on every rank, and gradients that are averaged in buckets.

As the trainer has it: gradients are views of the buckets from the beginning to the end (``gradient_as_bucket_view``),
so that a rank holds them once, whether it accumulates or not; weights may go unused (``find_unused_parameters``), so
that buckets stay as they are made; trained weights are sent in place. Sources (torch 2.13):
``torch/nn/parallel/distributed.py`` and ``torch/csrc/distributed/c10d/reducer.cpp``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components
from vlmplan.engines.engine import ModelStates
from vlmplan.engines.events import Component
from vlmplan.engines.plain import PlainPyTorch
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.units import MIB, DType

FIRST_BUCKET_BYTES = 1 * MIB
"""Gradients of the first parameters of a type go together until they are so many (``kDefaultFirstBucketBytes``)."""
BUCKET_BYTES = 25 * MIB
"""The same of all others (``kDefaultBucketBytesCap``)."""


class Gradient(NamedTuple):
    """What a bucket is filled by, with others of its type."""

    dtype: DType
    num_bytes: int


class DataParallel(PlainPyTorch):
    """A rank with a whole model and a whole optimizer."""

    @staticmethod
    def overlapped_micro_batches(recipe: Recipe) -> int:
        """Gradients are sent in the last micro batch alone, each bucket when it is full."""
        del recipe
        return 1

    @property
    def buckets(self) -> list[int]:
        """Bytes of each bucket of gradients, the same for all engines of a table."""
        memo = self.table.memo
        if DataParallel.buckets not in memo:
            dtypes = [entry.parameter.dtype for entry in self.trained]
            gradients = map(Gradient, dtypes, self.table.gradient_sizes)
            memo[DataParallel.buckets] = [sum(one.num_bytes for one in bucket) for bucket in filled(gradients)]
        return memo[DataParallel.buckets]

    @cached_property
    def _used_bytes(self) -> int:
        """A number for each trained weight: whether any rank has used it (``local_used_map_``)."""
        return len(self.table.numels) * DType.INT32.num_bytes

    # -- the walk ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        super().build()
        for num_bytes in reversed(self.buckets):
            self.sink.keep(Component.GRADIENTS, num_bytes)
        self.sink.keep(Component.COMMUNICATION_BUFFERS, self._used_bytes)

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """What earlier micro batches leave is in the buckets."""

    def take_gradient(self, ordinal: int) -> None:
        """Autograd has added it to its part of a bucket."""
        self.sink.free(ordinal)

    # -- in closed form ------------------------------------------------------------------------------------------

    def states(self) -> ModelStates:
        """As in plain PyTorch, with gradients that are there from the beginning."""
        plain = super().states()
        used = Components(communication_buffers=self._used_bytes)
        buckets = Components(gradients=self.table.trained_bytes) + used
        start = plain.at_start + buckets
        return ModelStates(start, plain.resident + buckets, start, plain.step_peak + used)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """No gradient stays beside the buckets, which are among the states."""
        del accumulates
        forward, _ = super().micro_batch_bound(profile, accumulates=False)
        return forward, profile.dropped_peak + self.table.largest_trained * self.weight_bytes

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        """Every bucket, and which weights were used."""
        del trace
        num_bytes = self.table.trained_bytes + self._used_bytes
        return (Collectives(CollectiveKind.ALL_REDUCE, StepPhase.BACKWARD, len(self.buckets) + 1, num_bytes),)


def filled(gradients: Iterable[Gradient]) -> list[list[Gradient]]:
    """Gradients together, type by type, each bucket until it has as many bytes as its limit.

    Buckets are in the order of their first gradients (``compute_bucket_assignment_by_size``).

    >>> [len(bucket) for bucket in filled([Gradient(DType.FLOAT32, 9 * MIB)] * 5)]
    [1, 3, 1]
    """
    buckets: list[list[Gradient]] = []
    last: dict[DType, _LastBucket] = {}
    for one in gradients:
        bucket = last.get(one.dtype)
        if bucket is None or bucket.room_bytes <= 0:
            limit = FIRST_BUCKET_BYTES if bucket is None else BUCKET_BYTES
            bucket = last[one.dtype] = _LastBucket([], limit)
            buckets.append(bucket.gradients)
        bucket.gradients.append(one)
        bucket.room_bytes -= one.num_bytes
    return buckets


@dataclass(slots=True)
class _LastBucket:
    """The bucket of a type that is being filled, and bytes until it is full."""

    gradients: list[Gradient]
    room_bytes: int
