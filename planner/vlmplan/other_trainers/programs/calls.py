"""Every call of a program, in the order of its text, with what its keywords are worth and where they stand."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.bindings import MAX_STEPS, Bindings
from vlmplan.other_trainers.programs.literals import Literals, UnknownValueError, Worth
from vlmplan.other_trainers.programs.modules import Linked, linked
from vlmplan.other_trainers.programs.options import WORDS, last_name, required_options
from vlmplan.other_trainers.programs.parsed_arguments import arguments_class, with_parsed_arguments
from vlmplan.other_trainers.programs.scopes import Function, Place
from vlmplan.other_trainers.programs.settings_files import SettingsFiles
from vlmplan.other_trainers.programs.source import LINE_ENDS
from vlmplan.other_trainers.programs.stores import Store, stores_of, uncertain_nodes
from vlmplan.other_trainers.record import Unwritten

MAX_SHOWN = 60
UNKNOWN = ""
"""A name that nothing is bound to."""
OF_COMPUTING = frozenset(
    """compute_loss _compute_loss training_step get_batch_loss_metrics concatenated_forward _prepare_inputs
    _generate_and_score_completions _get_per_token_logps create_optimizer forward""".split()
)
"""Methods of trainers that make another computation of a step."""
OWN_LOSS = "compute_loss"
"""The one of them that may leave all but the loss as it is."""


class Span(NamedTuple):
    """From a character of the code to before another; below zero in a module that the program imports."""

    start: int
    end: int

    @property
    def is_imported(self) -> bool:
        return self.start < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """An argument of a call by its name. ``value_span`` is where its value is written: elsewhere where it is a name.
    ``worth`` is None for what only running the program tells."""

    name: str
    node: ast.expr = field(repr=False, compare=False)
    worth: Worth | None
    text: str
    span: Span
    value_span: Span
    is_removable: bool = True
    """Whether it is a keyword of the call itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call by the last parts of its name: ``FastLanguageModel.from_pretrained``, ``SFTConfig``."""

    name: str
    node: ast.Call = field(repr=False)
    span: Span
    keywords: Mapping[str, Keyword]
    own_name: str = ""
    """As the program calls it."""
    unpacked: tuple[str, ...] = ()
    """What is unpacked into it (``**options``) and is not known."""


class Program:
    """The calls of a program's code. Raises InputError for what is no Python."""

    def __init__(
        self,
        code: str,
        *,
        source: str,
        folder: Path | None = None,
        given: Mapping[str, object] | None = None,
        imports: bool = False,
    ) -> None:
        """``folder``: where it lies, for files of its settings; None where none is opened. ``given``: options of its
        own that a command starts it with. ``imports``: what it imports of files beside it is read with it."""
        self.code, self.source, self._given = code, source, given or {}
        try:
            self.tree = ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            reason = error.msg if isinstance(error, SyntaxError) else "it is no text of a program"
            raise InputError(f"{source}{line}: {reason}; a program in Python is needed") from None
        self.modules = linked(self.tree, folder / Path(source).name) if imports and folder is not None else Linked()
        if self.modules.files:
            self.tree.body = list(self.modules.body)
        text = self.modules.text + code
        self._text_before, self._whole = len(self.modules.text), text
        self._lines = _line_starts(text)
        self._line_texts = [text[a:b] for a, b in zip(self._lines, [*self._lines[1:], len(text)], strict=True)]
        with_parsed_arguments(self.tree, given)
        self._renamed = _renamed(self.tree) | _of_arguments(self.tree)
        self.computing = _computing(self.tree)
        self.subclasses = _subclasses(self.tree, self.computing)
        self._renamed |= self.subclasses
        self.files = SettingsFiles(source, folder)
        self._statements = list(_statements(self.tree, _constant))
        self._follow()
        self._statements = _without_dead(self.tree, list(_statements(self.tree, self.literals.holds)))
        self._follow()

    def _follow(self) -> None:
        """Find what the names are bound to of the statements that may run."""
        self._bindings = Bindings(self.tree, self._statements, lambda test: self.literals.holds(test), self._given)
        self.literals = Literals(self._bindings, self.files.values_of)
        self._bindings.follow()
        self.literals.forget()
        self._stores: list[Store] | None = None
        self._uncertain: frozenset[int] | None = None

    @property
    def stores(self) -> list[Store]:
        """Attributes that it gives its objects, in the order of its text."""
        if self._stores is None:
            self._stores = stores_of(self._statements)
        return self._stores

    def is_certain(self, node: ast.AST) -> bool:
        """Whether no condition that only running the program tells stands before a node."""
        if self._uncertain is None:
            self._uncertain = uncertain_nodes(self.tree, self.literals.holds)
        return id(node) not in self._uncertain

    def given_later(self, call: Call, before: Call) -> dict[str, Keyword]:
        """Attributes that the object that ``call`` makes is given until it is handed to ``before``."""
        found: dict[str, Keyword] = {}
        for one in self.stores:
            if not isinstance(one.holder, ast.Name) or self._held(one.holder) is not call.node:
                continue
            is_before = Place.of(one.statement) < Place.of(before.node)
            if is_before or self.function_of(one.statement) is not self.function_of(before.node):
                found[one.name] = self.stored(one, runs=self.is_certain(one.statement) or _is_same(self, call, one))
        return found

    def stored(self, one: Store, *, runs: bool) -> Keyword:
        """What a statement stores; of unknown worth where that is made of what was there, or where it may not run."""
        known = one.value if runs else None
        value = ast.copy_location(ast.Name(UNKNOWN), one.statement) if known is None else known
        return self.keyword(one.name, value, self.span(value), is_removable=False)

    @property
    def required_options(self) -> list[str]:
        """Options of its own without which it does not start, and that nothing gives."""
        found = required_options(self._statements)
        asks = any(isinstance(node, ast.Attribute) and node.attr == WORDS for node in self._statements)
        found += [f"sys.{WORDS}"] if asks and WORDS not in self._given else []
        return [word for word in found if word.lstrip("-").replace("-", "_") not in self._given]

    def span(self, node: ast.expr | ast.keyword | ast.stmt) -> Span:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return Span(self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset))

    def _place(self, line: int, column: int) -> int:
        """Of a line and a byte of it."""
        text = self._line_texts[line - 1]
        own = column if text.isascii() else len(text.encode()[:column].decode())
        return self._lines[line - 1] + own - self._text_before

    def calls(self) -> list[Call]:
        """Those that may run: what stands behind ``if False`` does not."""
        nodes = [node for node in self._statements if isinstance(node, ast.Call)]
        return sorted((self._call(node) for node in nodes), key=lambda call: call.span)

    @property
    def loops(self) -> list[ast.For]:
        """Those that may run."""
        return [node for node in self._statements if isinstance(node, ast.For)]

    @property
    def deletions(self) -> list[ast.Delete]:
        return [node for node in self._statements if isinstance(node, ast.Delete)]

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a name, a call or a statement is in."""
        return self._bindings.scopes.function_of(node)

    def bound(self, node: ast.Name) -> ast.expr | None:
        """What a name is bound to; None where only running the program tells."""
        return self._bindings.of(node)

    def is_called(self, name: str) -> bool:
        """Whether a function of this name is called by it, or by Python itself."""
        return name.startswith("__") or any(
            isinstance(node, ast.Call) and last_name(node.func) == name for node in self._statements
        )

    def value_of(self, node: ast.expr) -> object:
        """What an expression is worth; None where only running the program tells."""
        try:
            return self.literals.worth(node).value
        except UnknownValueError:
            return None

    def call_of(self, node: ast.expr | None) -> Call | None:
        """The call that an expression is, or that the name it is was bound to, or the result of a function."""
        holder = None if node is None else self._held(node)
        return self._call(holder) if isinstance(holder, ast.Call) else None

    def _held(self, node: ast.expr) -> ast.expr | None:
        """What stands for an expression, of a choice the one that is taken."""
        for _ in range(MAX_STEPS):
            holder = self._bindings.holder_of(node)
            holds = self.literals.holds(holder.test) if isinstance(holder, ast.IfExp) else None
            if not isinstance(holder, ast.IfExp) or holds is None:
                return holder
            node = holder.body if holds else holder.orelse
        return None

    def name_of(self, function: ast.expr) -> str:
        """``Class.method`` or a function's name, as it is called where it is from."""
        name = last_name(function)
        if isinstance(function, ast.Attribute):
            holder = last_name(self._class_of(function.value))
            holder = self._renamed.get(holder, holder)
            return f"{holder}.{name}" if holder[:1].isupper() else name
        return self._renamed.get(name, name)

    def _class_of(self, node: ast.expr) -> ast.expr:
        """The class that a name stands for, where the program chooses one by a name of its own."""
        bound = self._bindings.of(node) if isinstance(node, ast.Name) and not node.id[:1].isupper() else None
        return bound if isinstance(bound, (ast.Name, ast.Attribute)) and last_name(bound)[:1].isupper() else node

    def _call(self, node: ast.Call) -> Call:
        keywords: dict[str, Keyword] = {}
        unpacked: list[str] = []
        for one in node.keywords:
            if one.arg is not None:
                keywords[one.arg] = self.keyword(one.arg, one.value, self.span(one))
            elif not self._unpack(one.value, keywords):
                unpacked.append(self.text_of(one.value))
        name = self.name_of(node.func)
        return Call(
            name=name,
            own_name=last_name(node.func),
            node=node,
            span=self.span(node),
            keywords=keywords,
            unpacked=tuple(unpacked),
        )

    def keyword(self, name: str, node: ast.expr, span: Span, *, is_removable: bool = True) -> Keyword:
        try:
            worth = self.literals.worth(node)
        except UnknownValueError:
            worth = None
        written = node if worth is None else worth.written
        return Keyword(
            name=name,
            node=node,
            worth=worth,
            text=self.text_of(node),
            span=span,
            value_span=self.span(written),
            is_removable=is_removable,
        )

    def entries(self, keyword: Keyword) -> dict[str, Keyword] | None:
        """The entries of a keyword's value by key, where that is a dict that is written in the program."""
        found: dict[str, Keyword] = {}
        return found if self._unpack(keyword.node, found) else None

    def _unpack(self, node: ast.expr, keywords: dict[str, Keyword]) -> bool:
        """Take the entries of a dict that is written in the program; False for another."""
        holder = self._held(node)
        own = self._bindings.of_class(holder)[0] if isinstance(holder, ast.Attribute) else None
        holder = holder if own is None else self._held(own)
        if isinstance(holder, ast.Call) and last_name(holder.func) == "dict" and not holder.args:
            entries = [(one.arg, one.value) for one in holder.keywords]
        elif isinstance(holder, ast.Dict):
            entries = [
                (cast(Any, key.value) if isinstance(key, ast.Constant) else None, value)
                for key, value in zip(holder.keys, holder.values, strict=True)
            ]
        else:
            return False
        for key, value in entries:
            if key is None and not self._unpack(value, keywords):
                return False
        entries = [(key, value) for key, value in entries if key is not None]
        if not all(isinstance(key, str) for key, _ in entries):
            return False
        added = self._bindings.entries_of(node) if isinstance(node, ast.Name) else {}
        for key, value in [*entries, *((key, value) for key, value in added.items() if value is not None)]:
            keywords[str(key)] = self.keyword(str(key), value, self.span(value), is_removable=False)
        return True

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        told = self._bindings.of_class(node)[0] if isinstance(node, ast.Attribute) else node
        if isinstance(told, ast.Constant) and isinstance(told.value, Unwritten):
            return str(told.value)  # as the command says it
        start, end = self.span(node)
        text = " ".join(self._whole[start + self._text_before : end + self._text_before].split())
        return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _is_same(program: Program, call: Call, store: Store) -> bool:
    """Whether an object has what it is given already, by the keyword that it is made with."""
    said = call.keywords.get(store.name)
    if said is None or said.worth is None or store.value is None:
        return False
    return said.worth.value is not None and program.value_of(store.value) == said.worth.value


