"""Lines for the terminal: how wide they may be, and texts folded to that.

The width is that of the terminal. COLUMNS goes before it, as for every program that rich or click prints of, in a pipe
too (``watch`` sets it). A pipe without it has no width: lines stay whole, for grep and for logs.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence

import click

from vlmplan.plain_text import printable_line

LEAST_COLUMNS = 40
"""Narrower terminals are taken as this wide: nothing could be read on them. A choice."""
MOST_COLUMNS = 1000
"""What says that it is wider is taken as this wide: bars fill a line, and would fill a disk. A choice."""
PIPE_COLUMNS = 80
"""Of bars and plots, which need a width, where there is none."""
HANGING = "  "
"""What the second line of a sentence starts with, beyond the indentation of the first."""
SHELL_WORDS = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*")+""")
CLAUSE_FRACTION, COMMA_FRACTION = 0.4, 0.7
"""A line ends behind a semicolon or a comma, if that leaves it at least so full. A choice."""


def line_width() -> int | None:
    """Columns that a line of standard output may take; None where it may be of any length."""
    columns = os.environ.get("COLUMNS", "").lstrip("0")
    if columns.isdecimal():
        said = int(columns[:9])  # Python reads no number of thousands of digits
    elif sys.stdout.isatty():
        said = shutil.get_terminal_size().columns
    else:
        return None
    return min(max(LEAST_COLUMNS, said), MOST_COLUMNS)


def picture_width() -> int:
    """Columns of bars and plots."""
    return line_width() or PIPE_COLUMNS


def say(*lines: str) -> None:
    """Print sentences to standard output, each folded to the width."""
    width = line_width()
    for line in map(printable_line, lines):
        for part in [line] if width is None else folded(line, width):
            click.echo(part)


def tell(line: str) -> None:
    """Print a sentence to standard error."""
    click.echo(printable_line(line), err=True)


def say_command(lead: str, command: str) -> None:
    """Print a command after words that lead to it; folded so that it can still be pasted into a shell."""
    lead, command = printable_line(lead), printable_line(command)
    width = line_width()
    if width is None or cell_width(f"{lead} {command}") <= width:
        click.echo(f"{lead} {command}")
        return
    say(lead)
    for part in folded_command(command, width):
        click.echo(part)


def folded(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken at blanks, behind a semicolon or comma if one is near.

    >>> folded("fits: 3 of 4 GiB, 1 GiB free; 'fits' keeps 0.5 GiB free", 34)
    ['fits: 3 of 4 GiB, 1 GiB free;', "  'fits' keeps 0.5 GiB free"]
    """
    if cell_width(text) <= width:
        return [text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    words = text[len(indent) :].split(" ")
    lines: list[str] = []
    while words:
        room = width - len(indent)
        count = _words_of_a_line(words, room)
        if count == 0:  # a word that no line has room for
            part = cut(words[0], room, ellipsis="")
            lines.append(indent + part)
            words[0] = words[0][len(part) :]
        else:
            lines.append(indent + " ".join(words[:count]))
            words = words[count:]
        if len(lines) == 1:
            indent += HANGING
    return lines


def _words_of_a_line(words: Sequence[str], room: int) -> int:
    """How many words the next line takes."""
    ends: list[int] = []
    end = -1
    for word in words:
        end += 1 + cell_width(word)
        if end > room:
            break
        ends.append(end)
    if len(ends) == len(words):
        return len(ends)
    for mark, fraction in ((";", CLAUSE_FRACTION), (",", COMMA_FRACTION)):
        for count in range(len(ends), 0, -1):
            if ends[count - 1] >= fraction * room and click.unstyle(words[count - 1]).endswith(mark):
                return count
    return len(ends)


def folded_command(command: str, width: int) -> Iterator[str]:
    """A shell's command in lines that it reads as one; a word is never broken, however long it is."""
    line = HANGING
    for word in SHELL_WORDS.findall(command):
        longer = f"{line} {word}" if line.strip() else line + word
        if line.strip() and cell_width(longer) + len(" \\") > width:
            yield f"{line} \\"
            longer = HANGING * 2 + word
        line = longer
    yield line


def cell_width(text: str) -> int:
    """Columns that a text takes in a terminal: none for colours, two for a wide character.

    >>> cell_width("模型 a"), cell_width(click.style("fits", fg="green"))
    (6, 4)
    """
    text = click.unstyle(text)
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, width: int, ellipsis: str = "...") -> str:
    """``text`` in at most ``width`` columns, its end left out if it must be.

    >>> cut("genesis-cloud", 10), cut("verda", 10)
    ('genesis...', 'verda')
    """
    if cell_width(text) <= width:
        return text
    while cell_width(text) > max(0, width - len(ellipsis)):
        text = text[:-1]
    return (text + ellipsis)[:width]
