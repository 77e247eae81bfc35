"""Settings of all tests: hypothesis draws the same examples everywhere and takes the time it needs, no width is set,
Ctrl-C and a hangup are heard, a process computes with one thread, since as many of them run as there are cores, and
what it imports is compiled once for all of them.
"""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# hypothesis also tries the numbers that stand in modules that are imported by then, so that how often an assumption
# fails depends on the tests before; and a busy machine is no fault of a strategy.
UNCHECKED = (HealthCheck.filter_too_much, HealthCheck.too_slow)
settings.register_profile(
    "vlmplan", max_examples=30, derandomize=True, deadline=None, database=None, suppress_health_check=UNCHECKED
)
settings.load_profile("vlmplan")
os.environ.pop("COLUMNS", None)
os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported; threads that wait for each other take as much time
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process that a test starts would compile torch again: 2.4 s
sys.dont_write_bytecode = False
gc.disable()  # imports and collection make objects that stay; pytest_collection_finish turns it on again

TESTS = Path(__file__).parent
TRAINER = TESTS / "trainer"
OF_FAMILIES = "test_families_"
"""How files begin that hold a family of models to transformers' own, case by case. Of most of their tests all
cases are in the sweep: what all families share fails in any of them, and recorded rehearsals hold each family too."""
FAMILIES_ONE_IN = 16
"""Of so many of their tests one is in every run. A choice: README's command may take 300 s on two cores of any hour."""
WHOLE = frozenset({"claims", "rehearsed"})
"""Folders of which every case is in every run: they hold the product's promises."""
LEAST_CASES = 2
"""Of a test that is thinned out elsewhere. A choice: many have a model or an engine as one of two or three cases."""
ONE_IN = 64
"""One of so many further cases of such a test is in every run. A choice: with one in sixteen README's command took
353 s on two slower cores, and may take 300 s."""

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of ``torch.distributed``'s launchers."""


@pytest.fixture(scope="session", autouse=True)
def hearing_signals() -> Iterator[None]:
    """What a shell without job control starts in the background ignores SIGINT, and what nohup starts SIGHUP; every
    process that a test starts would ignore them too."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    found = {signum: signal.getsignal(signum) for signum in defaults}
    for signum, default in defaults.items():
        if found[signum] is signal.SIG_IGN:
            signal.signal(signum, default)
    yield
    for signum, handler in found.items():
        signal.signal(signum, handler)


@pytest.fixture(autouse=True)
def single_rank() -> None:
    """Libraries that tests and their fixtures start say in the environment which of how many ranks this process is,
    which later tests and their processes would believe."""
    for name in RANKS:
        os.environ.pop(name, None)


def pytest_configure(config: pytest.Config) -> None:
    """Of several workers each takes the next file in the order below, and not the file with the most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sweep-one-in", type=int, default=1, help="of the cases that are in the sweep one in N, always the same"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not want
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked ``one_in(n)`` the first of every n cases is in every run, the others are in the sweep. Of tests
    of families, and of those with several cases, that are not marked the first case is, and of the others one in so
    many, chosen by a checksum of their names.

    The trainer's tests come first: theirs are the files that take longest, which a worker should not find last.
    """
    items.sort(key=lambda item: not item.path.is_relative_to(TRAINER))
    places: Counter[str] = Counter()
    in_every_run = [item for item in items if item.get_closest_marker("sweep") is None]
    numbers = Counter(_function(item) for item in in_every_run)
    for item in in_every_run:
        marker = item.get_closest_marker("one_in")
        function = _function(item)
        if item.path.name.startswith(OF_FAMILIES) and crc32(function.encode()) % FAMILIES_ONE_IN:
            is_left_out = True
        elif marker is not None:
            is_left_out = places[function] % marker.args[0] > 0
        else:
            is_chosen = places[function] == 0 or crc32(item.nodeid.encode()) % ONE_IN == 0
            is_left_out = not is_chosen and _is_thinned(item, numbers[function])
        if is_left_out:
            item.add_marker(pytest.mark.sweep)
        places[function] += 1
    _thin_out(config, items)


def _is_thinned(item: pytest.Item, num_cases: int) -> bool:
    folder = item.path.relative_to(TESTS).parts[0]
    return item.path.name.startswith(OF_FAMILIES) or (folder not in WHOLE and num_cases >= LEAST_CASES)


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave one in ``--sweep-one-in`` of the cases in the sweep, chosen by a checksum of their names."""
    one_in: int = config.getoption("--sweep-one-in") or 1
    left: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        is_swept = item.get_closest_marker("sweep") is not None
        left[not is_swept or crc32(item.nodeid.encode()[::-1]) % one_in == 0].append(item)
    items[:] = left[True]
    config.hook.pytest_deselected(items=left[False])


def _function(item: pytest.Item) -> str:
    """The test of which this is a case."""
    return item.nodeid.partition("[")[0]


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays: the collector of reference cycles need not look at it, and looks
    seldom at what tests keep: every 700 objects it takes a quarter of their time, every 20,000 a tenth."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, without the user's catalogs, caches and colours; folders in which all tests want it say so."""
    from cli_calls import isolate

    isolate(monkeypatch, tmp_path)
