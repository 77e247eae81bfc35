"""The commands of a shell script, with the variables that they are started with: parsed, never run.

What people keep in such a file is one command over many lines with variables before it. That much of a shell is
followed: words (``shell_words``), assignments, ``export``, ``$NAME``, ``${NAME:-default}``, arrays, arithmetic in
``$((...))`` and ``$(expr ...)``, and branches between values that are known (``shell_branches``). A variable that is
set in another branch, a loop, a function or by what the script runs has
a value that only running it would tell; what has such a value is refused by its text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path, PurePath

from vlmplan.errors import InputError
from vlmplan.other_trainers.shell_arithmetic import whole_number
from vlmplan.other_trainers.shell_branches import taken_commands
from vlmplan.other_trainers.shell_variables import (
    BETWEEN,
    ELEMENTS,
    MAX_CHARACTERS,
    UNKNOWN,
    OpenWord,
    Variables,
    texts_of,
    word_of,
)
from vlmplan.other_trainers.shell_words import Kind, Part, SimpleCommand, Span, Word, simple_commands

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = re.compile(
    r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*|[1-9](?=:?-))(?:(:?[-=+])(.*))?\})", re.DOTALL
)
"""``${1:-default}`` too: the script is taken to be started without arguments. ``${NAME:=default}`` sets it, and
``${NAME:+text}`` is for one that is set."""
OWN_ARGUMENT = re.compile(r"\$(?:[1-9#@*]|\{[1-9#@*]\})")
SIMPLE_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
SUM = re.compile(r"\$(?:\(\((.*)\)\)|\[(.*)\])", re.DOTALL)
"""Also as bash wrote it before: ``$[...]``."""
EXPR = re.compile(r"(?:\$\(|`)\s*expr\s(.*)[)`]", re.DOTALL)
BARE_NAME = re.compile(r"(?<![$\w{])[A-Za-z_]\w*")
WHOLE_NUMBER = re.compile(r"-?[0-9]{1,12}")
QUOTES_AND_EXPANSIONS = frozenset("$`\\'\"")
STARTERS = frozenset(("exec", "nohup", "sudo", "env"))
"""Programs that start another."""
PREFIXES = frozenset(("then", "do", "time", "!"))
OPENERS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
BRANCHES = frozenset(("else", "elif"))
CHANGED_NUMBER = re.compile(
    r"([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
"""A variable that arithmetic assigns: what ``((A < 4))`` compares stays what it is."""
DECLARATIONS = frozenset(("export", "declare", "typeset", "local", "readonly"))
CHANGES = frozenset(("unset", "read", "let", "mapfile", "readarray", "printf", "getopts"))
"""Programs of the shell that give variables other values."""
ARRAY = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[[@*]\]\}")
OWN_FOLDER = re.compile(
    r"\$\(\s*cd\s+\"?\$\(\s*dirname\s+(?:--\s+)?\"?(?:\$\{?BASH_SOURCE(?:\[0\])?\}?|\$\{BASH_SOURCE\[0\]:-\$0\}|\$0)\"?\s*\)"
    r"((?:/[\w.-]+)*)/?\"?\s*(?:>\s*/dev/null\s*(?:2>&1\s*)?)?&&\s*pwd(?:\s+-P)?\s*\)"
)
"""The folder of the script itself, or one from there."""
DIRNAME = re.compile(r"\$\(\s*dirname\s+\"?\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE\[0\]\})\"?\s*\)")
"""The same, as ``dirname`` has it."""
WHICH = re.compile(r"(?:\$\(|`)\s*(?:which|command\s+-v)\s+([\w.-]+)\s*[)`]")
"""The path of a program, which is called by its name."""
WITHOUT_ASCEND = re.compile(r"\$\(\s*python3? -c ['\"]import torch_npu['\"].*\|\|\s*echo\s+(\w+)\s*\)", re.DOTALL)
"""What a script says where torch_npu, of Ascend devices, is not there: planned GPUs have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command. ``words`` begin with the program; ``environment`` are the variables that the script sets for it."""

    words: tuple[str, ...]
    """``OpenWord`` where only running the script would tell."""
    environment: Mapping[str, str]
    spans: tuple[Span, ...]
    """Where in the script each word stands: at the same place where an expansion makes several."""
    assignments: Mapping[str, Span]
    """Where each variable of ``environment`` is set."""
    start: int
    """Where variables for the command alone can be set: before those that are, and before ``nohup`` and such."""

    @property
    def program(self) -> str:
        return PurePath(self.words[0]).name


def commands_of(script: str, *, source: str, folder: Path | None = None) -> list[Command]:
    """Every command of a script, in order; ``folder`` is where it lies, as far as that is known. Raises InputError for
    what no shell reads either, or for a huge one."""
    if len(script) > MAX_CHARACTERS:
        raise InputError(f"{source} has more than {MAX_CHARACTERS:,} characters, which no script of a run needs")
    variables = Variables(source, folder)
    commands: list[Command] = []

    def expand(words: Sequence[Word], is_test: bool) -> list[str] | None:
        texts, _ = _expanded(words, variables)
        texts = [_without_arguments(text) for text in texts] if is_test else texts
        return None if any(UNKNOWN in text for text in texts) else texts

    for simple in taken_commands(simple_commands(script, source=source), expand):
        command = None if _takes_document(simple, variables) else _command(simple.words, variables)
        commands += [] if command is None else [command]
        if simple.operator:
            variables.pass_operator(simple.operator, "" if command is None else command.program)
    return commands


def _without_arguments(word: str) -> str:
    """A word of a test where all that is not known of it are the script's own arguments: there are none."""
    if not isinstance(word, OpenWord) or not all(OWN_ARGUMENT.fullmatch(text) for text in word.texts):
        return word
    first, *others = word.split(UNKNOWN)
    numbers = ["0" if "#" in text else "" for text in word.texts]
    return first + "".join(number + other for number, other in zip(numbers, others, strict=True))


