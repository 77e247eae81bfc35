"""How long the steps that are left will take, from those that were taken.

Steps that a run begins with are slower than the others (kernels are chosen, the allocator asks the driver for memory, a
CPU rank follows every storage), so they count only until there is another. What lies between steps, as evaluation and
checkpoints, is in none. Of the last steps the slowest and the fastest tenth are left out: one that waited for a disk or
another process says nothing of the rest, but samples of all lengths do.
"""

from collections import deque

WINDOW = 100
"""Steps that are remembered. A choice."""
TRIMMED_FRACTION = 0.1
"""Of the steps, at either end. A choice."""


class Remaining:
    """``num_slow_steps``: steps at the start of this process that are known to be slow."""

    def __init__(self, num_slow_steps: int = 1) -> None:
        self._num_slow = max(1, num_slow_steps)
        self._fastest_slow: float | None = None
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        """Count a step."""
        if self._num_slow:
            self._num_slow -= 1
            self._fastest_slow = seconds if self._fastest_slow is None else min(self._fastest_slow, seconds)
        else:
            self._seconds.append(seconds)

    @property
    def step_seconds(self) -> float:
        """What a step is taken to last; 0 before the first."""
        if not self._seconds:
            return self._fastest_slow or 0.0
        ordered = sorted(self._seconds)
        num_trimmed = int(len(ordered) * TRIMMED_FRACTION)
        if len(ordered) < 3:
            return ordered[0]
        kept = ordered[num_trimmed : len(ordered) - num_trimmed]
        return sum(kept) / len(kept)
