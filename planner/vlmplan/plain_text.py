"""Text of others (names, folders, a server's words) made safe to show: what steers a terminal, reorders a line or makes
an SVG no XML is written out as in Python's own strings, ``\\x1b`` and ``\\u202e``. A leaf.

What prints makes it so (``render.lines``, ``render.tables``, ``render.picture``), so that no name has to be looked at
before.
"""

import os
import re
from typing import TextIO

ENDLESS_WORD = re.compile(r"\S{500,}")
OWN_COLOURS = re.compile("(\x1b\\[(?:0|1|[39][0-7])m)")
"""What ``click.style`` writes for a colour, for bold, and for the end of both; nothing worse can be had of them."""


def refuses_colour() -> bool:
    """Whether the user, or his terminal, takes no colour (no-color.org; ``TERM=dumb`` of editors and logs)."""
    return bool(os.environ.get("NO_COLOR")) or is_dumb()


def is_dumb() -> bool:
    """Whether the terminal only prints: it neither moves its cursor nor knows colours."""
    return os.environ.get("TERM", "") in ("dumb", "unknown")


def can_draw(file: TextIO) -> bool:
    """Whether a bar can be drawn: a terminal that moves its cursor, whatever FORCE_COLOR says."""
    return file.isatty() and not is_dumb()


def printable(text: str) -> str:
    """``text`` without characters of control, of writing direction, or of no shape.

    >>> printable("a\\tb\\x1b[2J"), printable("模型")
    ('a\\\\tb\\\\x1b[2J', '模型')
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable_sentence(text: str) -> str:
    """``printable``, with the middle of a word that goes on for ever left out: a name, say, of thousands of letters.

    >>> printable_sentence("unknown key " + "x" * 10**6)[:24], len(printable_sentence("x" * 10**6))
    ('unknown key xxxxxxxxxxxx', 303)
    """
    return ENDLESS_WORD.sub(lambda found: f"{found[0][:200]}...{found[0][-100:]}", printable(text))


def one_line(text: str) -> str:
    """``text`` as a part of a line, where its look matters less: blanks for breaks and for what is not printable.

    >>> one_line(" a\\n\\x1b b ")
    'a b'
    """
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def printable_line(text: str) -> str:
    """``printable``, with the colours that vlmplan itself has put there."""
    if text.isprintable():
        return text
    parts = OWN_COLOURS.split(text)
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(parts))