def line_of(text: str, command: Command) -> int:
    return text.count("\n", 0, command.start) + 1


def refuse_broken(text: str, commands: Sequence[Command], run: Command, source: str) -> None:
    """Raise InputError where the command behind the one that trains is an option: the shell ends a command at a
    comment or an empty line among its continued lines, and at a blank behind a backslash."""
    follower = next((command for command in commands if command.start > run.start), None)
    if follower is not None and follower.words[0].startswith("-"):
        raise InputError(
            f"{source}: line {line_of(text, follower)} begins with {follower.words[0]}, which the shell takes for a "
            f"command of its own: a comment, an empty line or a blank behind a backslash ends the command of line "
            f"{line_of(text, run)} before it; take that out"
        )


def _command(words: Sequence[Word], variables: Variables) -> Command | None:
    """A command with its variables replaced; None for one that is only of the shell: keywords and assignments."""
    words = list(words)
    while words and _is_keyword(words, variables):
        words.pop(0)
    before = next((number for number, word in enumerate(words) if not _starts(word)), len(words))
    own, start = [word for word in words[:before] if _assigns(word)], words[0].span[0] if words else 0
    words = words[before:]
    program = words[0].plain_text if words else None
    if not words or program in DECLARATIONS or program in CHANGES:
        _change(words or own, program, variables)
        _export(words, program, variables)
        return None
    texts, spans = _expanded(words, variables)
    if not texts:
        return None
    if texts[0] == "set":
        variables.set_options(texts)
    values, places = variables.values, variables.places
    variables.values, variables.places = dict(values), dict(places)
    _change(own, None, variables)
    given = variables.exported.union(map(_assigned, own))
    command = Command(
        words=tuple(texts),
        environment={name: value for name, value in variables.values.items() if name in given},
        spans=tuple(spans),
        assignments={name: place for name, place in variables.places.items() if name in given},
        start=start,
    )
    variables.values, variables.places = values, places
    return command


def _takes_document(simple: SimpleCommand, variables: Variables) -> bool:
    """``read -r -d '' NAME <<END``: the variable is the whole text behind it, without the blanks around it."""
    words = [word.plain_text for word in simple.words]
    name = words[-1] if words else None
    if not simple.document or words[:-1] != ["read", "-r", "-d", ""] or name is None or not NAME.fullmatch(name):
        return False
    text = "".join(_value(part, variables) for part in simple.document)
    match = ASSIGNMENT.fullmatch(f"{name}={text.strip()}")
    assert match is not None
    texts = [one for part in simple.document for one in _texts(part, _value(part, variables), variables)]
    variables.assign(match, simple.words[-1].span, texts)
    return True


