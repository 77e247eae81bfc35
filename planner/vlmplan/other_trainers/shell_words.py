"""The words of each command of a shell script, before variables are replaced.

Followed are quotes, comments, continued lines, the operators between commands, redirections (left out: they are no
words of a command), here-documents (no words either, kept beside them) and how far an expansion reaches. Grammar:
POSIX.1-2024, Shell Command Language, 2.3 (token recognition) and 2.10.
"""

import re
from dataclasses import dataclass, field
from enum import Enum

from vlmplan.errors import InputError

ORDINARY = re.compile(r"[^\s\\'\"$`#;&|<>()]+")
NAME_AFTER_DOLLAR = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|[@*#?$!\-0-9])")
ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
REDIRECTION = re.compile(r"<<-?(?!<)|<<<|<>|<&|>>|>\||>&|[<>]")
OPERATOR = re.compile(r"\|\||&&|;;|\|&|[;&|()\n]")
IN_DOUBLE_QUOTES = re.compile(r"[^\\\"$`]+")
COMMENT = r"|(?<=\s)#[^\n]*"
COMMENT_IN_A_COMMAND = re.compile(r"`[ \t]*#[^`\n]*`")
"""How comments are written between the lines of one command: a command of nothing but a comment, which prints
nothing."""
QUOTES = frozenset("'\"\\")
CLOSING = {"(": ")", "{": "}", "[": "]", "`": "`"}


class Kind(Enum):
    """The kind of a part of a word: text as it stands, or an expansion, whose blanks make words of it unless it is
    quoted."""

    TEXT = "text"
    QUOTED_EXPANSION = "quoted expansion"
    EXPANSION = "expansion"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a word, with the text that the script has there; of quoted text what the quotes hold."""

    text: str
    kind: Kind = Kind.TEXT


Span = tuple[int, int]
"""Characters of the script: the first, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a script: its parts, at least one, and where it stands with its quotes."""

    parts: tuple[Part, ...]
    span: Span

    @property
    def plain_text(self) -> str | None:
        """What it says where it has no expansions; None where it has any."""
        return "".join(part.text for part in self.parts) if all(part.kind is Kind.TEXT for part in self.parts) else None


@dataclass(slots=True)
class SimpleCommand:
    """Words up to the next operator, and that operator."""

    words: list[Word] = field(default_factory=list[Word])
    operator: str = ""
    document: list[Part] = field(default_factory=list[Part])
    """The parts of the text that its standard input is, where that stands behind it (``<<END``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HereDocument:
    """``<<END``; ``is_quoted``: nothing in its text is an expansion."""

    end: str
    may_be_indented: bool
    is_quoted: bool
    command: SimpleCommand

    def parts(self, text: str, source: str) -> list[Part]:
        """Its text is as if within double quotes, which are as they stand there."""
        if self.is_quoted:
            return [Part(text)]
        quoted = re.sub(r'\\?"', lambda found: "\\\\\\" + found[0] if len(found[0]) > 1 else "\\" + found[0], text)
        (command,) = simple_commands(f'"{quoted}"', source=source)
        return [part for word in command.words for part in word.parts]


def simple_commands(script: str, *, source: str) -> list[SimpleCommand]:
    """Every command of a script, those without words too: an operator may come first. Raises InputError for a quote or
    an expansion that does not end."""
    return _Reader(script, source).read()


class _Reader:
    def __init__(self, script: str, source: str) -> None:
        self._script, self._source = script, source
        self._position = 0
        self._commands = [SimpleCommand()]
        self._word: list[Part] | None = None
        self._span = (0, 0)
        """Of the word so far."""
        self._redirection = ""
        """The operator whose target is the next word; empty for none."""
        self._here_documents: list[_HereDocument] = []
        """Those that begin after this line."""

    def read(self) -> list[SimpleCommand]:
        while self._position < len(self._script):
            start, word = self._position, self._word
            num_parts = 0 if word is None else len(word)
            self._step(self._script[start])
            if self._word is not None and (word is None or len(self._word) > num_parts):
                self._span = (start if word is None else self._span[0], self._position)
        self._end_word()
        return self._commands

    def _step(self, character: str) -> None:
        script, start = self._script, self._position
        ordinary = ORDINARY.match(script, start)
        if ordinary is not None:
            self._add(ordinary[0])
            self._position = ordinary.end()
        elif character == "\\":
            self._escape()
        elif character == "'":
            self._position = end = self._quote_end(start)
            self._add(script[start + 1 : end - 1])
        elif character == '"':
            self._double_quoted()
        elif character in "$`" or script.startswith(("<(", ">("), start):
            self._expansion(Kind.EXPANSION)
        elif character == "#":
            self._comment()
        elif character in "<>" or (character == "&" and script.startswith(">", start + 1)):
            self._redirect()
        elif character == "(" and self._is_array():
            self._position = self._extent(start, "(")
            self._add(script[start : self._position], Kind.QUOTED_EXPANSION)
        elif character in "\n;&|()":
            self._operator()
        else:
            self._end_word()
            self._position += 1

    def _escape(self) -> None:
        """A backslash: before the end of a line it continues the command, else it takes the next character as it is."""
        rest = self._script[self._position + 1 : self._position + 3]
        if rest.startswith(("\n", "\r\n")):
            self._position += 2 + rest.startswith("\r")
            return
        if rest:  # at the end of a script there is nothing to take
            self._add(rest[:1])
        self._position += 2

    def _comment(self) -> None:
        if self._word is not None:
            self._add("#")
            self._position += 1
            return
        end = self._script.find("\n", self._position)
        self._position = len(self._script) if end < 0 else end

    def _double_quoted(self) -> None:
        script, start = self._script, self._position
        self._add("")
        self._position += 1
        while not script.startswith('"', self._position):
            plain = IN_DOUBLE_QUOTES.match(script, self._position)
            if plain is not None:
                self._add(plain[0])
                self._position = plain.end()
            elif self._position >= len(script):
                raise self._endless("a quote", start)
            elif script[self._position] == "\\":
                follower = script[self._position + 1 : self._position + 2]
                self._add(
                    "" if follower == "\n" else follower if follower in ("$", "`", '"', "\\") else "\\" + follower
                )
                self._position += 2
            else:
                self._expansion(Kind.QUOTED_EXPANSION)
        self._position += 1

    def _expansion(self, kind: Kind) -> None:
        """``$...``, a command between backticks, or one in place of a file."""
        script, start = self._script, self._position
        follower = script[start + 1 : start + 2]
        name = NAME_AFTER_DOLLAR.match(script, start)
        comment = COMMENT_IN_A_COMMAND.match(script, start)
        if comment is not None:
            self._position = comment.end()
            return
        if script[start] == "`":
            end = self._extent(start, "`")
        elif follower in ("(", "{", "["):
            end = self._extent(start + 1, follower)
        elif name is not None:
            end = name.end()
        elif follower == "'" and kind is Kind.EXPANSION:
            end, kind = self._quote_end(start + 1), Kind.QUOTED_EXPANSION
        else:
            self._add("$")
            self._position += 1
            return
        self._add(script[start:end], kind)
        self._position = end

    def _extent(self, start: int, opening: str) -> int:
        """The end of what ``opening`` opens at ``start``: quotes, pairs of it within, and in parentheses comments are
        passed over."""
        script, closing, depth, position = self._script, CLOSING[opening], 1, start + 1
        special = re.compile(f"[\\\\'\"{re.escape(opening + closing)}]" + (COMMENT if opening == "(" else ""))
        while depth:
            found = special.search(script, position)
            if found is None:
                raise self._endless(f"a {script[max(0, start - 1) : start + 1].strip()}", start)
            character, position = found[0], found.end()
            if character == "\\":
                position += 1
            elif "#" in character:
                continue
            elif character == "'":
                position = self._quote_end(position - 1)
            elif character == '"':
                position = self._quote_end(position - 1, '"')
            else:
                depth += 1 if character == opening != closing else -1
        return position

    def _quote_end(self, start: int, quote: str = "'") -> int:
        """The end of the quote that begins at ``start``."""
        position = start + 1
        while True:
            end = self._script.find(quote, position)
            if end < 0:
                raise self._endless("a quote", start)
            if quote == "'" or self._script[end - 1] != "\\":
                return end + 1
            position = end + 1

    def _is_array(self) -> bool:
        """Whether a parenthesis here is the value in ``NAME=(...)``."""
        word = self._word
        return word is not None and len(word) == 1 and ARRAY.fullmatch(word[0].text) is not None

    def _redirect(self) -> None:
        """``> FILE``, ``2>&1``, ``<<END``: the number before it is no word, and neither is what follows."""
        if self._script.startswith("&", self._position):
            self._position += 1
        operator = REDIRECTION.match(self._script, self._position)
        assert operator is not None
        word = self._word
        if word is not None and len(word) == 1 and word[0].kind is Kind.TEXT and word[0].text.isdigit():
            self._word = None
        self._end_word()
        self._redirection, self._position = operator[0], operator.end()

    def _operator(self) -> None:
        found = OPERATOR.match(self._script, self._position)
        assert found is not None
        self._end_word()
        if self._script.startswith("((", self._position) and not self._commands[-1].words:
            self._arithmetic()
            return
        self._redirection = ""
        self._commands[-1].operator = found[0]
        self._commands.append(SimpleCommand())
        self._position = found.end()
        if found[0] == "\n" and self._here_documents:
            self._skip_here_documents()

    def _arithmetic(self) -> None:
        """``((A = 4))``, which is ``let`` of what it holds."""
        span = (self._position, self._extent(self._position, "("))
        self._commands[-1].words += [Word((Part(text),), span) for text in ("let", self._script[slice(*span)])]
        self._position = span[1]

    def _skip_here_documents(self) -> None:
        for document in self._here_documents:
            lines: list[str] = []
            while self._position < len(self._script):
                start = self._position
                stop = self._script.find("\n", start)
                self._position = len(self._script) if stop < 0 else stop + 1
                line = self._script[start : self._position].rstrip("\r\n")
                line = line.lstrip("\t") if document.may_be_indented else line
                if line == document.end:
                    break
                lines.append(line)
            document.command.document = document.parts("\n".join(lines), self._source)
        self._here_documents = []

    def _add(self, text: str, kind: Kind = Kind.TEXT) -> None:
        if self._word is None:
            self._word = []
        self._word.append(Part(text, kind))

    def _end_word(self) -> None:
        if self._word is None:
            return
        word = Word(tuple(self._word), self._span)
        if not self._redirection:
            self._commands[-1].words.append(word)
        elif self._redirection in ("<<", "<<-"):
            self._here_documents.append(
                _HereDocument(
                    end="".join(part.text for part in word.parts),
                    may_be_indented=self._redirection == "<<-",
                    is_quoted=any(character in QUOTES for character in self._script[slice(*word.span)]),
                    command=self._commands[-1],
                )
            )
        self._word, self._redirection = None, ""

    def _endless(self, what: str, start: int) -> InputError:
        line = self._script.count("\n", 0, start) + 1
        return InputError(f"{self._source} has {what} in line {line} that does not end")
