"""What gloo's threads hold of a message that is there already.

They hold its tensors for a moment after they have said that it is there, or for longer where they have to wait for the
processor; no card's would. Bytes that are compared with a plan are counted when they have let go.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

THREADS_NAME = "pt_gloo_runloop"
"""What torch calls the threads that carry out gloo's operations (``ProcessGroupGloo::runLoop``)."""
REST_SECONDS = 0.0002
LONGEST_SECONDS = 1.0
"""On machines whose kernel does not say what a thread does, and for operations that go on."""


def let_go_of_messages() -> None:
    """From now on whoever has waited for a message goes on when gloo's threads have let go of it. DDP sends a model's
    weights at its start by a function that waits within."""
    wait, broadcast = dist.Work.wait, dist._broadcast_coalesced

    def wait_and_rest(self: dist.Work, *args: object) -> object:
        found = wait(self, *args)
        rest()
        return found

    def broadcast_and_rest(*args: Any) -> None:
        broadcast(*args)
        rest()

    dist.Work.wait = wait_and_rest
    dist._broadcast_coalesced = broadcast_and_rest


def rest() -> None:
    """Sleep until no thread of gloo's has anything to do: a thread that waits for its next operation is asleep."""
    threads = list(gloo_threads())
    until = time.monotonic() + LONGEST_SECONDS
    time.sleep(REST_SECONDS)
    while any(is_awake(thread) for thread in threads) and time.monotonic() < until:
        time.sleep(REST_SECONDS)


def gloo_threads() -> Iterator[Path]:
    for thread in Path("/proc/self/task").iterdir():
        try:
            if (thread / "comm").read_text().strip() == THREADS_NAME:
                yield thread
        except OSError:
            continue  # it has ended


def is_awake(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "S"
    except OSError:
        return False
