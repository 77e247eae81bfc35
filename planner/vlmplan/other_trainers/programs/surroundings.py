"""What a program sets for its whole process, and what it puts around its model before the trainer gets that.

Sources: torch 2.13 ``cuda/memory.py`` ``set_per_process_memory_fraction`` and ``set_default_dtype``; accelerate 1.15
``AcceleratorState._check_initialized`` and ``Accelerator.prepare_model``; transformers 5.23 ``TrainingArguments``
``_setup_devices``, which forgets what an ``Accelerator`` before them was made with, and ``modeling_layers.py``.
"""

import ast
import re
from typing import Final

from vlmplan.other_trainers.programs.calls import Call
from vlmplan.other_trainers.programs.changed_parts import is_of_model, refuse
from vlmplan.other_trainers.programs.environment import PRECISION, variables_of
from vlmplan.other_trainers.programs.gathered import Gathered
from vlmplan.other_trainers.programs.loads import is_before, is_before_trainer

MEMORY_SHARE: Final = "set_per_process_memory_fraction"
DEFAULT_TYPES: Final = ("set_default_dtype", "set_default_tensor_type")
AS_BY_ITSELF: Final = re.compile(r"(?:.*\.)?(?:float32|float|FloatTensor)")
"""torch's own default type."""
WRAPPERS: Final = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
"""What shares out a model, which the trainer does by itself."""
ACCELERATOR: Final = "Accelerator"
PREPARES: Final = ("prepare", "prepare_model")
MIXED: Final = "mixed_precision"
OF_ARGUMENTS: Final = ("fp16", "bf16")
"""Precisions by the keys that the trainer's arguments have for them."""
NOT_MIXED: Final = (None, "no")
CHECKPOINTS: Final = "gradient_checkpointing"


def take_surroundings(found: Gathered, loads: Call | None, arguments: Call | None) -> list[str]:
    """Notes on what is taken not to run. Raises InputError for what changes memory or time, and no plan has: a part of
    a GPU's memory, another default type, a model that is shared out or under ``autocast`` before the trainer gets
    it."""
    notes: list[str] = []
    for call in found.all_calls:
        name = call.name.rpartition(".")[2]
        is_asked = name in (MEMORY_SHARE, *DEFAULT_TYPES, *WRAPPERS, ACCELERATOR, *PREPARES)
        if not is_asked or not is_before_trainer(found, call.node):  # which takes the longer
            continue
        text = found.program.text_of(call.node)
        if name == MEMORY_SHARE and _share(found, call) != 1.0:
            refuse(found, f"{text} leaves the run a part of the GPU's memory")
        elif name in DEFAULT_TYPES and not _is_default_type(found, call):
            refuse(found, f"{text} decides the type of all that is made without one")
        elif name in WRAPPERS and _takes_model(found, loads, call):
            if found.program.is_certain(call.node):
                refuse(found, f"{text} shares the model out before the trainer does")
            notes.append(f"{text} is taken not to run: the trainer shares the model out by itself")
        elif call.name == ACCELERATOR:
            _refuse_another_precision(found, call, arguments)
        elif name in PREPARES and _takes_model(found, loads, call):
            _refuse_autocast_around(found, call)
    return notes


def take_precision_of_variable(found: Gathered, *, is_bf16: bool) -> None:
    """Take the precision of accelerate's variable, which ``TrainingArguments`` have where they say neither bf16 nor
    fp16 (``__post_init__``); ``is_bf16``: whether they are bf16 where nothing is said, as TRL's. Raises InputError for
    one that is not planned."""
    kind = variables_of(found.program).get(PRECISION)
    is_said = any(found.values.get(name) for name in OF_ARGUMENTS) or (is_bf16 and found.values.get("bf16") is None)
    if kind in (None, "no") or is_said:
        return
    if kind not in OF_ARGUMENTS:
        refuse(found, f"{PRECISION} is {kind}, where {', '.join(OF_ARGUMENTS)} and no are planned")
    found.values[kind] = True
    found.keywords.pop(kind, None)


def _share(found: Gathered, call: Call) -> object:
    """The part of a GPU's memory that a call leaves to the process; None where only running the program tells."""
    said = found.named(call, ("fraction",)).get("fraction")
    return None if said is None or said.worth is None else said.worth.value


def _is_default_type(found: Gathered, call: Call) -> bool:
    """Whether torch makes what nothing is said of in the type that a call sets, by itself, too."""
    said = call.node.args[0] if call.node.args else None
    names = () if said is None else (str(found.program.value_of(said)), found.program.text_of(said).strip("\"'"))
    return any(AS_BY_ITSELF.fullmatch(name) for name in names)


def _takes_model(found: Gathered, loads: Call | None, call: Call) -> bool:
    given = [*call.node.args, *(one.value for one in call.node.keywords if one.arg in ("module", "model"))]
    return loads is not None and any(is_of_model(found, loads, one) for one in given)


def _mixes(call: Call) -> object:
    """The precision that an ``Accelerator`` is asked for; its text where only running the program tells."""
    said = call.keywords.get(MIXED)
    return None if said is None else said.text if said.worth is None else said.worth.value


def _refuse_another_precision(found: Gathered, call: Call, arguments: Call | None) -> None:
    """Refuse an ``Accelerator`` that is made between the trainer's arguments and the trainer, with another precision:
    where that is not DeepSpeed's, accelerate stops when the trainer makes its own."""
    kind = _mixes(call)
    if kind is None or arguments is None or not is_before(found, arguments.node, call):
        return
    own = next((name for name in OF_ARGUMENTS if found.values.get(name)), "no")
    if kind != own and not found.values.get("deepspeed"):
        refuse(
            found,
            f"{found.program.text_of(call.node)} is made behind the trainer's arguments, which say {own}, and "
            f"accelerate stops when the trainer makes another",
        )


def _refuse_autocast_around(found: Gathered, call: Call) -> None:
    """Refuse a model that an ``Accelerator`` puts under ``autocast``, with outputs in float32."""
    holder = call.node.func.value if isinstance(call.node.func, ast.Attribute) else None
    made = None if holder is None else found.program.call_of(holder)
    if made is not None and made.name == ACCELERATOR and _mixes(made) not in NOT_MIXED:
        refuse(
            found,
            f"{found.program.text_of(call.node)} puts the model under autocast ({MIXED}={_mixes(made)}) with outputs "
            f"in float32, before the trainer does",
        )


def refuse_own_checkpoints(found: Gathered, loads: Call | None, *, is_on: bool) -> None:
    """Refuse checkpoints that attributes switch, where that leaves other layers with them than the trainer and calls
    do; ``is_on``: whether the trainer's arguments ask for them, with which it switches on all as it begins."""
    calls_on = found.values.get(CHECKPOINTS) is True and not is_on
    for store in found.program.stores if loads is not None and not is_on else ():
        value = None if store.value is None else found.program.value_of(store.value)
        if store.name != CHECKPOINTS or value is calls_on or not is_before_trainer(found, store.statement):
            continue
        if loads is not None and is_of_model(found, loads, store.holder):
            refuse(found, f"{found.program.text_of(store.statement)} switches checkpoints of a part of the model")