def _is_keyword(words: list[Word], variables: Variables) -> bool:
    """Whether the first word is of the shell's grammar, or a program that starts another; what it does to variables is
    done. Of ``for`` and ``case`` the other words are dropped, of ``function`` its name."""
    program = words[0].plain_text
    if program in OPENERS:
        variables.open(OPENERS[program])
        if program in ("for", "select"):
            variables.forget(_names(words[1:2]))
        if program in ("for", "select", "case"):
            del words[1:]
    elif program in BRANCHES:
        variables.branch()
    elif program in OPENERS.values():
        variables.close(program or "")
    elif program == "function":
        del words[1:2]
    else:
        return program in PREFIXES
    return True


def _starts(word: Word) -> bool:
    """Whether a word stands before the program that is started: a variable of it, or ``nohup`` and such."""
    return _assigns(word) or word.plain_text in STARTERS


def _change(words: Sequence[Word], program: str | None, variables: Variables) -> None:
    """``A=1``, ``export A=1``; and ``read A``, after which nobody knows what A is."""
    if program == "let":
        text = " ".join(part.text for word in words[1:] for part in word.parts)
        variables.forget(name for found in CHANGED_NUMBER.finditer(text) for name in found.groups() if name)
        return
    if program in CHANGES:
        variables.forget(_names(words if program != "printf" else words[2:3]))
        return
    for word in words:
        if _is_array(word):
            _assign_array(word, variables)
        elif _assigns(word):
            values = [_value(part, variables) for part in word.parts]
            match = ASSIGNMENT.fullmatch("".join(values))
            assert match is not None
            texts = [
                text for part, value in zip(word.parts, values, strict=True) for text in _texts(part, value, variables)
            ]
            variables.assign(match, word.span, texts)


def _export(words: Sequence[Word], program: str | None, variables: Variables) -> None:
    """Take which variables commands get from here on: ``export A``, ``declare -x A=1``, and not after ``unset A``."""
    options = [word.plain_text or "" for word in words[1:] if (word.plain_text or "").startswith("-")]
    exports = program == "export" or (program in DECLARATIONS and any("x" in option for option in options))
    names = {_assigned(word) for word in words[1:]} - {""}
    if exports and "-n" not in options:
        variables.exported |= names
    elif exports or program == "unset":
        variables.exported -= names


def _assigned(word: Word) -> str:
    """The name in ``NAME=value``, or that a word is; empty for another."""
    found = NAME.match(word.parts[0].text) if word.parts[0].kind is Kind.TEXT else None
    return found[0] if found is not None and (_assigns(word) or found[0] == word.plain_text) else ""


def _is_array(word: Word) -> bool:
    """Whether a word is ``NAME=(...)``."""
    return len(word.parts) == 2 and _assigns(word) and word.parts[1].text.startswith("(")


def _array_of(word: Word) -> str | None:
    """The name in ``"${NAME[@]}"``."""
    *before, last = word.parts
    found = ARRAY.fullmatch(last.text) if last.kind is not Kind.TEXT else None
    return found[1] if found is not None and not any(part.text for part in before) else None


def _assign_array(word: Word, variables: Variables) -> None:
    match = ASSIGNMENT.fullmatch(word.parts[0].text)
    assert match is not None
    inner = simple_commands(word.parts[1].text[1:-1], source=variables.source)
    words = [one for command in inner for one in command.words]
    elements, _ = _expanded(words, variables)
    variables.places[match[1]] = word.span
    variables.assign_words(match[1], elements, texts_of(elements), appends=bool(match[2]))


def _names(words: Iterable[Word]) -> list[str]:
    return [name for word in words for part in word.parts for name in NAME.findall(part.text)]


def _assigns(word: Word) -> bool:
    """Whether a word is ``NAME=value``, whose variables make no other words of it."""
    return word.parts[0].kind is Kind.TEXT and ASSIGNMENT.match(word.parts[0].text) is not None


def _expanded(words: Sequence[Word], variables: Variables) -> tuple[list[str], list[Span]]:
    """The words with their variables replaced, and where each stands. Blanks in an expansion that is not quoted make
    several of one."""
    result: list[str] = []
    spans: list[Span] = []
    for word in words:
        name = _array_of(word)
        if name is not None:
            elements = variables.words(name)
            texts = variables.texts_of(name + ELEMENTS, BETWEEN.join(elements), word.parts[-1].text)
            result += [word_of(element, texts) for element in elements]
            spans += [word.span] * len(elements)
            continue
        fields: list[str] = []
        texts: list[str] = []
        is_open = False
        for part in word.parts:
            is_split = part.kind is Kind.EXPANSION and not _is_quoted_default(part, variables)
            text = _value(part, variables)
            texts += _texts(part, text, variables)
            pieces = text.split() if is_split else [text]
            if is_split and text[:1].isspace():
                is_open = False
            if pieces and is_open:
                fields[-1] += pieces.pop(0)
            fields += pieces
            is_open = bool(fields) and not (is_split and text[-1:].isspace())
        result += [word_of(text, texts) for text in fields]
        spans += [word.span] * len(fields)
    return result, spans


