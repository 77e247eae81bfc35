"""Settings of all tests: hypothesis draws the same examples everywhere, takes the time it needs; no width is set, and
Ctrl-C is heard.
"""

import os
import signal
from collections import Counter
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


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not want
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked ``one_in(n)`` the first of every n cases is in every run, the others are in the sweep."""
    places: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is not None:
            function = item.nodeid.partition("[")[0]
            if places[function] % marker.args[0]:
                item.add_marker(pytest.mark.sweep)
            places[function] += 1
