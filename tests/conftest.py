"""Settings of all tests: hypothesis draws the same examples everywhere, takes the time it needs; no width is set, and
Ctrl-C is heard.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("vlmplan", derandomize=True, deadline=None, database=None)
settings.load_profile("vlmplan")
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session", autouse=True)
def hearing_ctrl_c() -> Iterator[None]:
    """A shell without job control starts what runs in the background with SIGINT ignored, and so would every process
    that a test starts."""
    found = signal.getsignal(signal.SIGINT)
    if found is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)
