"""The Python of a program: a .py file as it is, a notebook's cells of code one after another.

A line of IPython's own (``%time``, ``!pip install``) becomes a statement that does nothing and is as long, so that
every place in the code is a place in its cell. A notebook that was saved as a .py file has such lines, too.
"""

import ast
import re
from dataclasses import dataclass
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, parse_json_object

LINE_ENDS = re.compile(r"\r\n|\r|\n")
"""Of Python, as ``ast`` counts lines."""
MAGIC = re.compile(r"\s*(?:[%!?]|[\w.,\s\[\]]+=\s*[%!])")
"""A line of IPython's own: ``%magic``, ``!command``, ``?name``, ``x = !command``."""
FOREIGN_CELLS = re.compile(r"\s*%%(?!capture\b|time\b|timeit\b|prun\b)")
"""A cell that is no Python: ``%%bash``, ``%%writefile`` and such."""
SAYS_TRAINING = re.compile(r"\b(?:from_pretrained|get_peft_model|\w*(?:Trainer|Config|Arguments|Collator))\s*\(")
"""Calls that say what is trained."""
NOTHING = "pass"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of code: its place among all cells, and its text as it is."""

    place: int
    text: str
    start: int
    """In the code."""


@dataclass(frozen=True, slots=True)
class ProgramSource:
    """``code`` of a program; ``cells`` where it is a notebook's, None for a .py file."""

    code: str
    cells: tuple[Cell, ...] | None = None
    notebook: str = ""
    """The notebook's own text."""
    text: str = ""
    """That of a .py file with lines of IPython's own."""


def program_source(text: str, *, source: str, is_notebook: bool) -> ProgramSource:
    """The code of a program. Raises InputError for a notebook that is none."""
    if not is_notebook:
        return ProgramSource(code=text) if _is_python(text) else ProgramSource(code=_as_python(text), text=text)
    document = parse_json_object(text, source=source)
    cells = document.get("cells")
    if not isinstance(cells, list):
        raise InputError(f"{source} has no cells; a notebook of nbformat 4 is needed")
    found: list[Cell] = []
    parts: list[str] = []
    start = 0
    for place, cell in enumerate(cast(list[Any], cells)):
        own = _code_of(cell)
        if own is None:
            continue
        found.append(Cell(place=place, text=own, start=start))
        parts.append(_without_mistakes(_as_python(own)) + "\n")
        start += len(parts[-1])
    return ProgramSource(code="".join(parts), cells=tuple(found), notebook=text)


def _code_of(cell: Any) -> str | None:
    """The text of a cell of code; None for others."""
    if not isinstance(cell, dict):
        return None
    holder = cast(JsonDict, cell)
    own = holder.get("source", "")
    if holder.get("cell_type") != "code":
        return None
    return "".join(map(str, cast(list[Any], own))) if isinstance(own, list) else str(own)


def _as_python(text: str) -> str:
    """A cell with IPython's lines made statements that are as long.

    >>> _as_python("if x:\\n    !pip install y\\nz = 1")
    'if x:\\n    pass#install y\\nz = 1'
    """
    if FOREIGN_CELLS.match(text):
        return "".join(_commented(line) for line in text.splitlines(keepends=True))
    lines: list[str] = []
    goes_on = False
    for line in text.splitlines(keepends=True):
        if goes_on:
            lines.append(_commented(line))
        else:
            lines.append(_idle(line) if MAGIC.match(line) else line)
        goes_on = (goes_on or bool(MAGIC.match(line))) and line.rstrip("\r\n").endswith("\\")
    return "".join(lines)


def _without_mistakes(code: str) -> str:
    """A cell, or comments in place of one that neither is Python of this version nor has a part in training."""
    if SAYS_TRAINING.search(code) or _is_python(code):
        return code
    return "".join(_commented(line) for line in code.splitlines(keepends=True))


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _commented(line: str) -> str:
    return "#" + line[1:] if line.strip() else line


def _idle(line: str) -> str:
    """A statement that does nothing, at the line's own indentation."""
    indent, rest = line[: len(line) - len(line.lstrip())], line.lstrip()
    body = rest.rstrip("\r\n")
    end = rest[len(body) :]
    word = NOTHING if len(body) >= len(NOTHING) else "0"
    return indent + word + "#" * (len(body) > len(word)) + body[len(word) + 1 :] + end
