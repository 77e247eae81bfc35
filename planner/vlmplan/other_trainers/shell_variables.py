"""The variables of a shell script, as far as they are known at one place of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.shell_branches import TESTS
from vlmplan.other_trainers.shell_words import Span

MAX_CHARACTERS = 2**15
"""Of a script, and of all that its variables stand for. A choice: scripts of runs have a few thousand."""
MAX_TEXT = 200
"""Characters of the script that are kept for what is not known. A choice."""
ELEMENTS, BETWEEN = "[@]", "\1"
"""Of an array: behind the name under which its words are kept, and between them."""
UNKNOWN = "\0"
"""Stands in a word for what only running the script would tell."""

EXPORTS_ALL = re.compile(r"[-+][a-zA-Z]*a[a-zA-Z]*|allexport")
"""Of ``set``: with ``-a`` or ``-o allexport`` commands get every variable that is set after it."""


class OpenWord(str):
    """A word with ``UNKNOWN`` in it, and the text of the script for each."""

    __slots__ = ("texts",)
    texts: list[str]

    @property
    def written(self) -> str:
        first, *others = self.split(UNKNOWN)
        return first + "".join(text + other for text, other in zip(self.texts, others, strict=True))


def word_of(text: str, texts: list[str]) -> str:
    """The word that a text is; the text of the script for each ``UNKNOWN`` is taken from the front of ``texts``."""
    count = text.count(UNKNOWN)
    if not count:
        return text
    word = OpenWord(text)
    word.texts, texts[:count] = texts[:count], []
    return word


def texts_of(words: Iterable[str]) -> list[str]:
    """The text of the script for each ``UNKNOWN`` in these words."""
    return [text for word in words if isinstance(word, OpenWord) for text in word.texts]


def written(word: str) -> str:
    """A word as the script has it, as far as only running it would tell."""
    return word.written if isinstance(word, OpenWord) else word


def settled(word: str) -> str:
    """A word; ``Unwritten`` where only running the script would tell."""
    return Unwritten(written(word)) if UNKNOWN in word else word


@dataclass(slots=True)
class _Block:
    """A branch, loop, function or subshell: what closes it, what was known before, and what its branches change."""

    closer: str
    before: dict[str, str]
    changed: set[str] = field(default_factory=set[str])


class Variables:
    """What is known of variables at one place of the script."""

    def __init__(self, source: str, folder: Path | None = None) -> None:
        self.source, self.folder = source, folder
        self.values: dict[str, str] = {}
        self.places: dict[str, Span] = {}
        self.exported: set[str] = set()
        """Names of those that commands get: others are the shell's own."""
        self.exports_all = False
        self.texts: dict[str, list[str]] = {}
        """Text of the script for each ``UNKNOWN`` in the value of a variable, or in the words of an array, in order."""
        self._blocks: list[_Block] = []
        self._is_conditional = False
        self._num_characters = 0

    def value(self, name: str) -> str | None:
        """The value; None where the script does not set it. Raises InputError where variables stand for more than any
        run needs: each may hold the one before it several times."""
        found = self.values.get(name)
        self._num_characters += len(found or "")
        if self._num_characters > MAX_CHARACTERS:
            raise InputError(f"{self.source}: its variables stand for more than {MAX_CHARACTERS:,} characters")
        return found

    def assign(self, match: re.Match[str], place: Span, texts: Sequence[str]) -> None:
        """``texts``: as ``self.texts`` has them."""
        name, value = match[1], match[3]
        self.places[name] = place
        self.exported |= {name} if self.exports_all else set()
        self._keep(name, texts, appends=bool(match[2]))
        if match[2]:
            before = self.value(name)
            value = UNKNOWN if before is None else before + value
        is_sure = not self._is_conditional or self.values.get(name) == value
        self.values[name] = value if is_sure else UNKNOWN

    def set_options(self, words: Sequence[str]) -> None:
        """``set -a`` and ``set +a``."""
        found = [word for word in words if EXPORTS_ALL.fullmatch(word)]
        if found:
            self.exports_all = found[-1].startswith("-") or "-o" in words

    def set_default(self, name: str, value: str) -> None:
        """``${NAME:=value}`` of a variable that has none."""
        self.values[name] = UNKNOWN if self._is_conditional else value

    def _keep(self, name: str, texts: Sequence[str], *, appends: bool) -> None:
        self.texts[name] = [*(self.texts.get(name, []) if appends else []), *texts]

    def assign_words(self, name: str, words: Sequence[str], texts: Sequence[str], *, appends: bool) -> None:
        """``NAME=(...)``, or ``NAME+=(...)``; ``texts``: as ``self.texts`` has them."""
        self._keep(name + ELEMENTS, texts, appends=appends)
        before = self.value(name + ELEMENTS) if appends else ""
        parts = [*([before] if before else []), *words]
        value = UNKNOWN if before is None else BETWEEN.join(parts)
        is_sure = not self._is_conditional or self.values.get(name + ELEMENTS) == value
        self.values |= {name: UNKNOWN, name + ELEMENTS: value if is_sure else UNKNOWN}

    def words(self, name: str) -> list[str]:
        """The words of an array."""
        value = self.value(name + ELEMENTS)
        return [UNKNOWN] if value is None else value.split(BETWEEN) if value else []

    def texts_of(self, name: str, value: str, otherwise: str) -> list[str]:
        """Text of the script for each ``UNKNOWN`` in the value of a variable: ``otherwise`` where nothing of it is
        known, or not which text it was."""
        count = value.count(UNKNOWN)
        found = [] if value == UNKNOWN else self.texts.get(name, [])
        return list(found) if len(found) == count else [otherwise[:MAX_TEXT]] * count

    def forget(self, names: Iterable[str]) -> None:
        self.values |= {key: UNKNOWN for name in names for key in (name, name + ELEMENTS)}

    # -- what may not be run, or more than once ------------------------------------------------------------------

    def pass_operator(self, operator: str, program: str) -> None:
        """Go on behind an operator; ``program`` stands before it. What follows a test is run or not."""
        is_chain = operator in ("&&", "||")
        self._is_conditional = is_chain and (self._is_conditional or operator == "||" or program in TESTS)
        if operator == "(":
            self.open(")")
        elif operator == ")":
            self.close(")")
        elif operator == ";;":
            self.branch()

    def open(self, closer: str) -> None:
        self._blocks.append(_Block(closer, dict(self.values)))

    def branch(self) -> None:
        """``else``: what was known before the block is known again."""
        if self._blocks:
            block = self._blocks[-1]
            block.changed |= self._changed_since(block.before)
            self.values = dict(block.before)

    def close(self, closer: str) -> None:
        """The end of a block; what a subshell changes is gone, what others change is known to nobody."""
        if self._blocks and self._blocks[-1].closer == closer:
            block = self._blocks.pop()
            changed = block.changed | self._changed_since(block.before) if closer != ")" else ()
            self.values = block.before | dict.fromkeys(changed, UNKNOWN)

    def _changed_since(self, before: Mapping[str, str]) -> set[str]:
        return {name for name, value in self.values.items() if before.get(name) != value}
