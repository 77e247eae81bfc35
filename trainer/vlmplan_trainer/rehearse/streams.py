"""Streams of the GPU that is not there: everything runs in one order, but memory remembers on which it was asked for.

torch's allocator keeps what one stream frees for that stream (``BlockComparatorSize`` in ``CUDACachingAllocator.cpp``).
"""

from itertools import count
from typing import Any

DEFAULT = 0
_entered: list["Stream"] = []


def current_number() -> int:
    """The number of the stream that work goes to now."""
    return _entered[-1].number if _entered else DEFAULT


class Stream:
    """``number`` is its own, ``DEFAULT`` that of the device's first."""

    _numbers = count(DEFAULT)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(Stream._numbers)

    def __enter__(self) -> "Stream":
        _entered.append(self)
        return self

    def __exit__(self, *args: object) -> None:
        _entered.pop()

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> "Event":
        return event or Event()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


DEFAULT_STREAM = Stream()


def current() -> Stream:
    return _entered[-1] if _entered else DEFAULT_STREAM


class Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Any) -> float:
        return 0.0
