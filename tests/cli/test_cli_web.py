"""``vlmplan web``: it says where the page is, serves it, and ends with Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

from cli_calls import call


def test_the_page_is_served_until_it_is_told_to_end():
    code = "from vlmplan.cli import main; main()"
    command = [sys.executable, "-c", code, "web", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as web:
        assert web.stdout is not None
        line = web.stdout.readline()
        found = re.fullmatch(r"The page is at (http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert found is not None, line
        question = json.dumps({"ask": "first look", "options": {"model": "gpt2", "gpu": "t4"}}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{found[1]}answer", question, headers), timeout=30
        ) as answer:
            assert json.load(answer)["document"]["model"]["id"] == "gpt2"
        web.send_signal(signal.SIGINT)
        assert web.wait(timeout=10) == 0


def test_a_port_that_is_none_is_refused():
    assert "99999 is not in the range" in call("web", "--port", "99999").err
