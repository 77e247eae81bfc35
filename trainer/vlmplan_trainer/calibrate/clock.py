"""Measuring one thing again and again for a limited time, and what a part of the calibration may take."""

import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

LEAST_STRETCH_SECONDS = 2e-3
"""What runs shorter is repeated until a stretch of it takes so long: clocks and events tick in microseconds."""
LEAST_REPETITIONS, MOST_REPETITIONS = 3, 50
NUM_WARM = 2
MOST_CALLS = 100
"""Of a stretch on a GPU, all of which wait in its queue at once."""
CALL_SECONDS = 200e-6
"""What the host may take to ask for a call. Assumed: a forward and backward of attention, on a slow host."""
CLOCK_HERTZ = 2e9
"""Cycles a second, at the most, of GPUs of today: what ``torch.cuda._sleep`` counts."""


class TimeIsUp(Exception):
    """A part took longer than it may."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Median, quartiles and number of measurements."""

    value: float
    low: float
    high: float
    repetitions: int

    def as_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high, "repetitions": self.repetitions}


def measured(values: Sequence[float]) -> Measured:
    """The median and quartiles of at least one measurement."""
    ordered = sorted(values)
    last = len(ordered) - 1
    low, high = ordered[last // 4], ordered[last - last // 4]
    return Measured(min(max(statistics.median(ordered), low), high), low, high, len(ordered))


def inverted(seconds: Measured, amount: float) -> Measured:
    """``amount`` per second, for something that takes ``seconds``."""
    return Measured(amount / seconds.value, amount / seconds.high, amount / seconds.low, seconds.repetitions)


def seconds_of(call: Callable[[], object], device: torch.device, limit_seconds: float) -> Measured:
    """What ``call`` takes on the device, once it is warm: the median of as many stretches as the limit has room for."""
    for _ in range(NUM_WARM):
        call()
    one = _stretch(call, device, 1)
    count = max(1, round(LEAST_STRETCH_SECONDS / max(one, 1e-9)))
    count = min(count, MOST_CALLS) if device.type == "cuda" else count
    found: list[float] = []
    end = time.monotonic() + limit_seconds
    while len(found) < LEAST_REPETITIONS or (time.monotonic() < end and len(found) < MOST_REPETITIONS):
        found.append(_stretch(call, device, count) / count)
    return measured(found)


def _stretch(call: Callable[[], object], device: torch.device, count: int) -> float:
    """Seconds of ``count`` calls: between two events of the GPU's own stream, or by the clock on a CPU.

    The GPU is kept busy until the host has asked for all of them: a kernel of 5 us would else take as long as the host
    needs for the next.
    """
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(round(CLOCK_HERTZ * CALL_SECONDS * count))
        first.record()
        for _ in range(count):
            call()
        last.record()
        torch.cuda.synchronize(device)
        return first.elapsed_time(last) / 1e3
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Until a GPU has done what it was asked for; what a CPU is asked for is done by then."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def within(limit_seconds: float) -> Iterator[None]:
    """Raise TimeIsUp inside after ``limit_seconds``; only the main thread of a POSIX system can be reminded so."""

    def remind(signum: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, remind)
    signal.setitimer(signal.ITIMER_REAL, limit_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
