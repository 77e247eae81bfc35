"""Variables of the environment that a program sets itself, before what it imports reads them."""

import ast
from typing import Final

from vlmplan.other_trainers.programs.calls import Program
from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.record import Unwritten

ENVIRONMENT: Final = "environ"
"""Of ``os``."""
SETDEFAULT: Final = "setdefault"
PRECISION: Final = "ACCELERATE_MIXED_PRECISION"
"""Accelerate's, of which a value that only running the program tells is kept by its text."""


def variables_of(program: Program) -> dict[str, str]:
    """What ``os.environ["NAME"] = "value"`` and ``os.environ.setdefault("NAME", "value")`` set; of a variable that is
    set twice the last value, or that which is set outright."""
    outright: dict[str, str] = {}
    otherwise: dict[str, str] = {}
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and last_name(target.value) == ENVIRONMENT:
                    _take(program, outright, target.slice, node.value)
        elif isinstance(node, ast.Call) and _is_default(node):
            _take(program, otherwise, *node.args)
    return otherwise | outright


def _is_default(node: ast.Call) -> bool:
    if not isinstance(node.func, ast.Attribute) or len(node.args) != 2:
        return False
    return node.func.attr == SETDEFAULT and last_name(node.func.value) == ENVIRONMENT


def _take(program: Program, found: dict[str, str], name: ast.expr, value: ast.expr) -> None:
    said, text = program.value_of(name), program.value_of(value)
    if isinstance(said, str) and isinstance(text, str):
        found[said] = text
    elif said == PRECISION:
        found[PRECISION] = Unwritten(program.text_of(value))
