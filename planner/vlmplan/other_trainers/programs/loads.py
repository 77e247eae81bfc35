"""Which of a program's calls loads the model that its trainer is given."""

import ast
import re
from collections.abc import Iterator

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.calls import Call, Keyword
from vlmplan.other_trainers.programs.gathered import OTHERWISE, Gathered
from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.programs.references import NAME, OF_ITS_BYTES, reference_call, said
from vlmplan.other_trainers.programs.scopes import Function, Place


def load_of(found: Gathered, model: Keyword | None, kind: re.Pattern[str]) -> Call | None:
    """The call of this kind that loads ``model``: the last that runs before the trainer is made where only running the
    program hands it on, but for that of a reference."""
    held = None if model is None else found.program.call_of(model.node)
    if held is not None and kind.fullmatch(held.name):
        return held
    reference = reference_call(found)
    others = [call for call in found.all_calls if reference is None or call.node is not reference.node]
    before = run_before(found, [call for call in others if kind.fullmatch(call.name)])
    taken = found.last_before(before)
    if taken is not None:
        _refuse_other_loads(found, taken, before)
    return taken


def _refuse_other_loads(found: Gathered, taken: Call, calls: list[Call]) -> None:
    """Raise InputError where a condition that only running the program tells decides between models, or how one is
    loaded, and where two are loaded by different functions: of those of one function the last stays."""
    of_taken = found.named(taken, (NAME,))
    is_certain, function = found.program.is_certain(taken.node), found.program.function_of(taken.node)
    for call in calls:
        if is_certain and found.program.function_of(call.node) is function:
            continue
        own = found.named(call, (NAME,))
        other = next((key for key in OF_ITS_BYTES if said(own, key) != said(of_taken, key)), None)
        if other is not None:
            raise InputError(
                f"{found.program.source} loads its model in {len(calls)} places, with another {other} each, and only "
                f"running the program tells which; keep one of them{OTHERWISE}"
            )


def run_before(found: Gathered, calls: list[Call]) -> list[Call]:
    """Those of ``calls`` that run before the trainer is made, without those that another's failure leads to; all where
    the text does not tell: what a function does that merges, checks or answers afterwards is not what is trained."""
    if len(calls) < 2:
        return calls
    order = _Order(found, found.trainer)
    before = [call for call in calls if order.is_before(call.node)] or calls
    handlers = [node for node in ast.walk(found.program.tree) if isinstance(node, ast.ExceptHandler)]
    in_handlers = {id(node) for handler in handlers for node in ast.walk(handler)}
    return [call for call in before if id(call.node) not in in_handlers] or before


def is_before_trainer(found: Gathered, node: ast.AST) -> bool:
    """Whether the text tells that a node runs before the trainer is made."""
    return is_before(found, node, found.trainer)


def is_before(found: Gathered, node: ast.AST, made: Call) -> bool:
    """Whether the text tells that a node runs before the call ``made``."""
    return _Order(found, made).is_before(node)


class _Order:
    """The functions that are called before a call is made, and up to where those run that make it."""

    def __init__(self, found: Gathered, made: Call) -> None:
        self._program = program = found.program
        self._calls = [call.node for call in found.all_calls]
        functions = [one for one in ast.walk(program.tree) if isinstance(one, Function)]
        self._functions: dict[str, list[Function]] = {}
        for one in functions:
            self._functions.setdefault(one.name, []).append(one)
        for holder in ast.walk(program.tree):
            if isinstance(holder, ast.ClassDef):  # a call of a class runs what makes its objects
                makers = [one for one in holder.body if isinstance(one, Function) and one.name == "__init__"]
                self._functions.setdefault(holder.name, []).extend(makers)
        self._called: set[int] = set()
        self._until: dict[int, Place] = {}
        self._go_back(made.node)

    def is_before(self, node: ast.AST) -> bool:
        function = self._program.function_of(node)
        until = self._until.get(id(function))
        return id(function) in self._called or (until is not None and Place.end_of(node) < until)

    def _go_back(self, node: ast.AST) -> None:
        """Take what runs before ``node``: of its function, and of those that call that."""
        function = self._program.function_of(node)
        if id(function) in self._until:
            return
        self._until[id(function)] = Place.end_of(node)  # arguments and what has the method are made before
        for call in self._calls:
            if self._program.function_of(call) is function and Place.end_of(call) < Place.end_of(node):
                self._take(call)
        callers = [] if function is None else list(self._callers(function))
        for caller in callers:
            self._go_back(caller)
        if function is not None and not callers:  # something else calls it: all that a module does runs before
            self._called.add(id(None))

    def _callers(self, function: Function) -> Iterator[ast.Call]:
        names = [name for name, own in self._functions.items() if function in own]
        return (call for call in self._calls if last_name(call.func) in names)

    def _take(self, call: ast.Call) -> None:
        """Take the functions that ``call`` runs, and those that these do."""
        for function in self._functions.get(last_name(call.func), []):
            if id(function) not in self._called:
                self._called.add(id(function))
                for one in self._calls:
                    if self._program.function_of(one) is function:
                        self._take(one)
