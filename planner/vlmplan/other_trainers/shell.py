"""The commands of a shell script, with the variables that they are started with: parsed, never run.

What people keep in such a file is one command over many lines with variables before it. That much of a shell's grammar
is followed: quotes, comments, continued lines, assignments, ``export``, ``$NAME``, ``${NAME:-default}``, and arithmetic
in ``$((...))`` and ``$(expr ...)``. What cannot be known without running it is refused by its text.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from vlmplan.errors import InputError
from vlmplan.json_reader import shown

MAX_CHARACTERS = 200_000
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VARIABLE = re.compile(
    r"\$(?:\(\((?P<sum>[^()]*(?:\([^()]*\)[^()]*)*)\)\)|\((?P<run>[^()]*)\)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?::?-(?P<default>[^}]*))?\}|(?P<special>[@*#?$!0-9]))"
)
EXPR = re.compile(r"\s*expr\s+(.*)", re.DOTALL)
BREAKS = frozenset("\n;&|")
KEYWORDS = frozenset(("then", "do", "else", "time", "exec", "nohup", "sudo", "env", "export", "!", "{", "("))
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
"""Of whole numbers, as a shell computes them."""
UNKNOWN = "\0"
"""Stands in a word for what only running the script would tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command. ``words`` begin with the program; ``environment`` are the variables that the script sets for it."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    unknown: Mapping[str, str]
    """Text of the script in place of which a word holds ``UNKNOWN``, by the word."""

    @property
    def program(self) -> str:
        return PurePath(self.words[0]).name


def commands_of(script: str, *, source: str) -> list[Command]:
    """Every command of a script, in order. Raises InputError for what no shell reads either, or for a huge one."""
    if len(script) > MAX_CHARACTERS:
        raise InputError(f"{source} has more than {MAX_CHARACTERS:,} characters, which no script of a run needs")
    variables: dict[str, str] = {}
    commands: list[Command] = []
    for words in _Words(script, source).read():
        expanded, unknown = _expanded(words, variables)
        own: dict[str, str] = {}
        while expanded and (expanded[0] in KEYWORDS or ASSIGNMENT.fullmatch(expanded[0])):
            match = ASSIGNMENT.fullmatch(expanded.pop(0))
            if match is not None:
                own[match[1]] = match[2]
        if not expanded:
            variables |= own
            continue
        commands.append(Command(words=tuple(expanded), environment=variables | own, unknown=unknown))
    return commands


@dataclass(slots=True)
class _Word:
    """Parts of a word; each says whether variables in it are replaced."""

    parts: list[tuple[str, bool]]


class _Words:
    """The words of each command of a script, not yet expanded."""

    def __init__(self, script: str, source: str) -> None:
        self._script, self._source = script, source
        self._lines: list[list[_Word]] = [[]]
        self._word: _Word | None = None

    def read(self) -> list[list[_Word]]:
        position = 0
        while position < len(self._script):
            position = self._step(position, self._script[position])
        self._end_word()
        return [line for line in self._lines if line]

    def _step(self, position: int, character: str) -> int:
        """Take in what begins at ``position``, and say where to go on."""
        script = self._script
        if character == "\\" and position + 1 < len(script):
            return self._escape(position)
        if character in "'\"":
            text, position = _quoted(script, position, self._source)
            self._add(text, character == '"')
            return position
        variable = VARIABLE.match(script, position) if character == "$" else None
        if variable is not None:
            self._add(variable[0], True)
            return variable.end()
        if character == "#" and self._word is None:
            end = script.find("\n", position)
            return len(script) if end < 0 else end
        if character.isspace() or character in BREAKS:
            self._end_word()
            if character in BREAKS:
                self._lines.append([])
        else:
            self._add(character, True)
        return position + 1

    def _escape(self, position: int) -> int:
        """A backslash: before the end of a line it continues the command, else it takes the next character as it is."""
        for end in ("\n", "\r\n"):
            if self._script.startswith(end, position + 1):
                return position + 1 + len(end)
        self._add(self._script[position + 1], False)
        return position + 2

    def _add(self, text: str, expands: bool) -> None:
        word = self._word = self._word or _Word([])
        if word.parts and word.parts[-1][1] is expands:
            word.parts[-1] = (word.parts[-1][0] + text, expands)
        else:
            word.parts.append((text, expands))

    def _end_word(self) -> None:
        if self._word is not None:
            self._lines[-1].append(self._word)
            self._word = None


def _quoted(script: str, start: int, source: str) -> tuple[str, int]:
    """The text between quotes, and where to go on."""
    quote, position, text = script[start], start + 1, ""
    while position < len(script) and script[position] != quote:
        if quote == '"' and script[position] == "\\" and script[position + 1 : position + 2] in ('"', "\\", "\n"):
            position += 1
            if script[position] == "\n":
                position += 1
                continue
        text += script[position]
        position += 1
    if position >= len(script):
        line = script.count("\n", 0, start) + 1
        raise InputError(f"{source} has a quote in line {line} that does not end")
    return text, position + 1


def _expanded(words: list[_Word], variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The words with their variables replaced. A word that is one unquoted variable may become several."""
    result: list[str] = []
    unknown: dict[str, str] = {}
    known = dict(variables)
    for word in words:
        text = "".join(_replaced(part, known) if expands else part for part, expands in word.parts)
        if UNKNOWN in text:
            unknown[text] = "".join(part for part, _ in word.parts)
        match = ASSIGNMENT.fullmatch(text)
        if match is not None and all(map(ASSIGNMENT.fullmatch, result)):
            known[match[1]] = match[2]
        result.append(text)
    return result, unknown


def _replaced(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match["sum"] is not None:
            return _computed(_replaced(match["sum"], variables))
        if match["run"] is not None:
            expression = EXPR.fullmatch(match["run"])
            return UNKNOWN if expression is None else _computed(_replaced(expression[1], variables))
        name = match["name"] or match["braced"]
        if name is None:
            return UNKNOWN
        found = variables.get(name)
        if found is None and match["default"] is not None:
            found = _replaced(match["default"], variables)
        return UNKNOWN if found is None else found

    return VARIABLE.sub(value, text)


def _computed(text: str) -> str:
    """The whole number that an expression of whole numbers is."""
    names = re.sub(r"\\?\*", "*", text.strip())
    try:
        return str(_number(ast.parse(names, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < 10**12:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError(shown(ast.dump(node)))


def arguments_of(command: Command, words: tuple[str, ...], *, source: str) -> tuple[list[str], dict[str, object]]:
    """Positional words, and the values of ``--key`` as ``HfArgumentParser`` collects them: true where none follows, a
    list where several do. Raises InputError for a value that cannot be known."""
    positional: list[str] = []
    collected: dict[str, list[str]] = {}
    current: list[str] = positional
    for word in words:
        if UNKNOWN in word:
            raise InputError(
                f"{source}: {shown(command.unknown.get(word, word))} is known only to the shell that runs it; "
                f"write the value"
            )
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            current = collected.setdefault(key.replace("-", "_"), [])
            current += [value] if equals else []
        else:
            current.append(word)
    values: dict[str, object] = {}
    for key, texts in collected.items():
        values[key] = True if not texts else texts[0] if len(texts) == 1 else texts
    return positional, values
