"""Which parts of a model a program leaves trained that sets ``requires_grad`` itself.

Loops over ``model.visual.parameters()`` and such, with conditions on the names of parameters, and ``requires_grad_`` of
modules are read one after another. peft freezes what it adapts and trains its adapters, whatever was said before
(``peft/tuners/tuners_utils.py`` ``mark_only_adapters_as_trainable``).
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vlmplan.other_trainers.programs.calls import Call, Program
from vlmplan.other_trainers.programs.scopes import Function, Place
from vlmplan.other_trainers.programs.stores import GRADIENTS, Store
from vlmplan.other_trainers.record import Unwritten

VISION, PROJECTOR, LANGUAGE = "vision", "projector", "language"
PARTS: Final = (VISION, PROJECTOR, LANGUAGE)
PARTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "visual": (VISION, PROJECTOR),
    **dict.fromkeys("vision_tower vision_model vision_encoder image_encoder vision_backbone".split(), (VISION,)),
    **dict.fromkeys("multi_modal_projector mm_projector merger connector aligner mlp1".split(), (PROJECTOR,)),
    **dict.fromkeys("language_model text_model llm".split(), (LANGUAGE,)),
}
"""By the names that models have for them; Qwen's ``visual`` has its merger in it."""
PASSED: Final = frozenset("model base_model module get_model get_base_model".split())
"""What stands between a model and its parts."""
WALKS: Final = ("parameters", "named_parameters")
OF_ADAPTERS: Final = "lora"
LOADER: Final = "from_pretrained"
MAX_STEPS: Final = 20


class Setting(NamedTuple):
    """``parts`` that a statement trains or freezes; None for what is not known."""

    parts: tuple[str, ...] | None
    trains: bool
    statement: ast.stmt
    is_of_adapters: bool = False
    """Whether it leaves trained what adapters are alone."""


def left_trained(
    program: Program, loads: Call | None, adapts: Call | None, trains: Call, *, has_adapters: bool
) -> dict[str, Any]:
    """The value of ``GRADIENTS``: whether each part is trained, as a program leaves it that says so; nothing for
    another. ``loads`` and ``adapts``: the calls that load the model and put adapters on, before the trainer is made."""
    settings = [one for one in _settings(program, loads, program.function_of(trains.node)) if one.parts != ()]
    if has_adapters:
        start = None if adapts is None else Place.of(adapts.node)
        settings = [one for one in settings if start is not None and Place.of(one.statement) > start]
        settings = [one for one in settings if not one.is_of_adapters]
    if not settings:
        return {}
    unknown = next((one for one in settings if has_adapters or one.parts is None), None)
    if unknown is not None:
        return {GRADIENTS: Unwritten(program.text_of(unknown.statement))}
    trained = dict.fromkeys(PARTS, True)
    for one in settings:
        trained |= dict.fromkeys(one.parts or (), one.trains)
    return {GRADIENTS: trained}


def _settings(program: Program, loads: Call | None, around: Function | None) -> Iterator[Setting]:
    loops = {id(node): loop for loop in program.loops for own in loop.body for node in ast.walk(own)}
    for store in program.stores:
        if store.name != GRADIENTS:
            continue
        value = None if store.value is None else program.value_of(store.value)
        function, holder = program.function_of(store.statement), store.holder
        if function is not None and not program.is_called(function.name) and function is not around:
            continue  # a hook, such as one that has what embeddings return require gradients, or what nobody needs
        loop = loops.get(id(store.statement))
        is_of_loop = loop is not None and isinstance(holder, ast.Name) and holder.id in _names_in(loop.target)
        if not isinstance(value, bool) or not program.is_certain(loop or store.statement):
            yield Setting(None, bool(value), store.statement)
        elif loop is not None and is_of_loop:
            yield _of_loop(program, loads, loop, store, trains=value)
        else:
            yield Setting(parts_of(program, loads, holder), value, store.statement)


def _names_in(node: ast.AST) -> list[str]:
    """Names that a target or the parameters of a function have."""
    return [
        one.arg if isinstance(one, ast.arg) else one.id for one in ast.walk(node) if isinstance(one, ast.arg | ast.Name)
    ]


def _of_loop(program: Program, loads: Call | None, loop: ast.For, store: Store, *, trains: bool) -> Setting:
    """What a statement of a loop over parameters sets."""
    walk, node = loop.iter, store.statement
    if not (isinstance(walk, ast.Call) and isinstance(walk.func, ast.Attribute) and walk.func.attr in WALKS):
        return Setting(None, trains, node)
    module = parts_of(program, loads, walk.func.value)
    within = [one for one in ast.walk(loop) if isinstance(one, ast.If) and any(node is own for own in ast.walk(one))]
    if not within or module == ():
        return Setting(module, trains, node)
    words, negates = _words_of(within[0].test)
    if len(within) > 1 or not words or not any(node is own for part in within[0].body for own in ast.walk(part)):
        return Setting(None, trains, node)
    is_lora = all(OF_ADAPTERS in word for word in words)
    return Setting(None if negates else _named(words), trains, node, is_of_adapters=is_lora and negates != trains)


def _named(words: list[str]) -> tuple[str, ...] | None:
    """The parts whose parameters' names have these words."""
    known = [PARTS_OF.get(word.strip(".").split(".")[-1]) for word in words]
    return None if None in known else tuple(part for parts in known if parts is not None for part in parts)


def _words_of(test: ast.expr) -> tuple[list[str], bool]:
    """The words that a condition asks a name for, and whether it asks that none is in it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        words, negates = _words_of(test.operand)
        return words, not negates
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        found = [_words_of(part) for part in test.values]
        is_one = all(words and not negates for words, negates in found)
        return ([word for words, _ in found for word in words], False) if is_one else ([], False)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        word = test.left.value if isinstance(test.left, ast.Constant) else None
        return ([word] if isinstance(word, str) else []), isinstance(test.ops[0], ast.NotIn)
    return [], False


def parts_of(program: Program, loads: Call | None, node: ast.expr) -> tuple[str, ...] | None:
    """The parts that a module is: of ``model.model.visual`` the tower; of the model that is trained all; of another
    none."""
    found: tuple[str, ...] = PARTS
    for _ in range(MAX_STEPS):
        if isinstance(node, ast.Attribute) and (node.attr in PARTS_OF or node.attr in PASSED):
            found = PARTS_OF[node.attr] if found == PARTS and node.attr in PARTS_OF else found
            node = node.value
        elif isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            node = node.func
        elif isinstance(node, ast.Name) and isinstance(bound := program.bound(node), (ast.Attribute, ast.Name)):
            node = bound
        else:
            break
    if not isinstance(node, ast.Name):
        return None
    made = program.call_of(node)
    if made is not None and made.name.endswith(LOADER):
        return found if loads is None or made.node is loads.node else ()
    function = program.function_of(node)
    is_handed = function is not None and node.id in _names_in(function.args) and program.bound(node) is None
    return None if is_handed or "model" not in node.id.casefold() else found
