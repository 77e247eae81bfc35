"""What an expression is worth, as far as its text says it: nothing is run."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from vlmplan.other_trainers.programs.bindings import Bindings, last_name

MAX_DEPTH = 50
DTYPES = frozenset(("bfloat16", "float16", "float32", "half", "float", "uint8"))
"""Of ``torch``, which keys of configurations name as text."""
TASKS_OF_PEFT = "TaskType"
"""An enumeration of ``peft`` whose members are named as text, too."""
ASKS_FOR_BF16 = frozenset(("is_bfloat16_supported", "is_bf16_supported", "is_torch_bf16_gpu_available"))
"""Functions that say whether the GPU computes in bf16: taken for yes, as every one does since 2020."""
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: operator.mod,
}
MOST = 1e15
"""Of a number that arithmetic may make. A choice, so that no text takes long."""


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
    """Values of expressions of a program with these ``bindings``."""

    bindings: Bindings

    def worth(self, node: ast.expr, depth: int = 0) -> Worth:
        """The value of an expression. Raises UnknownValueError."""
        if depth > MAX_DEPTH:
            raise UnknownValueError
        if isinstance(node, ast.Name):
            return self._of_name(self.bindings.of(node), depth)
        if isinstance(node, ast.Constant):
            return Worth(node.value, node)
        if isinstance(node, ast.Attribute) and node.attr in DTYPES:
            return Worth({"half": "float16", "float": "float32"}.get(node.attr, node.attr), node)
        if isinstance(node, ast.Attribute) and last_name(node.value) == TASKS_OF_PEFT:
            return Worth(node.attr, node)
        if isinstance(node, ast.Attribute):
            return self._of_name(self.bindings.of_option(node), depth)._replace(is_default=True)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return Worth([self.worth(part, depth + 1).value for part in node.elts], node)
        if isinstance(node, ast.Dict):
            return Worth(self._table(node, depth), node)
        return self._computed(node, depth)

    def _of_name(self, value: ast.expr | None, depth: int) -> Worth:
        if value is None:
            raise UnknownValueError
        return self.worth(value, depth + 1)

    def _table(self, node: ast.Dict, depth: int) -> dict[Any, Any]:
        table: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant):
                raise UnknownValueError
            table[key.value] = self.worth(value, depth + 1).value
        return table

    def _computed(self, node: ast.expr, depth: int) -> Worth:
        if isinstance(node, ast.Call) and last_name(node.func) in ASKS_FOR_BF16:
            return Worth(True, node, asks_for_bf16=True)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            inner = self.worth(node.operand, depth + 1)
            if isinstance(node.op, ast.Not):
                return Worth(not inner.value, node, inner.asks_for_bf16)
            return Worth(-_number(inner.value), node)
        if isinstance(node, ast.IfExp):
            test = self.worth(node.test, depth + 1)
            chosen = self.worth(node.body if test.value else node.orelse, depth + 1)
            return Worth(chosen.value, node, test.asks_for_bf16)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return Worth(self._arithmetic(node, depth), node)
        if isinstance(node, ast.JoinedStr):
            return Worth("".join(self._piece(part, depth) for part in node.values), node)
        raise UnknownValueError

    def _arithmetic(self, node: ast.BinOp, depth: int) -> Any:
        one, other = (self.worth(side, depth + 1).value for side in (node.left, node.right))
        if isinstance(node.op, ast.Add) and isinstance(one, str) and isinstance(other, str):
            return one + other
        try:
            result = OPERATORS[type(node.op)](_number(one), _number(other))
        except ArithmeticError:
            raise UnknownValueError from None
        if abs(result) > MOST:
            raise UnknownValueError
        return result

    def _piece(self, part: ast.expr, depth: int) -> str:
        """A part of an f-string."""
        if isinstance(part, ast.FormattedValue):
            if part.format_spec is not None or part.conversion != -1:
                raise UnknownValueError
            return str(self.worth(part.value, depth + 1).value)
        return str(self.worth(part, depth + 1).value)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnknownValueError
    return value
