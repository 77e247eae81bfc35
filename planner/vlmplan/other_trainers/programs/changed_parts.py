"""What a program changes of a model between loading and training, and of the trainer before that trains.

Liger's functions and the attention that a model is told later are read; what puts something else in the place of a
part, or casts one part alone, is refused by its text: no plan has it.

Sources: liger-kernel 0.8.5 ``transformers/monkey_patch.py`` and ``auto_model.py``; transformers 5.23
``modeling_utils.py`` ``set_attn_implementation``, ``trainer.py`` ``compute_loss`` and ``create_optimizer``.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.liger import LIGER_FUNCTIONS
from vlmplan.other_trainers.programs.calls import Call
from vlmplan.other_trainers.programs.casts import CASTS, DTYPE, TO
from vlmplan.other_trainers.programs.frozen import PARTS, PARTS_OF, PASSED, WALKS, parts_of
from vlmplan.other_trainers.programs.gathered import OTHERWISE, Gathered
from vlmplan.other_trainers.programs.loads import is_before, is_before_trainer
from vlmplan.other_trainers.programs.scopes import Place
from vlmplan.other_trainers.programs.stores import GRADIENTS, Store, asks_for
from vlmplan.other_trainers.record import Unwritten

LIGER: Final = re.compile(r"_?apply_liger_kernel(_to_\w+)?")
LIGER_CLASS: Final = "AutoLigerKernelForCausalLM"
LIGER_KEY, LIGER_TABLE = "use_liger_kernel", "liger_kernel_config"
LIGER_TO, OF_ONE_MODEL = "apply_liger_kernel_to_", "instance"
"""Of the functions' names: ahead of the type of the models whose classes one patches, and in its place for one that
looks at the model that it is given."""
OF_INSTANCE: Final = frozenset({"model", "model_type"})
"""Which model Liger's functions patch, of their arguments."""
ATTENTION: Final = "attn_implementation"
SETS_ATTENTION: Final = f"set_{ATTENTION}"
CONFIG: Final = "config"
MODULES: Final = frozenset((*PARTS_OF, *PASSED, *"lm_head layers embed_tokens encoder decoder forward h wte".split()))
"""Attributes of models that compute."""
TENSORS: Final = frozenset(("weight", "bias", "data", "grad", "device", DTYPE, CONFIG, "generation_config"))
"""Ends of what is no module: a cast of a tensor makes another."""
DATA: Final = "data"
OF_TRAINER: Final = frozenset("optimizer model ref_model compute_loss training_step create_optimizer".split())
"""What a trainer trains by, and what."""
OWN_LOSS: Final = "compute_loss_func"


def take_changed_parts(found: Gathered, loads: Call | None) -> None:
    """Take Liger's kernels and a later attention; ``loads``: the call that loads the model, None for the trainer's own.

    Raises InputError for what changes a part of the model, or of the trainer, otherwise.
    """
    _take_liger(found, loads)
    if loads is not None:
        _take_attention(found, loads)
    refuse_changed_parts(found, loads)


def refuse_changed_parts(found: Gathered, loads: Call | None) -> None:
    """Raise InputError for what changes a part of the model, or of the trainer."""
    loss = found.trainer.keywords.get(OWN_LOSS)
    if loss is not None and (loss.worth is None or loss.worth.value is not None):
        refuse(found, f"{OWN_LOSS} is {loss.text}, a loss of the program's own in place of the model's")
    for store in found.program.stores:
        if _is_of_trainer(found, store):
            refuse(found, f"{found.program.text_of(store.statement)} gives the trainer something else than its own")
    for node, what in _changes(found, loads):
        if is_before_trainer(found, node):
            refuse(found, f"{found.program.text_of(node)} {what}")


def refuse(found: Gathered, sentence: str) -> None:
    raise InputError(f"{found.program.source}: {sentence}: not planned; leave it out{OTHERWISE}")


def _take_liger(found: Gathered, loads: Call | None) -> None:
    if loads is not None and loads.name.startswith(LIGER_CLASS):
        found.values[LIGER_KEY] = True
    for call in found.all_calls:
        if LIGER.fullmatch(call.name.rpartition(".")[2]) is None or not is_before_trainer(found, call.node):
            continue
        kernels = {name: one for name, one in call.keywords.items() if name not in OF_INSTANCE}
        known = {name: one.worth.value for name, one in kernels.items() if one.worth is not None}
        if call.unpacked or len(known) < len(kernels) or not found.program.is_certain(call.node):
            refuse(found, f"what {found.program.text_of(call.node)} patches only running the program tells")
        if "model" not in call.keywords and loads is not None and not is_before(found, call.node, loads):
            refuse(found, f"{call.name} patches classes of which the model is made already")
        found.values[LIGER_KEY] = True
        patched = call.name.rpartition(".")[2].partition(LIGER_TO)[2]
        if patched and patched != OF_ONE_MODEL:
            found.values[LIGER_FUNCTIONS] = [*found.values.get(LIGER_FUNCTIONS, []), patched]
        if known:
            found.values[LIGER_TABLE] = known


