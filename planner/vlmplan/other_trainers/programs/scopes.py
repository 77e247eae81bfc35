"""What names are bound to in the functions of a program, as far as their text says: nothing is run.

A name in a function is worth the last of the function's own statements that binds it before, and a parameter what the
only call of the function hands on. What an undecided condition or a loop binds is known to nobody from there on.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vlmplan.other_trainers.programs.options import last_name

FIRST_OF_SEVERAL = ("parse_known_args", "parse_args", "get_device_capability")
"""Of ``argparse``, and what programs call a function of theirs around it: the options, and the words that are none. Of
``torch.cuda``: a GPU's compute capability by its major and its minor version."""
CELL = "cell"
"""The decorator of marimo's cells: a function of each, whose parameters are what other cells bind."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
Decide = Callable[[ast.expr], bool | None]
"""Whether a condition holds; None where only running the program would tell."""


class Place(NamedTuple):
    line: int
    column: int

    @staticmethod
    def of(node: ast.AST) -> "Place":
        return Place(getattr(node, "lineno", 0), getattr(node, "col_offset", 0))

    @staticmethod
    def end_of(node: ast.AST) -> "Place":
        return Place(getattr(node, "end_lineno", 0) or 0, getattr(node, "end_col_offset", 0) or 0)


class Bound(NamedTuple):
    """What a name is bound to from a place on; None where only running the program tells."""

    place: Place
    value: ast.expr | None


class Scopes:
    """The functions of a program, of which ``nodes`` may run, and what their statements bind."""

    def __init__(self, tree: ast.Module, nodes: Sequence[ast.AST], decide: Decide) -> None:
        self._decide = decide
        self._around: dict[int, Function | None] = {}
        self._place_in(tree.body, None)
        functions = [node for node in nodes if isinstance(node, Function)]
        names = Counter(node.name for node in functions)
        self.functions = {node.name: node for node in functions if names[node.name] == 1}
        self.classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
        self._calls: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._calls.setdefault(node.func.id, []).append(node)
        self._bound: dict[int, dict[str, list[Bound]]] = {}

    def _place_in(self, body: Sequence[ast.AST], function: Function | None) -> None:
        """Note for each name which function it is in."""
        pending: list[tuple[ast.AST, Function | None]] = [(node, function) for node in body]
        while pending:
            node, inside = pending.pop()
            if isinstance(node, (ast.Name, ast.Call, ast.stmt)):
                self._around[id(node)] = inside
            own = node if isinstance(node, Function) else inside
            pending += [(child, own) for child in ast.iter_child_nodes(node)]

    def of(self, node: ast.Name) -> ast.expr | None:
        """What a name in a function is bound to; None for what is not known, or is bound outside of all functions."""
        function = self._around.get(id(node))
        if function is None:
            return None
        bound = self._bindings_in(function).get(node.id)
        if bound is not None:
            before = [one.value for one in bound if one.place <= Place.of(node)]
            return before[-1] if before else None
        return self._argument(function, node.id)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a name, a call or a statement is in."""
        return self._around.get(id(node))

    def entries_of(self, node: ast.Name) -> dict[str, ast.expr | None] | None:
        """Entries that statements of the function give the table of this name before; None outside of functions."""
        function = self._around.get(id(node))
        return None if function is None else entries_before(self._bindings_in(function), node)

    def is_local(self, node: ast.Name) -> bool:
        """Whether the function that a name is in binds it."""
        function = self._around.get(id(node))
        if function is None:
            return False
        return node.id in self._bindings_in(function) or node.id in _parameters(function)

    def result_of(self, name: str) -> ast.expr | None:
        """What the one function of this name returns, where it has one ``return`` alone, or what is known decides
        between several."""
        function = self.functions.get(name)
        if function is None:
            return None
        returned = [node for node in _own_nodes(function) if isinstance(node, ast.Return)]
        if len(returned) > 1:
            returned = [one for one in (_taken_return(function.body, self._decide),) if one is not None]
        return returned[0].value if returned else None

    def is_made_of_nothing(self, name: str) -> bool:
        """Whether all objects of a class are made by calls that give them nothing."""
        calls = self._calls.get(name, [])
        return bool(calls) and all(not call.args and not call.keywords for call in calls)

    def _argument(self, function: Function, name: str) -> ast.expr | None:
        """What the function's only call hands on as this parameter."""
        calls = self._calls.get(function.name, [])
        parameters = _parameters(function)
        if name not in parameters or len(calls) != 1 or self.functions.get(function.name) is not function:
            return None
        (call,) = calls
        named = {one.arg: one.value for one in call.keywords}
        if name in named or None in named or any(isinstance(one, ast.Starred) for one in call.args):
            return named.get(name)
        place = parameters.index(name)
        if place < len(call.args):
            return call.args[place]
        return default_of(function, name)

    def _bindings_in(self, function: Function) -> dict[str, list[Bound]]:
        if id(function) not in self._bound:
            self._bound[id(function)] = {}
            bind(function.body, self._decide, self._bound[id(function)])
        return self._bound[id(function)]


