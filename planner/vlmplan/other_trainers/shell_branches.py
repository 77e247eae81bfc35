"""Which commands of a shell script run, where ``if`` and ``case`` compare values that are known.

A condition is decided where it is made of ``[ ... ]``, ``[[ ... ]]`` and ``test`` with ``&&``, ``||``, ``!``, groups,
a ``case`` where its patterns are words or ``*``. Of what is decided only the commands that run are left; what is not
stays as it stands. Grammar: POSIX.1-2024, Shell Command Language, 2.9.4.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from vlmplan.other_trainers.shell_words import Kind, SimpleCommand, Word

TESTS: Final = frozenset(("[", "[[", "test"))
APART: Final = frozenset(("if", "then", "elif", "else", "do"))
"""Words of the grammar behind which another command begins."""
CLOSERS: Final = {"if": "fi", "case": "esac"}
LOOPS: Final = frozenset(("for", "while", "until", "select"))
REPEATED: Final = LOOPS | {"{"}
ENDS_OF_REPEATED: Final = frozenset(("done", "}"))
COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
MAX_NESTED = 20
MAX_TOKENS = 100
"""Of branches within each other, and of tests and operators in a condition. Choices: scripts of runs have a few."""
GLOBS = frozenset("*?[\\")
Expand = Callable[[Sequence[Word], bool], list[str] | None]
"""The words with their variables replaced, in a test those of the script's own arguments too, of which there are none;
None where only running the script would tell."""
Body = list[SimpleCommand]


def taken_commands(commands: Sequence[SimpleCommand], expand: Expand) -> Iterator[SimpleCommand]:
    """The commands that run, one at a time: what those before have set is known to ``expand`` by then."""
    yield from _taken([part for command in commands for part in _apart(command)], expand)


def _apart(command: SimpleCommand) -> Iterator[SimpleCommand]:
    """Words of the grammar as commands of their own, which no operator ends."""
    words = command.words
    while words and words[0].plain_text in APART:
        yield SimpleCommand(words[:1])
        words = words[1:]
    yield SimpleCommand(words, command.operator, command.document)


def _taken(commands: Body, expand: Expand, level: int = 0) -> Iterator[SimpleCommand]:
    """Nothing is decided in a loop or a function, before whose next run values may change."""
    place = depth = 0
    ends = _ends(commands) if level < MAX_NESTED else {}
    while place < len(commands):
        keyword = _keyword(commands[place])
        if keyword == "while" and depth == 0 and (behind := _behind_loop(commands, place, expand)) is not None:
            place = behind
            continue
        depth += 1 if keyword in REPEATED else -1 if keyword in ENDS_OF_REPEATED else 0
        end = ends.get(place) if depth == 0 else None
        if end is not None:
            block = commands[place : end + 1]
            body = _of_if(block, expand) if keyword == "if" else _of_case(block, expand)
            if body is not None:
                yield from _taken(body, expand, level + 1)
                place = end + 1
                continue
        yield commands[place]
        place += 1


def _behind_loop(commands: Body, place: int, expand: Expand) -> int | None:
    """The place behind a loop that never runs, as one over the script's own arguments; None for another."""
    condition: Body = [SimpleCommand(commands[place].words[1:], commands[place].operator)]
    for command in commands[place + 1 :]:
        if _keyword(command) == "do":
            break
        condition.append(command)
    if _decided(condition, expand) is not False:
        return None
    depth = 0
    for number, command in enumerate(commands[place:], place):
        keyword = _keyword(command)
        depth += 1 if keyword in LOOPS else -1 if keyword == "done" else 0
        if depth == 0:
            return number + 1
    return None


def _ends(commands: Body) -> dict[int, int]:
    """The places of the commands that close others, by the places of these."""
    ends: dict[int, int] = {}
    opened: dict[str, list[int]] = {closer: [] for closer in CLOSERS.values()}
    for place, command in enumerate(commands):
        keyword = _keyword(command)
        if keyword in CLOSERS:
            opened[CLOSERS[keyword]].append(place)
        elif opened.get(keyword or ""):
            start = opened[keyword or ""].pop()
            if sum(map(len, opened.values())) < MAX_NESTED:
                ends[start] = place
    return ends


def _of_if(block: Body, expand: Expand) -> Body | None:
    """What runs of ``if ... fi``; None where a condition before it is not decided."""
    condition: Body = []
    body: Body = []
    current, depth, holds = condition, 0, False
    for command in block[1:]:
        keyword = _keyword(command)
        depth += 1 if keyword == "if" else -1 if keyword == "fi" else 0
        if depth > 0 or (depth == 0 and keyword not in ("then", "elif", "else")):
            current.append(command)
            continue
        if keyword == "then":
            decided = _decided(condition, expand)
            if decided is None:
                return None
            holds, current = decided, body
            continue
        if holds:
            return body
        condition, body = [], []
        current, holds = (condition, False) if keyword == "elif" else (body, keyword == "else")
    return body if holds else []


