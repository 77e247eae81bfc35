"""The micro batches that a trainer makes of samples: in its order, padded as it pads, for every rank.

Sources: vlmplan's own sampler (``sampler.py``); of Hugging Face's Trainer ``RandomSampler`` and, by length,
``LengthGroupedSampler`` in transformers' ``trainer_pt_utils.py``, of which accelerate hands each rank the next
batch (``BatchSamplerShard``). torch's random numbers are not drawn here: another trainer's order is one like its own.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmplan.data_plan.covering import answers_padded, padded
from vlmplan.data_plan.lengths import Shape, Trained
from vlmplan.data_rules import DataRules, Order
from vlmplan.sampler import epoch_order, packed

MEGABATCHES = 50
"""Batches that are sorted together (``mega_batch_mult``)."""


class MicroBatch(NamedTuple):
    """``num_tokens`` of each row as padded; ``patches``, ``num_images``, ``num_sounds`` and ``real_tokens`` of all rows
    together, ``seconds`` of the longest sound. ``num_answer_tokens`` of each answer as padded, where a decoder of its
    own writes it."""

    num_tokens: int
    patches: int
    num_images: int
    real_tokens: int
    num_sounds: int = 0
    seconds: float = 0.0
    num_answer_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Tokens of a row, its answer included."""
        return self.num_tokens + self.num_answer_tokens

    @property
    def sound_seconds(self) -> float:
        """Seconds of all sounds, padded to the longest."""
        return self.num_sounds * self.seconds


class Ranks(NamedTuple):
    """How samples go to ranks and steps."""

    micro_batch: int
    num_ranks: int
    grad_accum: int

    @property
    def samples_per_step(self) -> int:
        return self.micro_batch * self.num_ranks * self.grad_accum


def rows_of(trained: Trained, rules: DataRules) -> list[Shape]:
    """What a micro batch has in its rows: samples, or several of them packed."""
    return packed_rows(trained) if rules.packs else list(trained.samples.shapes)


def micro_steps(
    rows: Sequence[Shape], trained: Trained, rules: DataRules, ranks: Ranks, *, epoch: int = 0
) -> Iterator[list[MicroBatch]]:
    """The micro batches of all ranks, a micro step at a time, in whole optimizer steps of one epoch of ``rows``; what
    is left over makes no step. Rows that fill not even one make one micro batch."""
    order = order_of([row.length for row in rows], rules, ranks, epoch=epoch, seed=0)
    at_once = ranks.micro_batch * ranks.num_ranks
    num_steps = len(order) // ranks.samples_per_step
    if not num_steps:
        yield [made_of([rows[index] for index in order[: ranks.micro_batch]], trained, rules)]
        return
    for start in range(0, num_steps * ranks.samples_per_step, at_once):
        firsts = range(start, start + at_once, ranks.micro_batch)
        yield [
            made_of([rows[index] for index in order[first : first + ranks.micro_batch]], trained, rules)
            for first in firsts
        ]


def made_of(rows: Sequence[Shape], trained: Trained, rules: DataRules) -> MicroBatch:
    """One micro batch. Packed rows have the limit's length; without padding all have that of the mean."""
    if not rules.pads:
        total = sum([row.tokens for row in rows])
        longest = -(-total // len(rows))
    else:
        longest = trained.limit if rules.packs else max(row.tokens for row in rows)
    blank = trained.samples.blanks.beside(_together(rows))
    return MicroBatch(
        num_tokens=padded(longest + blank.tokens, rules.pads_to, trained.limit),
        patches=sum([row.patches for row in rows]) + blank.patches,
        num_images=sum([row.num_images for row in rows]),
        real_tokens=sum([row.real_tokens for row in rows]),
        num_sounds=sum([row.num_sounds for row in rows]) or blank.num_sounds,
        seconds=max([row.seconds for row in rows]) or blank.seconds,
        num_answer_tokens=answers_padded(max(row.answer_tokens for row in rows), trained.samples, rules.pads_to),
    )


def order_of(lengths: Sequence[int], rules: DataRules, ranks: Ranks, *, epoch: int, seed: int) -> list[int]:
    """The order of an epoch."""
    if rules.order is Order.SEQUENTIAL:
        return list(range(len(lengths)))
    if rules.order is Order.RANDOM or rules.is_bundled:
        by_length = lengths if rules.order is Order.BY_LENGTH else None
        return epoch_order(len(lengths), seed=seed, epoch=epoch, lengths=by_length)
    shuffled = epoch_order(len(lengths), seed=seed, epoch=epoch)
    batch = ranks.micro_batch * ranks.grad_accum
    size = max(1, min(len(lengths) // (batch * 4), MEGABATCHES)) * batch
    parts = [
        sorted(shuffled[start : start + size], key=lambda index: lengths[index], reverse=True)
        for start in range(0, len(shuffled), size)
    ]
    # The longest comes first, so that memory runs out at once if it does.
    longest = max(range(len(parts)), key=lambda place: lengths[parts[place][0]])
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [index for part in parts for index in part]


def packed_rows(trained: Trained) -> list[Shape]:
    """Samples put together into rows of the limit."""
    shapes = sorted(trained.samples.shapes, reverse=True)
    groups = packed([shape.tokens for shape in shapes], trained.limit)
    return [_together([shapes[index] for index in row]) for row in groups]


def _together(shapes: Sequence[Shape]) -> Shape:
    """One row of these samples."""
    sums = Shape(*(sum(values) for values in zip(*shapes, strict=True)))
    return sums._replace(seconds=max(shape.seconds for shape in shapes))
