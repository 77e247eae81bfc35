"""Checks that change the process they run in, each in one of its own that begins with all libraries imported.

``python FILE NAME ...`` of a file that ends with ``forked.main(CHECKS)`` prints what each named function of CHECKS
returns, as JSON: {name: {"found": ...}}, or {"raised": "Type: message"}, or {"died": signal or exit status}.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prepared import run_prepared


def outcomes_of(file: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the named checks of a file found."""
    done = run_prepared(file, names)
    assert done.stdout, done.stderr[-5000:]
    return json.loads(done.stdout)


def main(checks: Mapping[str, Callable[[], Any]]) -> None:
    """Run the checks that the command line names."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not spoil the answer
    json.dump({name: outcome(checks[name]) for name in sys.argv[1:]}, answers)


def outcome(check: Callable[[], Any]) -> dict[str, Any]:
    """What ``check`` returned, raised or died of."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiver)
        try:
            answer = {"found": check()}
        except BaseException as error:
            answer = {"raised": f"{type(error).__name__}: {error}"}
        with os.fdopen(sender, "w") as to:
            json.dump(answer, to)
        os._exit(0)  # process groups of DeepSpeed are slow to fall
    os.close(sender)
    with os.fdopen(receiver) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"died": status}