def _take_attention(found: Gathered, loads: Call) -> None:
    """Take what the loaded model is told to attend with, which counts as if it had been loaded so."""
    for call in found.all_calls:
        function = call.node.func
        if isinstance(function, ast.Attribute) and function.attr == SETS_ATTENTION:
            said = call.node.args[0] if call.node.args else next((one.value for one in call.node.keywords), None)
            if said is not None and is_of_model(found, loads, function.value):
                _tell(found, call.node, said)
    for store in found.program.stores:
        holder = store.holder
        is_of_config = isinstance(holder, ast.Attribute) and holder.attr == CONFIG and store.name == f"_{ATTENTION}"
        if is_of_config and isinstance(holder, ast.Attribute) and is_of_model(found, loads, holder.value):
            _tell(found, store.statement, store.value)


def _tell(found: Gathered, node: ast.expr | ast.stmt, said: ast.expr | None) -> None:
    value = None if said is None else found.program.value_of(said)
    is_known = isinstance(value, str) and found.program.is_certain(node)
    found.values[ATTENTION] = value if is_known else Unwritten(found.program.text_of(node))
    found.keywords.pop(ATTENTION, None)


def _changes(found: Gathered, loads: Call | None) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Statements and calls that change a part of the model that ``loads`` loads, and in words what they do."""
    if loads is None:
        return
    for store in found.program.stores:
        is_part = store.name in MODULES and not isinstance(store.value, ast.Constant)
        if is_part and is_of_model(found, loads, store.holder):
            yield store.statement, "puts something else in the place of a part of the model"
    for node in found.program.deletions:
        parts = [one for one in node.targets if not isinstance(one, ast.Name)]
        if any(is_of_model(found, loads, one) for one in parts):
            yield node, "takes a part of the model away"
    for call in found.all_calls:
        function = call.node.func
        if not isinstance(function, ast.Attribute) or not is_of_model(found, loads, function.value):
            continue
        is_part = isinstance(function.value, ast.Attribute) and function.value.attr not in PASSED
        if function.attr == "compile":
            yield call.node, "compiles the model"
        elif is_part and _casts(found, call.node):
            yield call.node, "casts a part of the model alone"
    yield from _cast_in_loops(found, loads)


def _cast_in_loops(found: Gathered, loads: Call) -> Iterator[tuple[ast.stmt, str]]:
    for loop in found.program.loops:
        walk = loop.iter.func if isinstance(loop.iter, ast.Call) else None
        if isinstance(walk, ast.Attribute) and walk.attr in WALKS and is_of_model(found, loads, walk.value):
            yield from ((node, "casts parameters one by one") for node in _cast_in(found, loop))


def _cast_in(found: Gathered, loop: ast.For) -> Iterator[ast.stmt]:
    """Statements of a loop over parameters that store a cast of one in its place; without those that make the trained
    ones float32 beside adapters, which are so as peft makes them."""
    within = {id(node) for own in loop.body for node in ast.walk(own)}
    for store in found.program.stores:
        if store.name != DATA or id(store.statement) not in within or not isinstance(store.value, ast.Call):
            continue
        is_trained = asks_for(found.program.tree, store.statement, GRADIENTS) and found.values.get("use_peft") is True
        is_wide = "32" in found.program.text_of(store.value) or found.program.text_of(store.value).endswith(".float()")
        if _casts(found, store.value) and not (is_trained and is_wide):
            yield store.statement


def _casts(found: Gathered, node: ast.Call) -> bool:
    """Whether a method casts: ``float()``, ``to(torch.float32)``."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != TO:
        return isinstance(node.func, ast.Attribute) and node.func.attr in CASTS
    said = [*node.args, *(word.value for word in node.keywords if word.arg == DTYPE)]
    return any("float" in found.program.text_of(one) for one in said)


def is_of_model(found: Gathered, loads: Call, node: ast.expr) -> bool:
    """Whether it is the model that is trained, or a module of it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and node.attr in TENSORS:
            return False
        node = node.value
    return isinstance(node, ast.Name) and parts_of(found.program, loads, node) == PARTS


def _is_of_trainer(found: Gathered, store: Store) -> bool:
    """Whether it is stored in the trainer before that trains."""
    if store.name not in OF_TRAINER:
        return False
    made = found.program.call_of(store.holder)
    if made is None or made.node is not found.trainer.node:
        return False
    function = found.program.function_of(store.statement)
    own = [call for call in found.all_calls if found.program.function_of(call.node) is function]
    trains = [call for call in own if call.name.rpartition(".")[2] == "train"]
    return not trains or Place.of(store.statement) < Place.of(trains[0].node)
