"""``vlmplan web``: it says where the page is, serves it, and ends with Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from cli_calls import USAGE, call
from vlmplan.search.shared_traces import MOST_KEPT


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of its own, and the address that it printed."""
    command = [sys.executable, "-c", "from vlmplan.cli import main; main()", "web", "--no-browser"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as web:
        assert web.stdout is not None
        line = web.stdout.readline()
        found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert found is not None, line
        try:
            yield web, found[1]
        finally:
            web.send_signal(signal.SIGINT)


def answer(address: str, **question: Any) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}answer", json.dumps(question).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as found:
        return json.load(found)


def test_the_page_is_served_until_it_is_told_to_end():
    with served() as (web, address):
        found = answer(address, ask="first look", options={"model": "gpt2", "gpu": "t4"})
        assert found["document"]["model"]["id"] == "gpt2"
        web.send_signal(signal.SIGINT)
        assert web.wait(timeout=10) == 0


@pytest.mark.sweep
def test_a_server_holds_no_more_after_many_searches_than_after_those_whose_traces_it_keeps():
    held: list[int] = []
    with served() as (web, address):
        for seq_len in range(128, 128 + 3 * MOST_KEPT):
            options = {"model": "smollm2-135m", "gpu": ["t4", "rtx-4090"], "seq_len": str(seq_len)}
            assert answer(address, ask="recommend", options=options)["document"]["plans"]
            held.append(psutil.Process(web.pid).memory_info().rss)
    # Python's own heap is full after some more of them; each search takes 5 MiB or more while it is made.
    assert held[-1] - held[2 * MOST_KEPT] < (MOST_KEPT - 1) * 5 * 2**20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--force",), "--force goes with --export"),
        (("--pyodide", "here"), "--pyodide goes with --export"),
        (("--export", "site", "--port", "8000"), "--port goes without --export"),
        (("--export", "site", "--no-browser"), "--no-browser goes without --export"),
    ],
)
def test_options_of_the_server_and_of_files_are_not_taken_for_each_other(words: tuple[str, ...], said: str):
    found = call("web", *words)
    assert (found.code, said in found.err) == (USAGE, True)


def test_a_port_that_is_none_is_refused():
    assert "'99999' is not a port, a whole number from 0 to 65535" in call("web", "--port", "99999").err
