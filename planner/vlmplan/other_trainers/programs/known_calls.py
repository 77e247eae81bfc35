"""What calls are worth that a program makes of its own values: conversions, lookups, variables of the environment, and
files of its settings, which are read."""

import ast
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final, cast

from vlmplan.other_trainers.programs.options import last_name

ASKS_FOR_BF16: Final = frozenset(("is_bfloat16_supported", "is_bf16_supported", "is_torch_bf16_gpu_available"))
"""Functions that say whether the GPU computes in bf16: taken for yes, as every one does since 2020."""

CAPABILITY: Final = "get_device_capability"
"""Of ``torch.cuda``: a GPU's compute capability, of which 8 and later compute in bf16."""
FIRST_WITH_BF16: Final = 8


def _length(value: Any) -> int:
    """Of a list or a table; Python's own would take a name's letters for what it means. Raises TypeError for others."""
    if isinstance(value, (list, dict)):
        return len(cast("list[Any]", value))
    raise TypeError


CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "list": list[Any],
    "tuple": list[Any],
    "Path": str,
    "len": _length,
}
TEXT_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    name: getattr(str, name)
    for name in ("endswith lower removeprefix removesuffix replace rstrip split startswith strip upper".split())
}
HEAD: Final = "lm_head"
"""Of a model, as functions that list its Linears leave it out."""
LOADERS: Final = frozenset(("safe_load", "load", "loads", "full_load"))
"""Of PyYAML, ``json`` and OmegaConf."""
OPENERS: Final = frozenset(("open", "read", "read_text", "decode"))
"""What stands between a loader and a path."""
JOINS: Final = frozenset(("join", "joinpath", "Path", "str", "abspath", "resolve", "expanduser"))
"""What makes a path of others."""


def applied(node: ast.expr, name: str, value: Any) -> Any:
    """What an expression of a comprehension makes of ``value``, which ``name`` is there: methods of text and
    conversions alone. Raises ValueError for others."""
    if isinstance(node, ast.Name) and node.id == name:
        return value
    if isinstance(node, ast.Call) and not node.keywords:
        if isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_METHODS:
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            if len(words) == len(node.args):
                return TEXT_METHODS[node.func.attr](applied(node.func.value, name, value), *words)
        elif last_name(node.func) in CONVERSIONS and len(node.args) == 1:
            return CONVERSIONS[last_name(node.func)](applied(node.args[0], name, value))
    raise ValueError


def is_lookup(node: ast.Call) -> bool:
    """``table.get(key)`` of something that is not the environment."""
    return isinstance(node.func, ast.Attribute) and node.func.attr == "get" and not is_of_environment(node)


def is_of_environment(node: ast.Call) -> bool:
    """``os.environ.get(name)``, ``os.getenv(name)``."""
    of_os = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and last_name(node.func.value) == "environ"
    return of_os or last_name(node.func) == "getenv"


def is_of_cuda(node: ast.Call) -> bool:
    """``torch.cuda.is_available()``."""
    is_asked = isinstance(node.func, ast.Attribute) and node.func.attr == "is_available"
    return is_asked and isinstance(node.func, ast.Attribute) and last_name(node.func.value) == "cuda"


def asks_for_capability(node: ast.Compare, bound: Callable[[ast.Name], Any]) -> bool | None:
    """What a condition on a GPU's compute capability is where it asks for bf16, as one on a GPU that computes in it:
    ``torch.cuda.get_device_capability()[0] >= 8``; None for another condition.

    >>> asks_for_capability(ast.parse("get_device_capability() < (8, 0)", mode="eval").body, lambda name: None)
    False
    """
    holder: Any = node.left
    for kind in (ast.Name, ast.Subscript, ast.Name):
        if isinstance(holder, kind):
            holder = bound(holder) if isinstance(holder, ast.Name) else holder.value
    if not isinstance(holder, ast.Call) or last_name(holder.func) != CAPABILITY or len(node.ops) != 1:
        return None
    version = node.comparators[0]
    first = version.elts[0] if isinstance(version, (ast.Tuple, ast.List)) and version.elts else version
    asked = first.value if isinstance(first, ast.Constant) else None
    wanted = {ast.GtE: FIRST_WITH_BF16, ast.Lt: FIRST_WITH_BF16, ast.Gt: FIRST_WITH_BF16 - 1}
    is_of_bf16 = asked is not None and wanted.get(type(node.ops[0])) == asked  # pyright: ignore[reportArgumentType]
    return not isinstance(node.ops[0], ast.Lt) if is_of_bf16 else None


def entry_of(table: ast.expr | None, key: ast.expr) -> ast.expr | None:
    """What a table has under a key, where that is written in the program: ``{"rank": 8}``, ``dict(rank=8)``."""
    name = key.value if isinstance(key, ast.Constant) else None
    found: list[tuple[object, ast.expr]] = []
    if isinstance(table, ast.Call) and last_name(table.func) == "dict" and not table.args:
        found = [(one.arg, one.value) for one in table.keywords]
    elif isinstance(table, ast.Dict):
        pairs = zip(table.keys, table.values, strict=True)
        found = [(one.value if isinstance(one, ast.Constant) else None, value) for one, value in pairs]
    if name is None or any(one is None for one, _ in found):  # another table is unpacked into it, say
        return None
    return dict(found).get(name)


def opened_path(node: ast.expr, value_of: Callable[[ast.expr], Any], bound: Callable[[ast.Name], Any]) -> str | None:
    """The path of the file whose text or values an expression is: as far as it is known, from its end."""
    for _ in range(len(OPENERS) + len(JOINS)):
        if isinstance(node, ast.Name):
            found = bound(node)
            if not isinstance(found, ast.Call) or last_name(found.func) not in OPENERS:
                break
            node = found
        elif isinstance(node, ast.Call) and last_name(node.func) in OPENERS:
            is_method = isinstance(node.func, ast.Attribute)
            node = node.func.value if is_method and isinstance(node.func, ast.Attribute) else node.args[0]
        else:
            break
    ends = _ends(node, value_of, bound, 0)
    return str(PurePath(*ends)) if ends else None


def _ends(
    node: ast.expr, value_of: Callable[[ast.expr], Any], bound: Callable[[ast.Name], Any], depth: int
) -> list[str]:
    """The last parts of a path that are known."""
    if depth > len(JOINS):
        return []
    value = value_of(node)
    if isinstance(value, str):
        return [value]
    parts: list[ast.expr] = []
    if isinstance(node, ast.IfExp):  # whether a path is absolute, say: its end is the same
        parts = [node.body]
    elif isinstance(node, ast.Name):
        found = bound(node)
        parts = [] if found is None else [found]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Call) and last_name(node.func) in JOINS:
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr != "join"
        parts = [*([node.func.value] if is_method and isinstance(node.func, ast.Attribute) else []), *node.args]
    found_parts: list[str] = []
    for part in parts:
        own = _ends(part, value_of, bound, depth + 1)
        found_parts = [*found_parts, *own] if own else []
    return found_parts


def finds_linears(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function lists what all Linears of a model but the head are called, as ``find_all_linear_names`` of
    QLoRA's program does: one that leaves others out by their names does not."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    called = {last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts -= {ast.get_docstring(function, clean=False)}
    leaves_out = any(isinstance(node, ast.Continue) for node in nodes)
    return {"named_modules", "isinstance"} <= called and texts <= {HEAD, "."} and not leaves_out
