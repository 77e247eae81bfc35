"""Published threads (``threads.yaml``) asked again: what ``vlmplan diagnose`` says of them, kept in ``replayed.json``.

PYTHONPATH=tests python tests/diagnosis/threads.py     rewrites it, in some ten seconds
"""

import json
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from cli_calls import DONE, call, isolate

HERE = Path(__file__).parent
KEPT = HERE / "replayed.json"
DAY = date(2026, 11, 21)
"""On which prices are asked for."""


def threads() -> list[dict[str, Any]]:
    return yaml.safe_load((HERE / "threads.yaml").read_text(encoding="utf-8"))


def on_the_day() -> Any:
    """Within, prices are asked for on ``DAY``."""

    class Day(date):
        @classmethod
        def today(cls) -> date:
            return DAY

    return mock.patch("vlmplan.commands.day.date", Day)


def replayed(thread: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a thread's log beside its setup, in the folder where this is called."""
    for name, content in {"log.txt": thread["log"], **thread.get("files", {})}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
    with on_the_day():
        answer = call("diagnose", "log.txt", *thread["options"], "--json")
    assert answer.code == DONE, answer.err
    return answer.document


def kept(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of an answer."""
    to_fit = document["to_fit"]
    names = ("phase", "part", "steps_done", "num_steps", "is_late", "cause", "sentences")
    changes = None if to_fit is None else [change["change"] for change in to_fit["changes"]]
    command = None if to_fit is None else to_fit["command"]
    return {name: document[name] for name in names} | {"changes": changes, "command": command}


def quoted(thread: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The sentences of an answer that a thread's row shows."""
    lines = [*answer["sentences"]]
    if answer["changes"]:
        lines.append(f"To fit on the same GPUs: {' + '.join(answer['changes'])}")
    return [next(line for line in lines if line.startswith(start)) for start in thread["says"]]


def table() -> str:
    """A row for each thread."""
    answers = json.loads(KEPT.read_text(encoding="utf-8"))
    lines = ["| thread | what it found | what vlmplan says | the same? |", "|---|---|---|---|"]
    for thread in threads():
        says = "; ".join(quoted(thread, answers[thread["name"]])).replace("|", "\\|")
        link = f"[{thread['thread']}]({thread['link']})"
        lines.append(f"| {link}: {thread['title']} | {thread['found']} | {says} | {thread['agrees']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for each in threads():
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            isolate(patch, Path(folder))
            patch.chdir(folder)
            found[each["name"]] = kept(replayed(each))
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
