"""What names of a program are bound to where they are used, and the defaults of its own options: nothing is run."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

from vlmplan.other_trainers.programs.options import (
    OPTION_READERS,
    WORDS,
    given_value,
    last_name,
    of_field,
    option_defaults,
)
from vlmplan.other_trainers.programs.parsed_arguments import arguments_default
from vlmplan.other_trainers.programs.scopes import (
    Bound,
    Decide,
    Place,
    Scopes,
    bind,
    bindings_of,
    default_of,
    entries_before,
    is_cell,
)

OWN = ("self", "cls")
GROWING = frozenset("append extend insert remove pop clear".split())
"""Methods of lists."""
MAX_STEPS = 20
"""From a name to what it is bound to. A choice."""


class Bindings:
    """The bindings of a program, of which ``statements`` are the nodes that may run.

    A name that one assignment binds and nothing else does is worth that wherever it is used. Else it is worth the last
    that was bound before, of the function that it is in or at the top of the program; one of the top is known in
    functions where it is bound once. ``decide`` tells which conditions hold.
    """

    def __init__(
        self, tree: ast.Module, statements: Sequence[ast.AST], decide: Decide, given: Mapping[str, object]
    ) -> None:
        """``given``: options of the program's own that the command says."""
        self._given = given
        words = given.get(WORDS)
        self.words = cast("list[str]", words) if isinstance(words, list) else [""]
        self._said: dict[str, ast.expr | None] = {}
        self._once = _assigned_once(statements)
        self.scopes = Scopes(tree, statements, decide)
        self._top: dict[str, list[Bound]] = {}
        self._at_top = frozenset(id(node) for node in _at_top(tree))
        self._shared = {name for node in statements if isinstance(node, ast.Global) for name in node.names}
        self._defaults = option_defaults(statements)
        self._stored = _stored_attributes(statements)
        self._stores_any = any(_stores_any(node) for node in statements)
        self._changed = _changed_entries(statements)
        self._grown = _grown_lists(statements)
        self._tree, self._decide = tree, decide
        self._stored_of: dict[int, Counter[str]] = {}

    def follow(self) -> None:
        """Go through the top of the program, by what is known of it so far."""
        bind(self._tree.body, self._decide, self._top)

    def of(self, node: ast.Name) -> ast.expr | None:
        """What a name that is read is bound to; None where only running the program tells."""
        if node.id in self._once:
            return self._once[node.id]
        if self.scopes.is_local(node):
            return self.scopes.of(node)
        places = self._top.get(node.id, [])
        if node.id in self._shared:
            return None
        if id(node) not in self._at_top:
            return places[0].value if len(places) == 1 else None
        before = [one.value for one in places if one.place <= Place.of(node)]
        return before[-1] if before else None

    def entries_of(self, node: ast.Name) -> dict[str, ast.expr | None]:
        """Entries that statements add to the table of this name before it is used here."""
        own = self.scopes.entries_of(node)
        return own if own is not None else entries_before(self._top, node)

    def of_option(self, node: ast.Attribute) -> ast.expr | None:
        """The default of an option of the program's own: ``args.rank`` behind ``args = parser.parse_args()``."""
        holder = self.holder_of(node.value)
        if not isinstance(holder, ast.Call) or last_name(holder.func) not in OPTION_READERS or self._stores_any:
            return None
        if self._is_stored(holder, node.attr):
            return None
        if node.attr in self._given:
            return self._said.setdefault(node.attr, given_value(self._given[node.attr], node))
        return self._defaults.get(node.attr)

    def _is_stored(self, holder: ast.expr | None, name: str) -> bool:
        """Whether a statement may give this attribute of what stands for an object another value."""
        others = (self.holder_of(one) for one in self._stored.get(name, ()))
        return any(other is None or other is holder for other in others)

    def is_given(self, name: str) -> bool:
        return name in self._given

    def of_class(self, node: ast.Attribute) -> tuple[ast.expr | None, bool]:
        """What an attribute of a class of the program's own is, or of an object that it makes; and whether an option
        of its own may say otherwise (``Config(**vars(parser.parse_args()))``)."""
        holder = self.holder_of(node.value)
        made = holder if isinstance(holder, ast.Call) else None
        name = last_name(holder.func) if made is not None and isinstance(holder, ast.Call) else last_name(node.value)
        found = self.scopes.classes.get(name) if name not in OWN else self._class_around.get(id(node))
        if self._is_stored(holder, node.attr) or self._stores_any:
            return None, False
        named = {} if made is None else {one.arg: one.value for one in made.keywords}
        if found is None:
            return (named.get(node.attr) or self._of_arguments(name, node)) if made is not None else None, False
        if (result := _property_of(found, node.attr)) is not None:
            return result, False
        if stored := self._stored_in(found)[node.attr]:
            is_set = None not in named and stored == 1
            return (_set_by(found, node.attr, made, named) if is_set else None), False
        if node.attr in named:
            return named[node.attr], False
        default = of_field(self._fields_of(found).get(node.attr)) or self._of_arguments(name, node)
        return self._defaults.get(node.attr, default) if None in named else default, None in named

    def _stored_in(self, holder: ast.ClassDef) -> Counter[str]:
        """How often methods of a class give its objects' attributes values."""
        if id(holder) not in self._stored_of:
            self._stored_of[id(holder)] = _stored_by(holder)
        return self._stored_of[id(holder)]

    @cached_property
    def _class_around(self) -> dict[int, ast.ClassDef]:
        """The class whose methods have an attribute, by node, of those whose objects are all alike."""
        alike = [one for one in self.scopes.classes.values() if self.scopes.is_made_of_nothing(one.name)]
        return {id(node): one for one in alike for node in ast.walk(one) if isinstance(node, ast.Attribute)}

    def _fields_of(self, holder: ast.ClassDef) -> dict[str, ast.expr]:
        """What a class says of its fields, and those that it is made of."""
        bases = (self.scopes.classes.get(last_name(base)) for base in holder.bases)
        found: dict[str, ast.expr] = {}
        for base in bases:
            found |= {} if base is None or base is holder else self._fields_of(base)
        return found | {key: value for one in holder.body for key, value in bindings_of(one)}

    def _of_arguments(self, name: str, node: ast.Attribute) -> ast.expr | None:
        """What a trainer's arguments have by themselves."""
        key = f"{name}.{node.attr}"
        if key not in self._said:
            self._said[key] = arguments_default(self._tree, name, node)
        return self._said[key]

    def holder_of(self, node: ast.expr) -> ast.expr | None:
        """What stands for an expression: the value of a name, the result of a function of the program's own."""
        for _ in range(MAX_STEPS):
            if isinstance(node, ast.Name):
                value = self.of(node)
            elif (chosen := _chosen_of(node)) is not None:
                value = chosen
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                value = self.scopes.result_of(node.func.id)
                if value is None or last_name(node.func) in OPTION_READERS:
                    return node
            else:
                return node
            if value is None:
                return None
            node = value
        return None

    def is_grown(self, node: ast.Name) -> bool:
        """Whether the list of this name is given other items after it was made."""
        return node.id in self._grown

    def is_changed(self, node: ast.expr, key: object) -> bool:
        """Whether an entry of the table that a name stands for is given another value somewhere."""
        return isinstance(node, ast.Name) and not {(node.id, key), (node.id, None)}.isdisjoint(self._changed)