def _is_quoted_default(part: Part, variables: Variables) -> bool:
    """Whether a text that stands there in quotes takes the place of a variable: it is no several words."""
    found = VARIABLE.fullmatch(part.text)
    if found is None or not found[3] or found[3].endswith("=") or _unquoted(found[4], part.kind) == found[4]:
        return False
    value = variables.values.get(found[2])
    is_set = value is not None and (value != "" or not found[3].startswith(":"))
    return is_set is found[3].endswith("+")


def _texts(part: Part, value: str, variables: Variables) -> list[str]:
    """Text of the script for each ``UNKNOWN`` in the value of a part."""
    variable = VARIABLE.fullmatch(part.text)
    return variables.texts_of("" if variable is None else variable[1] or variable[2], value, part.text)


def _value(part: Part, variables: Variables) -> str:
    """What stands for a part of a word; ``UNKNOWN`` where only running the script would tell."""
    if part.kind is Kind.TEXT:
        return part.text
    found = SUM.fullmatch(part.text)
    if found is not None:
        return _computed(_named(found[1] or found[2] or "", variables), variables)
    found = EXPR.fullmatch(part.text)
    if found is not None:
        return _computed(found[1], variables)
    found = OWN_FOLDER.fullmatch(part.text)
    if found is not None or DIRNAME.fullmatch(part.text):
        below = "" if found is None else found[1]
        return UNKNOWN if variables.folder is None else normpath(f"{variables.folder}{below}")
    variable = VARIABLE.fullmatch(part.text)
    if variable is None:
        found = WITHOUT_ASCEND.fullmatch(part.text) or WHICH.fullmatch(part.text)
        return UNKNOWN if found is None else found[1]
    value = variables.value(variable[1] or variable[2])
    sign = variable[3] or ""
    is_set = value is not None and (value != "" or not sign.startswith(":"))
    if sign.endswith("+"):
        return "" if not is_set else UNKNOWN if value == UNKNOWN else _default_of(variable[4], part.kind, variables)
    if is_set or not sign:
        return UNKNOWN if value is None else value
    default = _default_of(variable[4], part.kind, variables)
    if sign.endswith("="):
        variables.set_default(variable[2], default)
    return default


def _default_of(text: str, kind: Kind, variables: Variables) -> str:
    found = WITHOUT_ASCEND.fullmatch(text)
    default = found[1] if found is not None else _replaced(_unquoted(text, kind), variables)
    return UNKNOWN if QUOTES_AND_EXPANSIONS.intersection(default) else default


def _unquoted(text: str, kind: Kind) -> str:
    """A default without the quotes around all of it: in quotes single ones are characters.

    >>> _unquoted('"a b"', Kind.EXPANSION), _unquoted('"a""b"', Kind.EXPANSION)
    ('a b', '"a""b"')
    """
    quote, inner = text[:1], text[1:-1]
    quotes = "\"'" if kind is Kind.EXPANSION else '"'
    is_quoted = len(text) > 1 and quote in quotes and text[-1] == quote and quote not in inner
    return inner if is_quoted else text


def _replaced(text: str, variables: Variables) -> str:
    def value(match: re.Match[str]) -> str:
        found = variables.value(match[1] or match[2])
        return UNKNOWN if found is None else found

    return SIMPLE_VARIABLE.sub(value, text)


def _named(text: str, variables: Variables) -> str:
    """``$((16 / BATCH))`` with the numbers of variables that stand there by their bare names."""

    def value(match: re.Match[str]) -> str:
        found = variables.value(match[0])
        return f"({found})" if found is not None and WHOLE_NUMBER.fullmatch(found) else UNKNOWN

    return BARE_NAME.sub(value, text)


def _computed(text: str, variables: Variables) -> str:
    """The whole number that an expression of whole numbers is."""
    number = whole_number(_replaced(text, variables).replace("\\*", "*").strip())
    return UNKNOWN if number is None else str(number)
