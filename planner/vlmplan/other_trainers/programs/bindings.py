"""What names of a program are bound to where they are used, and the defaults of its own options: nothing is run."""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

OPTION_MAKER = "add_argument"
OPTION_READER = "parse_args"
"""Of ``argparse``."""
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class _Place(NamedTuple):
    line: int
    column: int


class Bindings:
    """The bindings of a program, of which ``statements`` are the nodes that may run.

    A name that one assignment binds and nothing else does is worth that wherever it is used; one that is bound again at
    the top of the program, one statement after another, is there worth the last before.
    """

    def __init__(self, tree: ast.Module, statements: Sequence[ast.AST]) -> None:
        self._once = _assigned_once(statements)
        self._in_order = _assigned_in_order(tree)
        self._at_top = frozenset(id(node) for node in _outside_of_scopes(tree) if isinstance(node, ast.Name))
        self._defaults = _option_defaults(statements)

    def of(self, node: ast.Name) -> ast.expr | None:
        """What a name that is read is bound to; None where only running the program tells."""
        if node.id in self._once:
            return self._once[node.id]
        if id(node) not in self._at_top:
            return None
        place = _Place(node.lineno, node.col_offset)
        before = [value for end, value in self._in_order.get(node.id, []) if end <= place]
        return before[-1] if before else None

    def of_option(self, node: ast.Attribute) -> ast.expr | None:
        """The default of an option of the program's own: ``args.rank`` behind ``args = parser.parse_args()``."""
        holder = self.of(node.value) if isinstance(node.value, ast.Name) else None
        if not isinstance(holder, ast.Call) or last_name(holder.func) != OPTION_READER:
            return None
        return self._defaults.get(node.attr)


def last_name(node: ast.expr) -> str:
    """What a function is called, without where it is from."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that an assignment binds, part by part where both sides are written as several."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, part in zip(target.elts, value.elts, strict=True):
            yield from _bound(one, part)


def _bindings_of(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """What a statement binds if it is an assignment."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [pair for one in targets for pair in _bound(one, node.value)]


def _assigned_once(statements: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Names that one assignment binds and nothing else does."""
    values: dict[str, ast.expr] = {}
    counts: Counter[str] = Counter()
    for node in statements:
        values |= dict(_bindings_of(node))
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            counts[node.id] += 1
        elif isinstance(node, ast.arg):
            counts[node.arg] += 2
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            counts[node.target.id] += 1
    return {name: value for name, value in values.items() if counts[name] == 1}


def _outside_of_scopes(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that is in no function and no class: it runs where it stands."""
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, SCOPES):
            continue
        yield node
        pending += ast.iter_child_nodes(node)


def _assigned_in_order(tree: ast.Module) -> dict[str, list[tuple[_Place, ast.expr]]]:
    """What statements at the top of the program bind, and where each ends. A name that is bound in an ``if``, a loop or
    a function that calls it global is not among them."""
    found: dict[str, list[tuple[_Place, ast.expr]]] = {}
    for node in tree.body:
        for name, value in _bindings_of(node):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            found.setdefault(name, []).append((_Place(node.end_lineno, node.end_col_offset), value))
    stores = (node for node in _outside_of_scopes(tree) if isinstance(node, ast.Name))
    counts = Counter(node.id for node in stores if isinstance(node.ctx, (ast.Store, ast.Del)))
    shared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    return {name: places for name, places in found.items() if counts[name] == len(places) and name not in shared}


def _option_defaults(statements: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Defaults of options that ``argparse`` reads one value of, by the names that they have in a program."""
    found: dict[str, ast.expr] = {}
    counts: Counter[str] = Counter()
    for node in statements:
        if not isinstance(node, ast.Call) or last_name(node.func) != OPTION_MAKER:
            continue
        keywords = {one.arg: one.value for one in node.keywords}
        name = _option_name(node, keywords.get("dest"))
        counts[name] += 1
        if "default" in keywords and not {"action", "nargs"} & keywords.keys():
            found[name] = keywords["default"]
    return {name: value for name, value in found.items() if counts[name] == 1}


def _option_name(node: ast.Call, dest: ast.expr | None) -> str:
    names = [one.value for one in ([dest] if dest is not None else node.args) if isinstance(one, ast.Constant)]
    texts = [name for name in names if isinstance(name, str)]
    long = next((name for name in texts if name.startswith("--")), texts[0] if texts else "")
    return long.lstrip("-").replace("-", "_")
