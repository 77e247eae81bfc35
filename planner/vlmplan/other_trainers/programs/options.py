"""The options of a program's own that ``argparse`` reads: what each is worth where the command says nothing of it."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from vlmplan.other_trainers.record import Unwritten

OPTION_MAKER: Final = "add_argument"
OPTION_READERS: Final = ("parse_args", "parse_known_args")
"""Of ``argparse``."""
WORDS: Final = "argv"
"""Of ``sys``: the words of the command, the program's own first."""
SWITCHES: Final[Mapping[str, bool]] = {"store_true": False, "store_false": True}
"""What an option is without its word, by its action."""
BOTH_WAYS: Final = "BooleanOptionalAction"


def option_defaults(statements: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Defaults of options that ``argparse`` reads one value of, by the names that they have in a program; None is that
    of an option that has none and is not required."""
    found: dict[str, ast.expr] = {}
    counts: Counter[str] = Counter()
    for node in statements:
        if not isinstance(node, ast.Call) or last_name(node.func) != OPTION_MAKER:
            continue
        keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
        name = _option_name(node, keywords.get("dest"))
        counts[name] += 1
        default = _default(node, keywords)
        if default is not None:
            found[name] = default
    return {name: value for name, value in found.items() if counts[name] == 1}


def required_options(statements: Sequence[ast.AST]) -> list[str]:
    """Options without which the program does not start, as its command says them."""
    found: list[str] = []
    for node in statements:
        if isinstance(node, ast.Call) and last_name(node.func) == OPTION_MAKER and node.args:
            keywords = {one.arg: one.value for one in node.keywords}
            needed, word = keywords.get("required"), node.args[-1]
            is_needed = isinstance(needed, ast.Constant) and needed.value is True
            found += [str(word.value)] if is_needed and isinstance(word, ast.Constant) else []
    return found


def given_value(value: object, node: ast.expr) -> ast.expr | None:
    """What a command says of an option that is used at ``node``; None where only the shell knows it.

    >>> given_value("2e-4", ast.Name("x")).value, given_value("False", ast.Name("x")).value
    (0.0002, False)
    """
    texts = cast(list[object], value) if isinstance(value, list) else [value]
    if any(isinstance(one, Unwritten) for one in texts):
        return None
    parts = [ast.copy_location(ast.Constant(_typed(one)), node) for one in texts]
    return ast.copy_location(ast.List(list(parts), ast.Load()), node) if isinstance(value, list) else parts[0]


def _typed(value: object) -> Any:
    text = str(value)
    if isinstance(value, bool) or text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _default(node: ast.Call, keywords: Mapping[str, ast.expr]) -> ast.expr | None:
    """What is written for it, or a constant at the option's own place."""
    action = keywords.get("action")
    kind = action.value if isinstance(action, ast.Constant) else last_name(action) if action is not None else ""
    if "default" in keywords:
        is_one = "nargs" not in keywords and kind in ("", "store", *SWITCHES, BOTH_WAYS)
        return keywords["default"] if is_one else None
    is_named = any(isinstance(one, ast.Constant) and str(one.value).startswith("-") for one in node.args)
    is_left = is_named and not (isinstance(needed := keywords.get("required"), ast.Constant) and needed.value)
    if kind in SWITCHES:
        return ast.copy_location(ast.Constant(SWITCHES[str(kind)]), node)
    return ast.copy_location(ast.Constant(None), node) if is_left and kind in ("", "store", BOTH_WAYS) else None


def _option_name(node: ast.Call, dest: ast.expr | None) -> str:
    names = [one.value for one in ([dest] if dest is not None else node.args) if isinstance(one, ast.Constant)]
    texts = [name for name in names if isinstance(name, str)]
    long = next((name for name in texts if name.startswith("--")), texts[0] if texts else "")
    return long.lstrip("-").replace("-", "_")


def last_name(node: ast.expr) -> str:
    """What a function is called, without where it is from."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def of_field(value: ast.expr | None) -> ast.expr | None:
    """The default that ``dataclasses.field`` says, or pydantic's ``Field``."""
    if not isinstance(value, ast.Call) or last_name(value.func) not in ("field", "Field"):
        return value
    named = {one.arg: one.value for one in value.keywords}
    factory = named.get("default_factory")
    return factory.body if isinstance(factory, ast.Lambda) else named.get("default")
