"""What gloo's threads hold of a message that is there already.

They hold its tensors for a moment after they have said that it is there, or for longer where they have to wait for the
processor; no card's would. What is measured of a phase begins when they have let go.
"""

import time
from collections.abc import Iterator
from pathlib import Path

THREADS_NAME = "pt_gloo_runloop"
"""What torch calls the threads that carry out gloo's operations (``ProcessGroupGloo::runLoop``)."""
REST_SECONDS = 0.0002
"""Between two looks at them. A choice."""
LONGEST_SECONDS = 1.0
"""On machines whose kernel does not say what a thread does, and for operations that go on."""


def rest() -> None:
    """Sleep until no thread of gloo's has anything to do: a thread that waits for its next operation is asleep."""
    threads = list(gloo_threads())
    if not threads:
        return
    until = time.monotonic() + LONGEST_SECONDS
    time.sleep(REST_SECONDS)
    while any(is_awake(thread) for thread in threads) and time.monotonic() < until:
        time.sleep(REST_SECONDS)


def gloo_threads() -> Iterator[Path]:
    """Gloo's threads of this process; none where the kernel does not list them."""
    tasks = Path("/proc/self/task")
    for thread in tasks.iterdir() if tasks.is_dir() else ():
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
