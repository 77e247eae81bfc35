"""What an expression is worth, as far as its text says it: nothing is run."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from vlmplan.other_trainers.programs.bindings import Bindings
from vlmplan.other_trainers.programs.known_calls import (
    ASKS_FOR_BF16,
    CONVERSIONS,
    LOADERS,
    TEXT_METHODS,
    applied,
    asks_for_capability,
    entry_of,
    finds_linears,
    is_lookup,
    is_of_cuda,
    is_of_environment,
    opened_path,
)
from vlmplan.other_trainers.programs.options import WORDS, last_name
from vlmplan.other_trainers.programs.scopes import Function
from vlmplan.other_trainers.record import Unwritten
from vlmplan.recipe.choices import ALL_LINEAR

MAX_DEPTH = 50
DTYPES = frozenset(("bfloat16", "float16", "float32", "half", "float", "uint8"))
"""Of ``torch``, which keys of configurations name as text."""
TASKS_OF_PEFT = "TaskType"
"""An enumeration of ``peft`` whose members are named as text, too."""
MAIN = ("__name__", "__main__")
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: operator.mod,
}
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
KINDS: Mapping[str, type] = {"str": str, "list": list, "dict": dict, "bool": bool, "int": int, "float": float}
MOST = 1e15
"""Of a number that arithmetic may make. A choice, so that no text takes long."""


MAX_LENGTH = 10_000
"""Of a text or a list that is put together. A choice, so that none takes much memory."""


class UnknownValueError(Exception):
    """Only running the program tells it."""


class Worth(NamedTuple):
    """A value, and the expression that it is written in: another than was asked for where that is a name."""

    value: Any
    written: ast.expr
    asks_for_bf16: bool = False
    is_default: bool = False
    """Of an option of the program's own, which its user may give otherwise."""