def _property_of(holder: ast.ClassDef, name: str) -> ast.expr | None:
    """What a property of a class returns, where that is all that it does."""
    for one in holder.body:
        if isinstance(one, ast.FunctionDef) and one.name == name and isinstance(one.body[-1], ast.Return):
            is_property = any(last_name(made).endswith("property") for made in one.decorator_list)
            is_alone = all(isinstance(node, ast.Expr) for node in one.body[:-1])
            return one.body[-1].value if is_property and is_alone else None
    return None


def _stored_by(made: ast.ClassDef) -> Counter[str]:
    """How often methods of a class give its objects' attributes values."""
    return Counter(
        node.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and last_name(node.value) in OWN
    )


def _set_by(
    holder: ast.ClassDef, name: str, made: ast.Call | None, named: Mapping[str | None, ast.expr]
) -> ast.expr | None:
    """What ``__init__`` alone sets an attribute to, where it always does; of one of its parameters what the call that
    makes the object hands on."""
    init = next((one for one in holder.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if init is None:
        return None
    values = [
        one.value
        for one in init.body
        if isinstance(one, (ast.Assign, ast.AnnAssign))
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if isinstance(target, ast.Attribute) and target.attr == name
    ]
    value = values[0] if values else None
    handed = {one.arg for one in ast.walk(init.args) if isinstance(one, ast.arg)}
    if not isinstance(value, ast.Name) or value.id not in handed:
        return value
    is_by_place = made is not None and bool(made.args)
    return named.get(value.id, None if is_by_place else default_of(init, value.id))


def _chosen_of(node: ast.expr) -> ast.expr | None:
    """The table of which ``{key: value for key, value in table.items() if key in known}`` chooses, by what a release
    takes: taken for all of it."""
    if not isinstance(node, ast.DictComp) or len(node.generators) != 1:
        return None
    (one,) = node.generators
    pair = one.target.elts if isinstance(one.target, ast.Tuple) else []
    is_copied = [last_name(part) for part in pair] == [last_name(node.key), last_name(node.value)]
    items = one.iter.func if isinstance(one.iter, ast.Call) else None
    is_of_items = isinstance(items, ast.Attribute) and items.attr == "items"
    return items.value if is_copied and is_of_items and isinstance(items, ast.Attribute) else None


def _assigned_once(statements: Sequence[ast.AST]) -> dict[str, ast.expr]:
    """Names that one assignment binds and nothing else does."""
    values: dict[str, ast.expr] = {}
    counts: Counter[str] = Counter()
    handed = {id(arg) for node in statements if is_cell(node) for arg in ast.walk(node) if isinstance(arg, ast.arg)}
    for node in statements:
        values |= dict(bindings_of(node))
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            counts[node.id] += 1
        elif isinstance(node, ast.arg) and id(node) not in handed:
            counts[node.arg] += 2
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            counts[node.target.id] += 1
    return {name: value for name, value in values.items() if counts[name] == 1}


def _at_top(tree: ast.Module) -> list[ast.Name]:
    """Every name that is in no function and no class: it is read where it stands."""
    found: list[ast.Name] = []
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        found += [node] if isinstance(node, ast.Name) else []
        pending += ast.iter_child_nodes(node)
    return found


def _stored_attributes(statements: Sequence[ast.AST]) -> dict[str, list[ast.expr]]:
    """What attributes are given other values of, by their names: ``args.rank = 8``, ``setattr(args, "rank", 8)``."""
    found: dict[str, list[ast.expr]] = {}
    for node in statements:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            if node.value.id not in OWN:
                found.setdefault(node.attr, []).append(node.value)
        elif isinstance(node, ast.Call) and last_name(node.func) == "setattr" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant):
                found.setdefault(str(name.value), []).append(node.args[0])
    return found


def _stores_any(node: ast.AST) -> bool:
    """Whether attributes are given other values by names that only running the program tells: ``setattr(settings, key,
    value)``, ``vars(args).update(...)``, ``parser.set_defaults(**table)``."""
    if not isinstance(node, ast.Call):
        return False
    name, target = last_name(node.func), node.args[0] if node.args else None
    if name == "setattr":
        is_own = target is not None and last_name(target) in OWN
        return not is_own and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant))
    holder = node.func.value if isinstance(node.func, ast.Attribute) else None
    if name == "update" and holder is not None:
        return last_name(holder) == "__dict__" or (isinstance(holder, ast.Call) and last_name(holder.func) == "vars")
    return name == "set_defaults" and any(one.arg is None for one in node.keywords)


def _grown_lists(statements: Sequence[ast.AST]) -> frozenset[str]:
    """Names of what methods of lists change."""
    calls = (node.func for node in statements if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return frozenset(call.value.id for call in calls if call.attr in GROWING and isinstance(call.value, ast.Name))


def _changed_entries(statements: Sequence[ast.AST]) -> frozenset[tuple[str, object]]:
    """Entries of tables that are given other values, by the table's name and the key; None for any key."""
    found: set[tuple[str, object]] = set()
    for node in statements:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found.add((node.value.id, node.slice.value if isinstance(node.slice, ast.Constant) else None))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
            found |= {(node.func.value.id, None)} if isinstance(node.func.value, ast.Name) else set()
    return frozenset(found)