def _trainers_of(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, str]]:
    """Classes of the program's own that are made of a trainer, and which that is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and len(node.bases) == 1 and last_name(node.bases[0]).endswith("Trainer"):
            yield node, last_name(node.bases[0])


def _computing(tree: ast.AST) -> dict[str, list[str]]:
    """Those of them that make another computation of a step: the methods by which, by their names."""
    found: dict[str, list[str]] = {}
    for holder, _ in _trainers_of(tree):
        own = [one for one in holder.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        names = [one.name for one in own if one.name in OF_COMPUTING]
        found |= {holder.name: names} if names else {}
    return found


def _subclasses(tree: ast.AST, computing: Mapping[str, list[str]]) -> dict[str, str]:
    """Classes of the program's own that are another trainer but for what they report, or for a loss of what the model
    has made once: their trainers by their names."""
    return {
        holder.name: trainer
        for holder, trainer in _trainers_of(tree)
        if holder.name not in computing or (computing[holder.name] == [OWN_LOSS] and _num_forwards(holder) <= 1)
    }


def _num_forwards(holder: ast.ClassDef) -> int:
    """How often its loss runs a model: calls that unpack a batch (``model(**inputs)``)."""
    own = next(one for one in holder.body if isinstance(one, ast.FunctionDef) and one.name == OWN_LOSS)
    calls = [node for node in ast.walk(own) if isinstance(node, ast.Call)]
    runs = [call for call in calls if any(one.arg is None for one in call.keywords)]
    return len([call for call in runs if last_name(call.func) != OWN_LOSS])


def _of_arguments(tree: ast.AST) -> dict[str, str]:
    """Classes of the program's own that are made of a trainer's arguments: which these are, by their names."""
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {name: kind for name in names if (kind := arguments_class(tree, name)) is not None}


def _line_starts(code: str) -> list[int]:
    return [0, *(match.end() for match in LINE_ENDS.finditer(code))]


def _constant(test: ast.expr) -> bool | None:
    return bool(test.value) if isinstance(test, ast.Constant) else None


def _statements(tree: ast.AST, holds: Callable[[ast.expr], bool | None]) -> Iterator[ast.AST]:
    """Every node that may run, where ``holds`` tells which conditions do."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and (is_so := holds(node.test)) is not None:
            pending += [node.test, *(node.body if is_so else node.orelse)]
        else:
            pending += ast.iter_child_nodes(node)


def _without_dead(tree: ast.AST, statements: list[ast.AST]) -> list[ast.AST]:
    """Statements without those of functions that only others name, which do not run."""
    named = _names_in(ast.walk(tree))
    while True:
        runs = _names_in(statements)
        functions = [node for node in statements if isinstance(node, ast.FunctionDef)]
        dead = [node for node in functions if node.name in named and node.name not in runs]
        if not dead:
            return statements
        within = {id(one) for node in dead for one in ast.walk(node)}
        statements = [node for node in statements if id(node) not in within]


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {last_name(node) for node in nodes if isinstance(node, (ast.Name, ast.Attribute))}


def _renamed(tree: ast.AST) -> dict[str, str]:
    """What names that ``import ... as`` gives stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname: one.name for one in node.names if one.asname is not None}
    return found
