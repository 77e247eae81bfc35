"""Modules of a program's own: what it imports of files beside it, put before its text.

``import`` finds them as Python does for ``python program.py`` and ``python -m package.program``: in the program's
folder, in those above it, and in ``src`` of these. Of each only the definitions are taken that are asked for, and what
these need of others. Where two files have the same name for something, one is called otherwise here.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from vlmplan.errors import VlmplanError
from vlmplan.files import text_of
from vlmplan.other_trainers.named_files import MAX_BYTES
from vlmplan.other_trainers.programs.source import LINE_ENDS

LIBRARIES: Final = frozenset(
    "accelerate bitsandbytes datasets deepspeed peft torch transformers trl unsloth unsloth_zoo".split()
)
"""Whose names mean themselves, though a folder beside a program may be called so."""
MAX_MODULES: Final = 12
MAX_FOLDERS_UP: Final = 3
"""Choices, so that nothing far away is read."""
SOURCES: Final = "src"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Origin(NamedTuple):
    """Where an imported name is from: ``from module import own``; ``own`` None: the module itself."""

    module: str
    level: int
    own: str | None


@dataclass(slots=True, eq=False)
class Module:
    """A file that is imported from: the places of its statements by the names that they define, and what it imports.
    ``taken``: the places of the statements that are asked for, ``names``: what its names are called in the program."""

    path: Path
    text: str
    body: list[ast.stmt]
    places: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    imports: dict[str, Origin] = field(default_factory=dict[str, Origin])
    taken: set[int] = field(default_factory=set[int])
    names: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Linked:
    """A program with what it imports: the ``text`` before its own, and the statements of both, by lines of both."""

    text: str = ""
    body: Sequence[ast.stmt] = ()
    files: tuple[Path, ...] = ()


def linked(tree: ast.Module, program: Path) -> Linked:
    """What the program of this path imports of modules of its own; ``tree`` is given lines behind theirs, and names in
    place of what it asks of a module as a whole (``config.RANK``). Nothing where they need each other without end."""
    try:
        return _Linker(program).linked(tree)
    except RecursionError:
        return Linked()


class _Linker:
    def __init__(self, program: Path) -> None:
        folder = self._folder = program.parent
        near = (folder, *folder.parents[:MAX_FOLDERS_UP])
        self._roots = tuple(root for one in near for root in (one, one / SOURCES))
        self._modules: dict[Path, Module | None] = {program: None}
        self._order: list[Module] = []
        """Those that are taken from, each behind those that it takes from."""
        self._used: set[str] = set()

    def linked(self, tree: ast.Module) -> Linked:
        self._used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        stored = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        handed = {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
        whole: dict[str, Module] = {}
        for name, origin in self._imports_of(tree, self._folder).items():
            module, own = self._resolved(origin, self._folder)
            if module is not None and own is not None:
                self._take(module, own, name)
            elif module is not None and name not in stored | handed:
                whole[name] = module
        attributes = _Attributes(whole, self._take)
        tree.body = [attributes.visit(node) for node in tree.body]
        return self._joined(tree)

    def _joined(self, tree: ast.Module) -> Linked:
        texts: list[str] = []
        body: list[ast.stmt] = []
        num_lines = 0
        for module in self._order:
            for place, node in enumerate(module.body):
                if place in module.taken or isinstance(
                    node, ast.ImportFrom
                ):  # a library's names may be called otherwise
                    _Renaming(module.names).visit(node)
                    body.append(ast.increment_lineno(node, num_lines))
            texts.append(module.text if LINE_ENDS.search(module.text[-1:]) else f"{module.text}\n")
            num_lines += len(LINE_ENDS.findall(texts[-1]))
        ast.increment_lineno(tree, num_lines)
        return Linked("".join(texts), [*body, *tree.body], tuple(module.path for module in self._order))

    # -- what is asked for ---------------------------------------------------------------------------------------

    def _take(self, module: Module, name: str, alias: str | None = None) -> str | None:
        """Take what a module calls ``name``; returns what it is called in the program, None where it is not there."""
        if name in module.names:
            return module.names[name]
        if name not in module.places:
            return self._take_imported(module, name, alias)
        free = name if alias is None and name not in self._used else alias or f"{name} of {module.path.name}"
        module.names[name] = free
        self._used.add(free)
        for place in module.places[name]:
            if place not in module.taken:
                module.taken.add(place)
                self._take_what_it_needs(module, place)
        if module not in self._order:
            self._order.append(module)
        return free

    def _take_imported(self, module: Module, name: str, alias: str | None) -> str | None:
        """Take what a module itself imports as ``name``."""
        origin = module.imports.pop(name, None)  # while it is looked for: modules may import from each other
        if origin is None:
            return None
        other, own = self._resolved(origin, module.path.parent)
        found = None if other is None or own is None else self._take(other, own, alias)
        module.imports[name] = origin
        module.names |= {} if found is None else {name: found}
        return found

    def _take_what_it_needs(self, module: Module, place: int) -> None:
        whole: dict[str, Module] = {}
        asked = {one.id for one in ast.walk(module.body[place]) if isinstance(one, ast.Name)}
        for name in sorted(asked & module.imports.keys()):
            other, own = self._resolved(module.imports[name], module.path.parent)
            whole |= {name: other} if other is not None and own is None else {}
        module.body[place] = _Attributes(whole, self._take).visit(module.body[place])
        for name in sorted((asked | _defined(module.body[place])) - whole.keys()):
            self._take(module, name)

    # -- where modules are ---------------------------------------------------------------------------------------

    def _imports_of(self, tree: ast.AST, folder: Path) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                name, level = node.module or "", node.level
                for one in node.names:
                    own = [one.name] if one.name != "*" else self._names_of(self._module(name, level, folder))
                    found |= {one.asname or part: Origin(name, level, part) for part in own}
            elif isinstance(node, ast.Import):
                whole = [one for one in node.names if one.asname or "." not in one.name]
                found |= {one.asname or one.name: Origin(one.name, 0, None) for one in whole}
        return found

    @staticmethod
    def _names_of(module: Module | None) -> list[str]:
        return [] if module is None else [*module.places, *module.imports]

    def _resolved(self, origin: Origin | None, folder: Path) -> tuple[Module | None, str | None]:
        """The module that a name is from, and its name there; None: it is a module itself."""
        if origin is None:
            return None, None
        module = self._module(origin.module, origin.level, folder)
        if origin.own is None or (module is not None and origin.own in (*module.places, *module.imports)):
            return module, origin.own
        return self._module(".".join(filter(None, (origin.module, origin.own))), origin.level, folder), None

    def _module(self, name: str, level: int, folder: Path) -> Module | None:
        parts = name.split(".") if name else []
        if not level and (not parts or parts[0] in LIBRARIES):
            return None
        roots = (folder, *folder.parents)[level - 1 : level] if level else self._roots
        for root in roots:
            stem = root.joinpath(*parts)
            for path in ([stem.with_name(f"{stem.name}.py")] if parts else []) + [stem / "__init__.py"]:
                with suppress(OSError):
                    if path in self._modules or path.is_file():
                        return self._opened(path)
        return None

    def _opened(self, path: Path) -> Module | None:
        if path in self._modules or len(self._modules) >= MAX_MODULES:
            return self._modules.get(path)
        self._modules[path] = None
        try:
            text = text_of(path, name=str(path), most_bytes=MAX_BYTES)
            tree = ast.parse(text)
        except (VlmplanError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        module = self._modules[path] = Module(path, text, tree.body)
        for place, node in enumerate(tree.body):
            for name in _defined(node):
                module.places.setdefault(name, []).append(place)
        module.imports = self._imports_of(tree, path.parent)
        return module


class _Attributes(ast.NodeTransformer):
    """``module.name`` of modules that are imported as a whole → the name that it has in the program."""

    def __init__(self, modules: Mapping[str, Module], take: Callable[[Module, str], str | None]) -> None:
        self._modules, self._take = modules, take

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        holder = node.value
        if isinstance(holder, ast.Name) and holder.id in self._modules:
            name = self._take(self._modules[holder.id], node.attr)
            if name is not None:
                return ast.copy_location(ast.Name(name, node.ctx), node)
        self.generic_visit(node)
        return node


class _Renaming(ast.NodeTransformer):
    """Names of the top of a module → what they are called in the program; those that a function binds stay its own."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = {name: other for name, other in names.items() if name != other}

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, (*DEFINITIONS, ast.Lambda)):
            return super().visit(node)
        if isinstance(node, DEFINITIONS):
            node.name = self._names.get(node.name, node.name)
        outer = self._names
        own = _bound_in(node)
        self._names = {name: other for name, other in outer.items() if name not in own}
        self.generic_visit(node)
        self._names = outer
        return node


def _bound_in(part: ast.AST) -> set[str]:
    """Names that a function or a class binds, parameters among them."""
    shared = {name for node in ast.walk(part) if isinstance(node, ast.Global) for name in node.names}
    handed = {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
    stored = {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return (handed | stored) - shared


def _defined(node: ast.stmt) -> set[str]:
    """Names that a statement at the top of a module defines, or whose value it changes (``TABLE["rank"] = 8``)."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    if _is_of_main(node):
        return set()
    found: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        one = pending.pop()
        if isinstance(one, (*DEFINITIONS, ast.Lambda)):
            found |= {one.name} if isinstance(one, DEFINITIONS) else set()
            continue
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        holder = one.value if isinstance(one, (ast.Subscript, ast.Attribute)) else None
        is_changed = isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store)
        is_changed |= isinstance(one, ast.Attribute) and (isinstance(one.ctx, ast.Store) or one.attr == "update")
        found |= {holder.id} if is_changed and isinstance(holder, ast.Name) else set()
        pending += ast.iter_child_nodes(one)
    return found


def _is_of_main(node: ast.stmt) -> bool:
    """``if __name__ == "__main__"``, which no import runs."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
