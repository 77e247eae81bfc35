"""Whole numbers of a shell's expressions: ``$((16 / 3))``, ``$(expr 16 / 3)``."""

import ast
import re
from collections.abc import Callable, Mapping

from vlmplan.files.json_reader import shown

WHOLE_NUMBERS = re.compile(r"[0-9\s()+*/%-]{1,200}")
OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: _quotient(a, b),
    ast.Mod: lambda a, b: a - b * _quotient(a, b),
}
"""Of whole numbers, as a shell computes them: cut off towards zero."""


def whole_number(text: str) -> int | None:
    """The number that an expression of whole numbers is; None for another, or one that no shell computes."""
    if WHOLE_NUMBERS.fullmatch(text) is None:
        return None
    try:
        return _number(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < 10**12:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError(shown(ast.dump(node)))


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
