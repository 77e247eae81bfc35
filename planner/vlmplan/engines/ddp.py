"""``DistributedDataParallel``: plain PyTorch on every rank, and gradients that are averaged in buckets.

As the trainer has it: gradients are views of the buckets from the beginning to the end (``gradient_as_bucket_view``),
so that a rank holds them once, whether it accumulates or not; weights may go unused (``find_unused_parameters``), so
that buckets stay as they are made; trained weights are sent in place.

By torch's defaults, as Hugging Face's Trainer has it, gradients are autograd's own, from backward to the update, and
buckets are beside them; when the wrapper is made all weights, frozen ones too, are sent in flat copies of 250 MiB.
Where nothing is looked for that goes unused, the first backward has one bucket of each type, and the second forward
makes those that stay of gradients in the order in which they came, when the old ones have gone.

Sources (torch 2.13): ``torch/nn/parallel/distributed.py`` and ``torch/csrc/distributed/c10d/reducer.cpp``, of the flat
copies ``broadcast_coalesced`` in ``comm.cpp``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from vlmplan.architecture.model import NamedParameter, Part
from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase
from vlmplan.engines.components import Components
from vlmplan.engines.events import Component
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.plain import PlainPyTorch
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.recipe.reference_adapters import copies_adapters
from vlmplan.recipe.task_choices import TaskTrainer
from vlmplan.units import MIB, DType

FIRST_BUCKET_BYTES = 1 * MIB
"""Gradients of the first parameters of a type go together until they are so many (``kDefaultFirstBucketBytes``)."""
BUCKET_BYTES = 25 * MIB
"""The same of all others (``kDefaultBucketBytesCap``)."""
BROADCAST_BYTES = 250 * MIB
"""Weights are sent together until they are so many (``broadcast_bucket_size``)."""


class Filling(NamedTuple):
    """A gradient or a weight: what a bucket is filled by, with others of its type."""

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
    def _gradients_are_views(self) -> bool:
        return self.recipe.gradient_as_bucket_view

    @property
    def buckets(self) -> list[int]:
        """Bytes of each bucket of gradients, the same for all engines of a table."""
        memo = self.table.memo
        if DataParallel.buckets not in memo:
            memo[DataParallel.buckets] = self._filled(range(len(self.trained)), FIRST_BUCKET_BYTES, BUCKET_BYTES)
        return memo[DataParallel.buckets]

    def _filled(self, ordinals: Iterable[int], first_bytes: int, other_bytes: int) -> list[int]:
        """Bytes of the buckets of these gradients."""
        trained, sizes = self.trained, self.table.gradient_sizes
        gradients = (Filling(trained[ordinal].parameter.dtype, sizes[ordinal]) for ordinal in ordinals)
        return [sum(one.num_bytes for one in bucket) for bucket in filled(gradients, first_bytes, other_bytes)]

    @cached_property
    def _makes_buckets_anew(self) -> bool:
        """Whether nothing is looked for that goes unused (``find_unused_parameters``): ``trl_training`` asks for that
        with models of text, and Hugging Face's Trainer with checkpoints where all is trained."""
        if self._gradients_are_views:
            return False
        task = self.recipe.task
        if task is not None and task.trainer is TaskTrainer.TRL:
            return all(entry.part is Part.LANGUAGE for entry in self.table.entries)
        return self.recipe.activation_checkpointing and not self.recipe.trains_adapters

    @cached_property
    def _came(self) -> list[int]:
        """Gradients of the first backward that are sent, in the order in which they came, until buckets are anew."""
        return []

    _first_buckets = 0
    _is_sent = False

    @cached_property
    def _used_bytes(self) -> int:
        """A number for each trained weight: whether any rank has used it (``local_used_map_``)."""
        return len(self.table.numels) * DType.INT32.num_bytes

    @property
    def _flat_copies(self) -> list[tuple[int, int]]:
        """Bytes of each flat copy in which weights are sent and of the one behind it: two are on their way at once
        (``max_in_flight``). A weight that is alone is sent as it is (``flatten_dense_tensors``). A reference's
        adapters are among them."""
        memo, has_copies = self.table.memo, copies_adapters(self.recipe)
        key = (DataParallel._flat_copies, has_copies)
        if key not in memo:
            times = [1 + (has_copies and entry.parameter.requires_grad) for entry in self.table.entries]
            sent = [_sent(entry) for entry, count in zip(self.table.entries, times, strict=True) for _ in range(count)]
            together = filled(sent, BROADCAST_BYTES, BROADCAST_BYTES)
            copies = [sum(one.num_bytes for one in bucket) if len(bucket) > 1 else 0 for bucket in together]
            memo[key] = list(zip(copies, [*copies[1:], 0], strict=True))
        return memo[key]

    @property
    def _updated(self) -> Mapping[DType, Sequence[tuple[int, ...]]]:
        """A view of a bucket is a gradient from the beginning on, of zeros where no backward gives one."""
        return self.table.shapes_by_dtype if self._gradients_are_views else super()._updated

    @property
    def _updated_ordinals(self) -> Iterable[int]:
        return range(len(self.table.numels)) if self._gradients_are_views else super()._updated_ordinals

    @property
    def _gradient_bytes(self) -> int:
        """Bytes of all gradients, with the zeros that views of a bucket begin with."""
        return self.table.trained_bytes if self._gradients_are_views else super()._gradient_bytes

    # -- the walk ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        super().build()
        if self._gradients_are_views:
            component = Component.GRADIENTS
        else:
            component = Component.COMMUNICATION_BUFFERS
            for copies in self._flat_copies:
                self.sink.transient(Component.COMMUNICATION_BUFFERS, [size for size in copies if size])
        if self._makes_buckets_anew:
            whole = self._filled(range(len(self.trained)), self.table.trained_bytes, self.table.trained_bytes)
            self._first_buckets = len(whole)
            for number, num_bytes in enumerate(whole):
                self.sink.allocate(("bucket", number), component, num_bytes)
        else:
            for num_bytes in reversed(self.buckets):
                self.sink.keep(component, num_bytes)
        self.sink.keep(Component.COMMUNICATION_BUFFERS, self._used_bytes)

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        super().begin_micro_batch(accumulates=accumulates, is_last=is_last)
        self._is_sent = is_last
        if not accumulates and self._came and self._first_buckets:
            for number in range(self._first_buckets):
                self.sink.free(("bucket", number))
            self._first_buckets = 0
            for num_bytes in self._filled(self._came, FIRST_BUCKET_BYTES, BUCKET_BYTES):
                self.sink.keep(Component.COMMUNICATION_BUFFERS, num_bytes)

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        """What earlier micro batches leave is in the buckets, or beside them."""
        if not self._gradients_are_views:
            super().resume_accumulation(ordinals)

    def take_gradient(self, ordinal: int) -> None:
        """Autograd has added it to its part of a bucket, or it stays and is copied there."""
        if self._gradients_are_views:
            self.sink.free(ordinal)
        elif self._first_buckets and self._is_sent:
            self._came.append(ordinal)

    # -- in closed form ------------------------------------------------------------------------------------------

    def states(self) -> ModelStates:
        """The model states of plain PyTorch with buckets that are there from the beginning and are the gradients, or
        beside them."""
        plain = super().states()
        used = Components(communication_buffers=self._used_bytes)
        if not self._gradients_are_views:
            buckets = Components(communication_buffers=self.table.trained_bytes) + used
            start = plain.at_start + buckets
            copies = Components(communication_buffers=max(map(sum, self._flat_copies)))
            init_peak = max(start, plain.at_start + copies, key=lambda components: components.total)
            return ModelStates(
                at_start=start,
                resident=plain.resident + buckets,
                init_peak=init_peak,
                step_peak=plain.step_peak + buckets,
            )
        buckets = Components(gradients=self.table.trained_bytes) + used
        start = plain.at_start + buckets
        return ModelStates(
            at_start=start, resident=plain.resident + buckets, init_peak=start, step_peak=plain.step_peak + used
        )

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        """Upper bounds of the bytes in forward and in backward. Beside the buckets, which are among the states, no
        gradient stays that is a view of them."""
        if not self._gradients_are_views:
            return super().micro_batch_bound(profile, accumulates=accumulates)
        forward, _ = super().micro_batch_bound(profile, accumulates=False)
        return forward, profile.dropped_peak + self.table.largest_trained * self.weight_bytes

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        """Every bucket, and which weights were used."""
        del trace
        num_bytes = self.table.trained_bytes + self._used_bytes
        return (Collectives(CollectiveKind.ALL_REDUCE, StepPhase.BACKWARD, len(self.buckets) + 1, num_bytes),)


