"""What README.md shows of the project: the first sentence of every module, and what commands print. To rewrite both:

PYTHONPATH=tests python tests/tools/readme.py
"""

import ast
import os
import re
import shlex
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from unittest import mock

from cli_calls import call

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SECTION = re.compile(r"(?<=## Layout\n\n)```\n.*?```\n", re.DOTALL)
SAMPLE = re.compile(r"`vlmplan ([^`]+)`(?: on (\d{4}-\d\d-\d\d))? prints:\n\n(```\n.*?```\n)", re.DOTALL)
"""A command, the day on which it is asked where prices have an age, and what it prints."""
SOURCES = (Path("planner/vlmplan"), Path("trainer/vlmplan_trainer"))
COLUMNS = 100
"""Of the terminal that is shown."""
ONE_LINE_FOLDERS = (
    "families",
    "images",
    "ops",
    "rules",
    "catalog",
    "emit",
    "answers",
    "render",
    "cli",
    "data",
    "rehearse",
)
"""Many small files of one kind: the folder is described, not each of them."""
HALF_LINE = 96
OTHERS = {
    "gpu_catalog.yaml": "GPUs and offers, with sources, licences and dates",
    "constraints.txt": "the versions that the tests pass with",
    "tests/": "mirrors the tree; measured/ published peaks, claims/ what guides say, tools/ scripts that rewrite data",
    ".ci/run": "what a change has to pass",
}


def summary(file: Path) -> str:
    """The first sentence of a module, without the full stop."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    text = " ".join(docstring.split("\n\n")[0].split()).replace("``", "")
    sentence = re.split(r"(?<=[a-z)\"'])\. |\.$", text)[0]
    if len(sentence) <= HALF_LINE:
        return sentence
    return sentence[: max(sentence.rfind(mark, 0, HALF_LINE) for mark in (": ", ", "))]


def lines() -> Iterator[str]:
    for source in SOURCES:
        files = sorted((ROOT / source).rglob("*.py"), key=lambda file: (file.parent, file.name))
        for file in files:
            inside = file.relative_to(ROOT / source)
            is_package = file.name == "__init__.py"
            if not is_package and any(folder in inside.parts for folder in ONE_LINE_FOLDERS):
                continue
            depth = len(inside.parts) - (1 if is_package else 0)
            name = f"{(source if len(inside.parts) == 1 else inside.parent.name)}/" if is_package else file.name
            yield f"{'  ' * depth}{name}".ljust(28) + summary(file)
    for name, text in OTHERS.items():
        yield name.ljust(28) + text


def layout() -> str:
    return "```\n" + "\n".join(line.rstrip() for line in lines()) + "\n```\n"


def with_samples(text: str) -> str:
    """The text with what its commands print now, on the days that it names."""

    def sample(found: re.Match[str]) -> str:
        words, day, shown = found.groups()
        on = date.fromisoformat(day) if day else date.today()
        columns = mock.patch.dict(os.environ, COLUMNS=str(COLUMNS))
        with mock.patch("vlmplan.cli.recommend.today", return_value=on), columns:
            printed = call(*shlex.split(words)).out
        return found.group().replace(shown, f"```\n{printed}```\n")

    return SAMPLE.sub(sample, text)


if __name__ == "__main__":
    README.write_text(with_samples(SECTION.sub(lambda _: layout(), README.read_text())))