def bind(body: Sequence[ast.stmt], decide: Decide, into: dict[str, list[Bound]]) -> None:
    """What statements bind, one after another, each by what those before it have bound; nothing is known of what an
    undecided one binds, from its start on. An entry of a table is under ``entry_name``."""
    for node in body:
        for name, one in _bound_by(node, decide):
            into.setdefault(name, []).append(one)


def entries_before(bound: Mapping[str, list[Bound]], node: ast.Name) -> dict[str, ast.expr | None]:
    """Of what statements bind the entries of one table before a place, by their keys."""
    found: dict[str, ast.expr | None] = {}
    for name, places in bound.items():
        before = [one.value for one in places if one.place <= Place.of(node)]
        if before and name.startswith(f"{node.id}['"):
            found[name[len(node.id) + 2 : -2]] = before[-1]
    return found


def entry_name(table: str, key: object) -> str:
    return f"{table}[{key!r}]"


def _bound_by(node: ast.stmt, decide: Decide) -> Iterator[tuple[str, Bound]]:
    if isinstance(node, ast.If) and (holds := decide(node.test)) is not None:
        for one in node.body if holds else node.orelse:
            yield from _bound_by(one, decide)
        return
    if isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                yield item.optional_vars.id, Bound(Place.end_of(item.optional_vars), item.context_expr)
        for one in node.body:
            yield from _bound_by(one, decide)
        return
    pairs = [*bindings_of(node), *_updates(node)]
    known = {name for name, _ in pairs}
    for name, value in pairs:
        yield name, Bound(Place.end_of(node), value)
    for name in _stored_in(node) - known:
        yield name, Bound(Place.of(node), None)


def _updates(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Entries that ``table.update(...)`` gives a table, where they are written there."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return
    table = last_name(call.func.value)
    for one in call.args:
        if isinstance(one, ast.Dict):
            pairs = zip(one.keys, one.values, strict=True)
            yield from ((entry_name(table, key.value), value) for key, value in pairs if isinstance(key, ast.Constant))
        elif isinstance(one, ast.Call) and last_name(one.func) == "dict":
            yield from ((entry_name(table, own.arg), own.value) for own in one.keywords if own.arg is not None)
    yield from ((entry_name(table, own.arg), own.value) for own in call.keywords if own.arg is not None)


def bindings_of(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What a statement binds if it is an assignment, entries of tables among it."""
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _bound(target, node.value)


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment binds, part by part where both sides are written as several."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        if isinstance(target.slice, ast.Constant):
            yield entry_name(target.value.id, target.slice.value), value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and last_name(value.func) in FIRST_OF_SEVERAL:
        yield from _bound(target.elts[0], value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _bound(one, part)


def _stored_in(node: ast.AST) -> set[str]:
    """Names that a statement binds, those in functions within it left out."""
    return {
        one.id for one in _own_nodes(node) if isinstance(one, ast.Name) and isinstance(one.ctx, (ast.Store, ast.Del))
    }


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node of a statement or a function that is in no function within it."""
    pending = list(ast.iter_child_nodes(node)) if isinstance(node, SCOPES) else [node]
    while pending:
        one = pending.pop()
        if isinstance(one, SCOPES):
            continue
        yield one
        pending += ast.iter_child_nodes(one)


def _taken_return(body: Sequence[ast.stmt], decide: Decide) -> ast.Return | None:
    """The first ``return`` that statements come to; None where that is not known, or where they come to none."""
    for node in body:
        if isinstance(node, ast.Return):
            return node
        if not any(isinstance(one, ast.Return) for one in _own_nodes(node)):
            continue
        holds = decide(node.test) if isinstance(node, ast.If) else None
        if not isinstance(node, ast.If) or holds is None:
            return None
        taken = node.body if holds else node.orelse
        if any(isinstance(one, ast.Return) for part in taken for one in _own_nodes(part)):
            return _taken_return(taken, decide)
    return None


def is_cell(node: ast.AST) -> bool:
    """Whether it is a cell of a marimo notebook."""
    if not isinstance(node, Function):
        return False
    names = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return any(isinstance(one, ast.Attribute) and one.attr == CELL for one in names)


def _parameters(function: Function) -> list[str]:
    if is_cell(function):
        return []
    own = function.args
    return [one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs)]


def default_of(function: Function, name: str) -> ast.expr | None:
    own = function.args
    ordered = [*own.posonlyargs, *own.args]
    pairs = zip(reversed(ordered), reversed(own.defaults), strict=False)
    defaults = {one.arg: value for one, value in pairs}
    defaults |= {
        one.arg: value for one, value in zip(own.kwonlyargs, own.kw_defaults, strict=True) if value is not None
    }
    return defaults.get(name)
