"""All-gathers of weights, counted: which there are (``gathered_weights``) does not depend on the number of ranks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class GatherCounts:
    """All-gathers of weights of one phase: how many, how many of them carry trained and frozen weights,
    and how many weights of which size (in bytes, not padded) they carry, trained and frozen."""

    num_gathers: int = 0
    num_with_trained: int = 0
    num_with_frozen: int = 0
    trained: Counter[int] = field(default_factory=Counter[int])
    frozen: Counter[int] = field(default_factory=Counter[int])

    def add(self, trained: Sequence[int], frozen: Sequence[int]) -> None:
        """One more, of weights of these sizes."""
        self.num_gathers += 1
        self.num_with_trained += bool(trained)
        self.num_with_frozen += bool(frozen)
        for size in trained:
            self.trained[size] += 1
        for size in frozen:
            self.frozen[size] += 1

    def after(self, earlier: "GatherCounts", times: int = 1) -> "GatherCounts":
        """What was sent after ``earlier``, ``times`` over.

        >>> GatherCounts(7, 7, 0, Counter({4: 9})).after(GatherCounts(5, 5, 0, Counter({4: 6})), times=2)
        GatherCounts(num_gathers=4, num_with_trained=4, num_with_frozen=0, trained=Counter({4: 6}), frozen=Counter())
        """
        return GatherCounts(
            (self.num_gathers - earlier.num_gathers) * times,
            (self.num_with_trained - earlier.num_with_trained) * times,
            (self.num_with_frozen - earlier.num_with_frozen) * times,
            Counter({size: count * times for size, count in (self.trained - earlier.trained).items()}),
            Counter({size: count * times for size, count in (self.frozen - earlier.frozen).items()}),
        )

    def plus(self, other: "GatherCounts") -> "GatherCounts":
        return GatherCounts(
            self.num_gathers + other.num_gathers,
            self.num_with_trained + other.num_with_trained,
            self.num_with_frozen + other.num_with_frozen,
            self.trained + other.trained,
            self.frozen + other.frozen,
        )