@dataclass(frozen=True, slots=True)
class Literals:
    """Values of expressions of a program with these ``bindings``. ``load`` reads a file of settings; None where none is
    opened."""

    bindings: Bindings
    load: Callable[[str], Any] | None = None
    _known: dict[int, Worth] = field(default_factory=dict[int, Worth])
    """By node, so that what is used twice is asked once."""
    asked: list[ast.expr] = field(default_factory=list[ast.expr])
    """Conditions that were decided as on a GPU that computes in bf16."""

    def forget(self) -> None:
        """What is known so far may have changed."""
        self._known.clear()

    def worth(self, node: ast.expr, depth: int = 0) -> Worth:
        """The value of an expression. Raises UnknownValueError."""
        if id(node) not in self._known:
            self._known[id(node)] = self._found(node, depth)
        return self._known[id(node)]

    def _found(self, node: ast.expr, depth: int) -> Worth:
        if depth > MAX_DEPTH:
            raise UnknownValueError
        if isinstance(node, ast.Name):
            found = Worth(MAIN[1], node) if node.id == MAIN[0] else self._of_name(self.bindings.of(node), depth)
            if isinstance(found.value, list) and self.bindings.is_grown(node):
                raise UnknownValueError
            return found
        if isinstance(node, ast.Constant) and not isinstance(node.value, Unwritten):
            return Worth(node.value, node)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return self._made(node, depth, node.elts, list)
        if isinstance(node, ast.Dict):
            return Worth(self._table(node, depth), node)
        if isinstance(node, ast.Call):
            return self._of_call(node, depth)
        return self._computed(node, depth)

    def holds(self, test: ast.expr) -> bool | None:
        """Whether a condition holds; None where only running the program tells."""
        try:
            found = self.worth(test)
        except UnknownValueError:
            return None
        if found.asks_for_bf16:
            self.asked.append(test)
        return bool(found.value)

    def _value(self, node: ast.expr) -> Any:
        """The value, or None."""
        try:
            return self.worth(node).value
        except UnknownValueError:
            return None

    def _made(self, node: ast.expr, depth: int, parts: Sequence[ast.expr], make: Callable[[list[Any]], Any]) -> Worth:
        """What is made of the values of several expressions."""
        found = [self.worth(part, depth + 1) for part in parts]
        try:
            value = make([one.value for one in found])
        except (ArithmeticError, TypeError, ValueError, KeyError, IndexError, OverflowError):
            raise UnknownValueError from None
        asks, defaults = any(one.asks_for_bf16 for one in found), any(one.is_default for one in found)
        return Worth(value, node, asks, defaults)

    def _of_name(self, value: ast.expr | None, depth: int) -> Worth:
        if value is None:
            raise UnknownValueError
        return self.worth(value, depth + 1)

    def _of_attribute(self, node: ast.Attribute, depth: int) -> Worth:
        if node.attr in DTYPES:
            return Worth({"half": "float16", "float": "float32"}.get(node.attr, node.attr), node)
        if node.attr == WORDS and last_name(node.value) == "sys":
            return Worth(self.bindings.words, node, is_default=not self.bindings.is_given(WORDS))
        if last_name(node.value) == TASKS_OF_PEFT:
            return Worth(node.attr, node)
        option = self.bindings.of_option(node)
        if option is not None:
            return self.worth(option, depth + 1)._replace(is_default=not self.bindings.is_given(node.attr))
        own, may_differ = self.bindings.of_class(node)
        if own is not None:
            found = self.worth(own, depth + 1)
            return found._replace(is_default=found.is_default or may_differ)
        return self._made(node, depth, [node.value], lambda parts: _entry(parts[0], node.attr))

    def _table(self, node: ast.Dict, depth: int) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant):
                raise UnknownValueError
            table[key.value] = self.worth(value, depth + 1).value
        return table

    def _of_call(self, node: ast.Call, depth: int) -> Worth:
        name = last_name(node.func)
        if name in ASKS_FOR_BF16:
            return Worth(True, node, asks_for_bf16=True)
        if is_of_cuda(node):
            return Worth(True, node)
        if is_of_environment(node):
            found = Worth(None, node) if len(node.args) < 2 else self.worth(node.args[1], depth + 1)
            return found._replace(written=node, is_default=True)
        if is_lookup(node) and isinstance(node.func, ast.Attribute) and node.args:
            return self._looked_up(node, node.func.value, node.args, depth)
        if name in TEXT_METHODS and isinstance(node.func, ast.Attribute) and not node.keywords:
            parts = [node.func.value, *node.args]
            return self._made(node, depth, parts, lambda found: _short(TEXT_METHODS[name](*found)))
        if name in CONVERSIONS and len(node.args) == 1 and not node.keywords:
            return self._made(node, depth, node.args, lambda parts: CONVERSIONS[name](parts[0]))
        if name == "getattr" and len(node.args) > 1 and isinstance(key := self._value(node.args[1]), str):
            return self._of_attribute(ast.copy_location(ast.Attribute(node.args[0], key), node), depth + 1)
        if name in LOADERS and node.args:
            return Worth(self._of_file(node.args[0], self._value, self.bindings.of), node)
        if not isinstance(node.func, ast.Name):
            raise UnknownValueError
        return self._of_own_function(name, node, depth)

    def _of_own_function(self, name: str, node: ast.Call, depth: int) -> Worth:
        if name == "isinstance" and len(node.args) == len(("object", "kind")):
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            names = [last_name(kind) for kind in kinds]
            return self._made(node, depth, node.args[:1], lambda parts: _is_of(parts[0], names))
        own, result = self.bindings.scopes.functions.get(name), self.bindings.scopes.result_of(name)
        if own is None:
            raise UnknownValueError
        if finds_linears(own):
            return Worth(ALL_LINEAR, node)
        try:
            return self._of_name(result, depth)._replace(written=node)
        except UnknownValueError:
            if result is None:
                raise
            return Worth(self._of_own_loader(own, result, node), node)

    def _of_own_loader(self, function: Function, result: ast.expr, node: ast.Call) -> Any:
        """The values of the file that a function of the program's own loads, by the path that this call hands on."""
        result = result.values[0] if isinstance(result, ast.BoolOp) else result
        made = self.bindings.of(result) if isinstance(result, ast.Name) else result
        if not isinstance(made, ast.Call) or last_name(made.func) not in LOADERS or not made.args:
            raise UnknownValueError
        names = [one.arg for one in function.args.args]
        handed = dict(zip(names, node.args, strict=False)) | {one.arg: one.value for one in node.keywords if one.arg}

        def bound(one: ast.Name) -> ast.expr | None:
            return handed.get(one.id) or self.bindings.of(one)

        def value_of(one: ast.expr) -> Any:
            return self._value(handed.get(one.id, one) if isinstance(one, ast.Name) else one)

        return self._of_file(made.args[0], value_of, bound)

    def _looked_up(self, node: ast.Call, table: ast.expr, words: Sequence[ast.expr], depth: int) -> Worth:
        """``table.get(key, default)``."""
        holder, key = self.worth(table, depth + 1), self._value(words[0])
        value: Any = holder.value
        if not isinstance(value, dict) or not isinstance(key, str) or self.bindings.is_changed(table, key):
            raise UnknownValueError
        known = cast(dict[Any, Any], value)
        if key in known:
            return Worth(known[key], node, is_default=holder.is_default)
        found = Worth(None, node) if len(words) < 2 else self.worth(words[1], depth + 1)
        return found._replace(written=node)

    def _of_file(self, node: ast.expr, value_of: Callable[[ast.expr], Any], bound: Callable[[ast.Name], Any]) -> Any:
        """The values of a file that a program loads."""
        path = None if self.load is None else opened_path(node, value_of, bound)
        found = None if path is None or self.load is None else self.load(path)
        if found is None:
            raise UnknownValueError
        return found

    def _computed(self, node: ast.expr, depth: int) -> Worth:
        if isinstance(node, ast.Subscript):
            return self._of_entry(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._made(node, depth, [node.operand], lambda parts: not parts[0])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._made(node, depth, [node.operand], lambda parts: -_number(parts[0]))
        if isinstance(node, ast.BoolOp):
            return self._of_boolean(node, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            return self._of_comparison(node, depth)
        if isinstance(node, ast.IfExp):
            test = self.worth(node.test, depth + 1)
            chosen = self.worth(node.body if test.value else node.orelse, depth + 1)
            return Worth(chosen.value, node, test.asks_for_bf16, test.is_default or chosen.is_default)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return self._made(node, depth, [node.left, node.right], lambda parts: _arithmetic(node.op, *parts))
        if isinstance(node, ast.ListComp):
            return self._of_comprehension(node, depth)
        if isinstance(node, ast.JoinedStr):
            return Worth(_short("".join(self._piece(part, depth) for part in node.values)), node)
        raise UnknownValueError

    def _of_entry(self, node: ast.Subscript, depth: int) -> Worth:
        """``table[key]``: of a table that is written in the program the others of it need not be known."""
        if isinstance(node.slice, ast.Constant) and self.bindings.is_changed(node.value, node.slice.value):
            raise UnknownValueError
        written = entry_of(self.bindings.holder_of(node.value), node.slice)
        if written is not None:
            return self.worth(written, depth + 1)
        return self._made(node, depth, [node.value, node.slice], lambda parts: _entry(*parts))

    def _of_comparison(self, node: ast.Compare, depth: int) -> Worth:
        asked = asks_for_capability(node, self.bindings.of)
        if asked is not None:
            return Worth(asked, node, asks_for_bf16=True)
        compare = COMPARISONS[type(node.ops[0])]
        return self._made(node, depth, [node.left, *node.comparators], lambda parts: compare(*parts))

    def _of_comprehension(self, node: ast.ListComp, depth: int) -> Worth:
        """``[name.strip() for name in text.split(",") if name.strip()]``."""
        (one, *others) = node.generators
        if others or not isinstance(one.target, ast.Name):
            raise UnknownValueError
        name = one.target.id

        def made(parts: list[Any]) -> list[Any]:
            items = [item for item in list(parts[0]) if all(applied(test, name, item) for test in one.ifs)]
            return [applied(node.elt, name, item) for item in items]

        return self._made(node, depth, [one.iter], made)

    def _of_boolean(self, node: ast.BoolOp, depth: int) -> Worth:
        """``one or other``, ``one and other``: those behind the one that decides are not asked."""
        found = self.worth(node.values[0], depth + 1)
        for part in node.values[1:]:
            if bool(found.value) is isinstance(node.op, ast.Or):
                break
            after = self.worth(part, depth + 1)
            found = after._replace(is_default=found.is_default or after.is_default)
        return found._replace(written=node)

    def _piece(self, part: ast.expr, depth: int) -> str:
        """A part of an f-string."""
        if isinstance(part, ast.FormattedValue):
            if part.format_spec is not None or part.conversion != -1:
                raise UnknownValueError
            return str(self.worth(part.value, depth + 1).value)
        return str(self.worth(part, depth + 1).value)


def _is_of(value: Any, names: Sequence[str]) -> bool:
    """Whether a value is of one of Python's own kinds. Raises KeyError for others."""
    return isinstance(value, tuple(KINDS[name] for name in names))


def _entry(holder: Any, key: Any) -> Any:
    """Raises KeyError where nothing is known of it."""
    if isinstance(holder, (dict, list)):
        return cast(Any, holder)[key]
    raise KeyError(key)


def _arithmetic(kind: ast.operator, one: Any, other: Any) -> Any:
    if isinstance(kind, ast.Add) and isinstance(one, str) and isinstance(other, str):
        return _short(one + other)
    if isinstance(kind, ast.Add) and isinstance(one, list) and isinstance(other, list):
        return _short(cast(Any, one) + other)
    result = OPERATORS[type(kind)](_number(one), _number(other))
    if abs(result) > MOST:
        raise UnknownValueError
    return result


def _short(value: Any) -> Any:
    if not isinstance(value, bool) and len(value) > MAX_LENGTH:
        raise UnknownValueError
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnknownValueError
    return value