def _of_case(block: Body, expand: Expand) -> Body | None:
    """What runs of ``case WORD in ... esac``; None where the word or a pattern before the one that fits is open."""
    header = block[0].words
    value = expand(header[1:2], False)
    if value is None or len(header) < 3 or header[2].plain_text != "in":
        return None
    text = "".join(value)
    rest = [SimpleCommand(header[3:], block[0].operator), *block[1:-1]]
    place = 0
    while place < len(rest):
        patterns, place = _patterns(rest, place)
        end = _end_of_arm(rest, place)
        fits = [_fits(text, pattern, expand) for pattern in patterns]
        if any(fit is None for fit in fits):
            return None
        if any(fits):
            return [SimpleCommand(one.words, "\n" if one.operator == ";;" else one.operator) for one in rest[place:end]]
        place = end
    return []


def _patterns(commands: Body, place: int) -> tuple[list[Word], int]:
    """The patterns of an arm, and where its commands begin."""
    patterns: list[Word] = []
    while place < len(commands):
        patterns += commands[place].words
        place += 1
        if commands[place - 1].operator == ")":
            break
    return patterns, place


def _end_of_arm(commands: Body, place: int) -> int:
    depth = 0
    while place < len(commands):
        keyword = _keyword(commands[place])
        depth += 1 if keyword == "case" else -1 if keyword == "esac" else 0
        place += 1
        if depth == 0 and commands[place - 1].operator == ";;":
            break
    return place


def _fits(text: str, pattern: Word, expand: Expand) -> bool | None:
    if pattern.plain_text == "*":
        return True
    found = expand([pattern], False)
    if found is None or any(part.kind is Kind.TEXT and GLOBS.intersection(part.text) for part in pattern.parts):
        return None
    return text == "".join(found)


# -- conditions ------------------------------------------------------------------------------------------------------


def _decided(condition: Body, expand: Expand) -> bool | None:
    """Whether a list of tests holds; None where it has another command, or an operand that is not known."""
    tokens: list[str | bool | None] = []
    for command in condition:
        words = command.words
        while words and words[0].plain_text in ("{", "!"):
            tokens.append(words[0].plain_text)
            words = words[1:]
        if words and words[0].plain_text == "}":
            tokens.append("}")
        elif words:
            tokens.append(_test(words, expand))
        tokens += [command.operator] if command.operator in ("&&", "||", "|", "&", "(", ")") else []
    if len(tokens) > MAX_TOKENS:
        return None
    value, rest = _list(tokens)
    return None if rest else value


def _list(tokens: list[str | bool | None]) -> tuple[bool | None, list[str | bool | None]]:
    """The value of tests with ``&&`` and ``||``, which bind alike and from the left, and what is behind them."""
    value, tokens = _term(tokens)
    while tokens and tokens[0] in ("&&", "||"):
        is_and = tokens[0] == "&&"
        other, tokens = _term(tokens[1:])
        if value is not None and value is not is_and:
            continue
        value = other if value is not None or other is not is_and else None
    return value, tokens


def _term(tokens: list[str | bool | None]) -> tuple[bool | None, list[str | bool | None]]:
    if not tokens:
        return None, tokens
    first, rest = tokens[0], tokens[1:]
    if first == "!":
        value, rest = _term(rest)
        return None if value is None else not value, rest
    if first == "{":
        value, rest = _list(rest)
        return (value, rest[1:]) if rest[:1] == ["}"] else (None, rest)
    return (first, rest) if first is None or isinstance(first, bool) else (None, tokens)


def _test(words: Sequence[Word], expand: Expand) -> bool | None:
    """``[ A = B ]``, ``[ -n A ]``, ``[ 2 -gt 1 ]``; None for other tests, such as those of files."""
    program = words[0].plain_text
    texts = expand(words, True) if program in TESTS else None
    if texts is None:
        return None
    operands = texts[1:] if program == "test" else texts[1:-1]
    is_negated = operands[:1] == ["!"]
    value = _compared(operands[is_negated:])
    if program == "[[" and any(GLOBS.intersection(part.text) for word in words[3:-1] for part in word.parts):
        return None
    return value if value is None or not is_negated else not value


def _compared(operands: list[str]) -> bool | None:
    if len(operands) == 2 and operands[0] in ("-n", "-z"):
        return bool(operands[1]) is (operands[0] == "-n")
    if len(operands) != 3:
        return None
    left, operator, right = operands
    if operator in ("=", "==", "!="):
        return (left == right) is (operator != "!=")
    if operator in COMPARISONS and left.lstrip("-").isdecimal() and right.lstrip("-").isdecimal():
        return COMPARISONS[operator](int(left), int(right))
    return None


def _keyword(command: SimpleCommand) -> str | None:
    return command.words[0].plain_text if command.words else None
