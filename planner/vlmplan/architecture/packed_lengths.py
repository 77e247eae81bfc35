"""Sequences that are packed one after another into the tokens of a batch: counted, not written out.

A tower over packed patches calls attention once for every image, or every window of one. As many calls as a real run
has are recorded one by one; of more, each recorded call counts for several equal ones, so that a micro batch of a
million images is planned as quickly as one of a thousand.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_CALLS = 1024
"""Calls of one block that are recorded one by one. A choice: from here on a call more changes a peak by less than a
thousandth of what attention holds."""


@dataclass(frozen=True, slots=True)
class PackedLengths:
    """``runs`` of equal sequences in each image (or sound), (length, how many), in order; ``num_images`` times."""

    runs: tuple[tuple[int, int], ...]
    num_images: int = 1

    @property
    def count(self) -> int:
        return self.num_images * sum([count for _, count in self.runs])

    @property
    def num_tokens(self) -> int:
        return self.num_images * sum([count * length for length, count in self.runs])

    def divided(self, factor: int) -> "PackedLengths":
        """The sequences with a ``factor``-th of their tokens each."""
        return PackedLengths(tuple([(length // factor, count) for length, count in self.runs]), self.num_images)

    @property
    def num_pairs(self) -> int:
        """Pairs of tokens that see each other."""
        return self.num_images * sum([count * length**2 for length, count in self.runs])

    @property
    def first(self) -> int:
        return self.runs[0][0]

    @property
    def longest(self) -> int:
        return max(length for length, _ in self.runs)

    def calls(self) -> Iterator[tuple[int, int]]:
        """(length, sequences of that length) of each call that is recorded: one in its order, or many at once."""
        count = self.count
        if count <= MAX_CALLS:
            for _ in range(self.num_images):
                for length, of_run in self.runs:
                    yield from [(length, 1)] * of_run
            return
        totals: Counter[int] = Counter()
        for length, of_run in self.runs:
            totals[length] += of_run * self.num_images
        for length, total in totals.items():
            yield from ((length, share) for share in shares(total, max(1, MAX_CALLS * total // count)))


def shares(total: int, most: int = MAX_CALLS) -> Sequence[int]:
    """``total`` things as equal parts, each thing one of its own where there are at most ``most``.

    >>> shares(3), shares(7, 3)
    ([1, 1, 1], [3, 2, 2])
    """
    count = min(total, most)
    size, rest = divmod(total, count)
    return [size + 1] * rest + [size] * (count - rest)