def filled(fillings: Iterable[Filling], first_bytes: int, other_bytes: int) -> list[list[Filling]]:
    """Gradients or weights together, type by type, each bucket until it has as many bytes as its limit.

    Buckets are in the order of what is first in them (``compute_bucket_assignment_by_size``).

    >>> [len(bucket) for bucket in filled([Filling(DType.FLOAT32, 9 * MIB)] * 5, FIRST_BUCKET_BYTES, BUCKET_BYTES)]
    [1, 3, 1]
    """
    buckets: list[list[Filling]] = []
    last: dict[DType, _LastBucket] = {}
    for filling in fillings:
        bucket = last.get(filling.dtype)
        if bucket is None or bucket.room_bytes <= 0:
            bucket = last[filling.dtype] = _LastBucket([], first_bytes if bucket is None else other_bytes)
            buckets.append(bucket.fillings)
        bucket.fillings.append(filling)
        bucket.room_bytes -= filling.num_bytes
    return buckets


def _sent(entry: NamedParameter) -> Filling:
    """A weight as ranks send it: of a packed one its elements in bytes, without its scales."""
    one = entry.parameter
    return Filling(one.dtype, one.num_bytes) if one.stored_bytes is None else Filling(DType.UINT8, one.packed_bytes)


@dataclass(slots=True)
class _LastBucket:
    """The bucket of a type that is being filled, and bytes until it is full."""

    fillings: list[Filling]
    room_bytes: int
