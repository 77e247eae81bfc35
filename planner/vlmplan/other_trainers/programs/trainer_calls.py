"""The call that makes a trainer: whose class that is, and its arguments by their names.

Sources: ``Trainer`` of ``transformers/trainer.py`` (5.23), and ``trl/trainer/*_trainer.py`` (TRL 1.16).
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.programs.calls import Call, Program
from vlmplan.other_trainers.programs.gathered import DPO_TRAINERS, GRPO_TRAINERS, KTO_TRAINERS, OTHERWISE, UNSLOTH_GRPO
from vlmplan.other_trainers.programs.options import last_name

LIBRARIES: Final = frozenset(("transformers", "trl", "unsloth", "unsloth_zoo", "swift"))
"""Whose trainers are transformers' and TRL's, or made of them."""
OF_SAMPLES: Final = ("data_collator", "train_dataset", "eval_dataset")
POSITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys((*DPO_TRAINERS, *KTO_TRAINERS), ("model", "ref_model", "args", *OF_SAMPLES)),
    **dict.fromkeys((*GRPO_TRAINERS, UNSLOTH_GRPO), ("model", "reward_funcs", "args", *OF_SAMPLES[1:])),
}
"""The first arguments of trainers that take others than ``OF_OTHERS``."""
OF_OTHERS: Final = ("model", "args", *OF_SAMPLES)
OPTIMIZERS: Final = ("optimizers", "optimizer_cls_and_kwargs")
"""By which a program hands the trainer an optimizer in place of that of ``optim``."""


def named_trainer(program: Program, call: Call) -> Call:
    """``call`` with its first arguments by their names. Raises InputError where its class is another than its name
    says, or where it is given an optimizer of the program's own."""
    _refuse_another_class(program, call)
    positions = POSITIONS.get(call.name, OF_OTHERS)
    given = {
        name: program.keyword(name, node, program.span(node), is_removable=False)
        for name, node in zip(positions, call.node.args, strict=False)
    }
    named = replace(call, keywords={**given, **call.keywords})
    for name in OPTIMIZERS:
        _refuse_optimizer(program, named, name)
    return named


def _refuse_optimizer(program: Program, call: Call, name: str) -> None:
    given = call.keywords.get(name)
    if given is None or (given.worth is not None and given.worth.value is None):
        return
    first = given.node.elts[0] if isinstance(given.node, ast.Tuple) and given.node.elts else given.node
    if isinstance(first, ast.Constant) and first.value is None:
        return  # (None, schedule): the optimizer is that of optim
    raise InputError(
        f"{program.source}: {name} of {call.own_name} is {given.text}, an optimizer of the program's own in place of "
        f"that of optim, which is not read; leave it out and say it with optim{OTHERWISE}"
    )


def _refuse_another_class(program: Program, call: Call) -> None:
    if call.own_name in program.subclasses:
        return
    own = next((node for node in ast.walk(program.tree) if _defines(node, call.own_name)), None)
    module = None if own is not None else _module_of(program.tree, call.node.func)
    if own is not None:
        raise InputError(
            f"{program.source} trains with {call.own_name}, a class of its own that is not just a trainer "
            f"of transformers or TRL: what it computes is not known{OTHERWISE}"
        )
    if module is not None and module.partition(".")[0] not in LIBRARIES:
        raise InputError(
            f"{program.source} trains with {call.own_name} of {module}, which is not read; those of transformers, TRL "
            f"and Unsloth are{OTHERWISE}"
        )


def _defines(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _module_of(tree: ast.AST, function: ast.expr) -> str | None:
    """The module that a class is imported from, by its own name or as a part of that module; None where no import
    tells."""
    holder = function.value if isinstance(function, ast.Attribute) else None
    name = last_name(function if holder is None else holder)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            own = f"{'.' * node.level}{node.module or ''}"
            return own if holder is None else f"{own}.{name}"
        if holder is not None and isinstance(node, ast.Import):
            found = next((one.name for one in node.names if (one.asname or one.name) == name), None)
            if found is not None:
                return found
    return None
