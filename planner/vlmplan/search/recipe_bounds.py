"""Bounds of the bytes that a recipe takes with any batch, by which a search leaves out what cannot fit."""

from typing import NamedTuple

from vlmplan.engines import Engine, ModelStates
from vlmplan.engines.bounds import gathered_bounds, peak_bound, peak_floor
from vlmplan.engines.zero3 import Zero3
from vlmplan.search.micro_batches import MicroBatches, Peaks


class Bounds(NamedTuple):
    """Bytes that tensors take on one GPU."""

    least: int
    most: int


BatchSize = tuple[int, int]
"""(micro batch, accumulation)."""


class RecipeBounds:
    """Bounds of one recipe with any batch, on GPUs that are alike in what these depend on."""

    def __init__(
        self,
        batches: MicroBatches,
        engine: Engine,
        states: ModelStates,
        workspace_bytes: int,
        beside: tuple[int, int] = (0, 0),
        waiting_sample_bytes: int = 0,
    ) -> None:
        """``beside``: bounds of what is evaluated beside training. ``waiting_sample_bytes``: of each sample of a step,
        where all of them are on the GPU together."""
        self._beside = beside
        self._waiting_sample_bytes = waiting_sample_bytes
        self._batches, self._engine, self._states = batches, engine, states
        self._workspace_bytes = workspace_bytes
        self._known: dict[tuple[int, bool], Bounds] = {}

    def at(self, size: BatchSize) -> Bounds:
        """Bounds of a batch that may lie between traced ones."""
        key = (size[0], size[1] > 1)
        bounds = self._known.get(key)
        if bounds is None:
            bounds = self._known[key] = self._of(self._batches.profile(size[0]), accumulates=size[1] > 1)
        return self._with_waiting(bounds, size)

    def close_at(self, size: BatchSize) -> Bounds:
        """Closer: from a trace of that very micro batch, which its estimate needs too."""
        peaks = self._batches.exact_profile(size[0])
        if not isinstance(self._engine, Zero3):
            return self._with_waiting(self._of(peaks, accumulates=size[1] > 1), size)
        most, least = gathered_bounds(self._engine, self._states, self._batches.traced(size[0]).trace)
        bounds = self._of(peaks, accumulates=size[1] > 1, micro_batch_bytes=most)
        bounds = Bounds(least=max(bounds.least, least - peaks.below_bytes), most=bounds.most)
        return self._with_waiting(bounds, size)

    def _with_waiting(self, bounds: Bounds, size: BatchSize) -> Bounds:
        """The lower bound as it is: the highest moment may lie before the first micro batch is there."""
        if not self._waiting_sample_bytes:
            return bounds
        return bounds._replace(most=bounds.most + size[0] * size[1] * self._waiting_sample_bytes)

    def _of(self, peaks: Peaks, *, accumulates: bool, micro_batch_bytes: int | None = None) -> Bounds:
        profile, above_bytes, below_bytes = peaks
        most = peak_bound(
            self._engine, self._states, profile, accumulates=accumulates, micro_batch_bytes=micro_batch_bytes
        )
        least = peak_floor(self._states, profile, self._workspace_bytes)
        least_beside, most_beside = self._beside
        return Bounds(least=max(least - below_bytes, least_beside), most=max(most + above_bytes, most_beside))
