"""Peaks of reserved bytes of replays of the caching allocator, by setup and capacity."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

from vlmplan.memory.allocator import OutOfDeviceMemory, TooMuchReserved


class ReservedPeak(NamedTuple):
    """What torch reserves at most. Where it ``was_short`` of room meanwhile, it gave segments back, and would have
    reserved more with more room. Where it ``ran_out``, nothing made room, and the peak is that without a limit."""

    total_bytes: int
    was_short: bool
    ran_out: bool = False


class ReservedPeaks:
    """Peaks of reserved bytes, each replayed once for all GPUs that have room for it: a capacity changes nothing of a
    replay that never reserves more."""

    def __init__(self) -> None:
        self._unlimited: dict[Hashable, ReservedPeak] = {}
        self._short: dict[tuple[Hashable, int | None], ReservedPeak] = {}
        """Of replays that were short of room, by the setup and the capacity."""
        self._too_large: set[tuple[Hashable, int | None]] = set()
        """Setups that run out of memory, each with the capacity."""

    def total_bytes(
        self, key: Hashable, replay: Callable[[int | None], ReservedPeak], capacity_bytes: int | None
    ) -> int:
        """What ``replay`` of the capacity gives, whose setup is ``key``. Raises OutOfDeviceMemory as it does."""
        known = self._known(key, capacity_bytes) or self._replayed(key, capacity_bytes, replay)
        return known.total_bytes

    def stays_within(
        self,
        key: Hashable,
        replay: Callable[[int | None, int | None], ReservedPeak],
        capacity_bytes: int | None,
        most: int,
    ) -> bool:
        """Whether a replay of the capacity reserves no more than ``most``; it ends as soon as it does."""
        try:
            known = self._known(key, capacity_bytes)
            if known is None:
                known = self._replayed(key, capacity_bytes, lambda capacity: replay(capacity, most))
        except (OutOfDeviceMemory, TooMuchReserved):
            return False
        return known.total_bytes <= most

    def _known(self, key: Hashable, capacity_bytes: int | None) -> ReservedPeak | None:
        """Raises OutOfDeviceMemory where it is known to run out."""
        if (key, capacity_bytes) in self._too_large:
            raise OutOfDeviceMemory
        known = self._unlimited.get(key)
        if known is not None and (capacity_bytes is None or known.total_bytes <= capacity_bytes):
            return known
        return self._short.get((key, capacity_bytes))

    def _replayed(
        self, key: Hashable, capacity_bytes: int | None, replay: Callable[[int | None], ReservedPeak]
    ) -> ReservedPeak:
        try:
            found = replay(capacity_bytes)
        except OutOfDeviceMemory:
            self._too_large.add((key, capacity_bytes))
            raise
        if found.ran_out:
            self._unlimited[key] = ReservedPeak(found.total_bytes, was_short=False)
            self._too_large.add((key, capacity_bytes))
            raise OutOfDeviceMemory
        if found.was_short:
            self._short[key, capacity_bytes] = found
        else:
            self._unlimited[key] = found
        return found
