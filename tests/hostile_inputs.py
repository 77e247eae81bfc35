"""What is given to commands to break them, and what a command may do about it.

An input may be answered or refused. It is a failure of vlmplan if it ends in a traceback, takes more than 20 s or
2 GiB, is refused without a word that says where to look, is answered with a number that cannot be, or is answered
although it makes no sense.
"""

import copy
import json
import math
import resource
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, USAGE, Call, call

MAX_SECONDS = 20
MAX_BYTES = 2 * 2**30
MAX_SENTENCE = 3000
"""Characters: a ds_config with many mistakes names all of them."""

# -- values ----------------------------------------------------------------------------------------------------------

NO_COUNTS = (-1, 0.5, True, "x", "", [1], {}, -(10**23), 10**23, 1e39, 1e308, "\u202e1")
"""What is no number of anything, in JSON."""
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [*NO_COUNTS, 0, 1, 2, 7, 1000, None, False, "auto", "none", "a" * 3000, "\x1b[2J", [], [[]], 1e-320]
    ),
    st.integers(-10, 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
NUMBERS = ("nan", "inf", "-inf", "1e400", "-1", "-1e308", "1" + "0" * 30, "x", "", "0x10", "1,000", "１e9e")


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value within ``value``."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths_of(item, (*path, key))


def with_value(whole: Any, path: Sequence[Any], value: Any) -> Any:
    """``whole`` with another value at ``path``; without it where that is ``...``."""
    whole = copy.deepcopy(whole)
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


@st.composite
def changed(draw: st.DrawFn, sound: Any, *, values: st.SearchStrategy[Any] = VALUES, most: int = 2) -> Any:
    """A document that was sound, with other values in one or two places, or places left out or added."""
    whole = sound
    for _ in range(draw(st.integers(1, most))):
        places = list(paths_of(whole))
        if not places:
            break
        path = draw(st.sampled_from(places))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            whole = with_value(whole, path, ...)
        elif kind == 1:
            whole = with_value(whole, (*path[:-1], f"{path[-1]}x") if isinstance(path[-1], str) else path, draw(values))
        else:
            whole = with_value(whole, path, draw(values))
    return whole


@st.composite
def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """Bytes of a file that was sound: cut, repeated, or with others in between."""
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(len(text), start + 40)))
    strange = [
        b"",
        b"\x00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"[" * 5000,
        b"{",
        b"&a *a",
        b"1e999",
        b'"',
        b"\\ud800",
        b"\x1b",
    ]
    between = draw(st.sampled_from(strange) | st.binary(max_size=6))
    repeated = draw(st.sampled_from([0, 0, 1, 50]))
    return text[:start] + between + text[start:stop] * repeated + text[stop:]


# -- what may come of it ---------------------------------------------------------------------------------------------


class Hang(BaseException):
    """A command took too long."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise Hang after 20 s, and MemoryError from 2 GiB more on."""

    def ring(*_: object) -> None:
        raise Hang

    is_main = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, ring) if is_main else None
    resource.setrlimit(resource.RLIMIT_AS, (now + MAX_BYTES, hard))
    if is_main:
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        if is_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def check(words: Sequence[str], *, names: Sequence[str], must_refuse: bool = False) -> Call:
    """Run a command and raise AssertionError for what must not come of it.

    ``names``: one of them is in every refusal. ``must_refuse``: the input makes no sense.
    """
    with limited():
        found = call(*words)
    assert found.code in (DONE, MENDABLE, USAGE, DOES_NOT_FIT), (words, found.code)
    if found.code in (MENDABLE, USAGE) or not found.out:  # where nothing is for rent, that is a sentence and code 3
        check_sentences(found.err, names)
    else:
        assert not must_refuse, f"taken, though it makes no sense: {words}"
        if "--json" in words:
            check_document(found.out)
    assert "\x1b" not in found.out + found.err
    return found


WAYS_OUT = ("To fit ", "to fit: ", "Cheapest other machine: ", "there: ")
"""What a command ends with where this machine has too little memory, which depends on the machine."""


def check_sentences(text: str, names: Sequence[str]) -> None:
    """Each line is a sentence of vlmplan's, and one of the refusals says where to look."""
    lines = text.splitlines()
    assert lines, "refused without a word"
    refusals = [line for line in lines if line.startswith("vlmplan")]
    assert refusals, text
    allowed = ("vlmplan", "note: ", "caution: ", *WAYS_OUT)
    assert all(line.startswith(allowed) for line in lines), text
    assert all(line.isprintable() and len(line) <= MAX_SENTENCE for line in lines), text
    assert any(name in line for line in refusals for name in names), f"none of {names} in: {text}"


def check_document(text: str) -> None:
    """JSON without Infinity, whose bytes, counts and seconds are none below zero."""

    def refused(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    for path in paths_of(document := json.loads(text, parse_constant=refused)):
        value: Any = document
        for key in path:
            value = value[key]
        if isinstance(value, float):
            assert math.isfinite(value), path
        is_amount = isinstance(path[-1], str) and path[-1].endswith(("_bytes", "_seconds", "num_params", "num_gpus"))
        if is_amount and isinstance(value, int | float):
            assert value >= 0 or path[-1] in ("free_bytes", "peak_difference_bytes"), (path, value)


def empty(folder: Path) -> None:
    """Remove what an example left there."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
