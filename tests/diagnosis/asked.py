"""Published threads about GRPO (``asked.yaml``) asked of the command line; what answers is in ``asked.json``.

PYTHONPATH=tests python tests/diagnosis/asked.py     rewrites it, in some seconds
"""

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest
import yaml

from cli_calls import call, isolate
from diagnosis.threads import on_the_day

HERE = Path(__file__).parent
KEPT = HERE / "asked.json"
LEFT_OUT = " ... "
"""In what a thread's answer says: what stands between is not shown."""
ENDS = ("found", "agrees", "open")
"""What is said of a thread behind its answer."""


def questions() -> list[dict[str, Any]]:
    return yaml.safe_load((HERE / "asked.yaml").read_text(encoding="utf-8"))


def answered(thread: Mapping[str, Any]) -> list[list[str]]:
    """For each of a thread's commands the lines of its answer that are shown."""
    return [lines_of(ask["command"], ask["says"]) for ask in thread["asks"]]


def lines_of(command: Sequence[str], says: Sequence[str]) -> list[str]:
    with on_the_day():
        answer = call(*command)
    lines = [*answer.out.splitlines(), *answer.err.splitlines()]
    return [
        part_of(next(line for line in lines if line.startswith(start.partition(LEFT_OUT)[0])), start) for start in says
    ]


def part_of(line: str, says: str) -> str:
    """A line without its bar; where ``says`` leaves a part out, without that."""
    start, left_out, rest = says.partition(LEFT_OUT)
    shown = f"{start}{left_out}{line[line.index(rest) :]}" if rest else line
    return shown.partition("  W")[0].strip()


def section() -> str:
    """Each thread with what is asked in its place."""
    answers = json.loads(KEPT.read_text(encoding="utf-8"))
    return "\n".join(written(thread, answers[thread["name"]]) for thread in questions())


def written(thread: Mapping[str, Any], answers: Sequence[Sequence[str]]) -> str:
    lines = [f"**[{thread['thread']}]({thread['link']})**: {thread['title']}", ""]
    lines += [f"Asked with {thread['setup']}:", "", "```text"]
    for ask, answer in zip(thread["asks"], answers, strict=True):
        command = f"$ vlmplan {shlex.join(ask['command'])}"
        lines += [*(" \\\n    ".join(wrap(command, 114, break_on_hyphens=False))).splitlines(), *answer]
    lines += ["```", ""]
    lines += [f"- What it found: {thread['found']}.", f"- The same? {thread['agrees']}."]
    return "\n".join([*lines, f"- Not answered: {thread['open']}.", ""])


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for each in questions():
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            isolate(patch, Path(folder))
            found[each["name"]] = answered(each)
    KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
