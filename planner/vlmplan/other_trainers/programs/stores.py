"""Attributes that a program gives its objects after it has made them: ``args.max_length = 4096``, ``setattr(...)``."""

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.programs.scopes import Place

SETTER: Final = "setattr"
GRADIENTS, GRADIENTS_SETTER = "requires_grad", "requires_grad_"
"""Of parameters, and what sets it for all of a module."""


class Store(NamedTuple):
    """``holder.name = value``; ``value`` is None where what is stored is made of what was there."""

    holder: ast.expr
    name: str
    value: ast.expr | None
    statement: ast.stmt


def stores_of(statements: Iterable[ast.AST]) -> list[Store]:
    """Those of statements that may run, in the order of the text."""
    found = [store for node in statements if isinstance(node, ast.stmt) for store in _stored_by(node)]
    return sorted(found, key=lambda one: Place.of(one.statement))


def uncertain_nodes(tree: ast.Module, holds: Callable[[ast.expr], bool | None]) -> frozenset[int]:
    """Every node behind a condition that only running the program tells."""
    found: set[int] = set()
    for node in ast.walk(tree):
        is_open = isinstance(node, ast.Match) or (isinstance(node, ast.If) and holds(node.test) is None)
        if is_open and id(node) not in found:
            found |= {id(one) for child in ast.iter_child_nodes(node) for one in ast.walk(child)}
    return frozenset(found)


def asks_for(tree: ast.Module, node: ast.AST, name: str) -> bool:
    """Whether a condition that a node is behind looks at an attribute of this name (``if args.name:``)."""
    around = (one for one in ast.walk(tree) if isinstance(one, ast.If))
    tests = (one.test for one in around if any(part is node for step in one.body for part in ast.walk(step)))
    return any(isinstance(part, ast.Attribute) and part.attr == name for test in tests for part in ast.walk(test))


def _stored_by(node: ast.stmt) -> Iterator[Store]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                yield Store(target.value, target.attr, node.value, node)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        yield Store(node.target.value, node.target.attr, None, node)
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    if value is None:
        return
    for call in ast.walk(value):
        if not isinstance(call, ast.Call):
            continue
        name = call.args[1] if last_name(call.func) == SETTER and len(call.args) > 2 else None
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield Store(call.args[0], name.value, call.args[2], node)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == GRADIENTS_SETTER:
            own = call.args[0] if call.args else ast.copy_location(ast.Constant(True), call)
            yield Store(call.func.value, GRADIENTS, own, node)
