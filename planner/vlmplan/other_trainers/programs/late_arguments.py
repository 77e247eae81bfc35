"""What a program gives its trainer's arguments after the trainer is made: ``trainer.args.max_steps = 100``.

``Trainer.__init__`` of transformers 5.23 has read some of them by then, as have those of TRL's trainers; ``train`` and
the callbacks read others as they need them (``trainer.py``, ``trainer_callback.py``).
"""

import ast
from typing import Final

from vlmplan.errors import InputError
from vlmplan.other_trainers.hugging_face import WITHOUT_EFFECT
from vlmplan.other_trainers.programs.calls import Call, Keyword, Program
from vlmplan.other_trainers.programs.gathered import Gathered
from vlmplan.other_trainers.programs.loads import is_before
from vlmplan.other_trainers.programs.options import last_name
from vlmplan.other_trainers.programs.scopes import Place
from vlmplan.other_trainers.programs.stores import Store

READ_LATE: Final = WITHOUT_EFFECT.union(
    """num_train_epochs max_steps optim save_strategy save_steps
    save_total_limit save_only_model eval_strategy eval_steps eval_accumulation_steps per_device_eval_batch_size
    load_best_model_at_end metric_for_best_model output_dir run_name report_to dataloader_num_workers""".split()
)
"""Arguments that training alone reads, or that change neither bytes nor seconds."""
TRAINS: Final = "train"
OF_TRAINER: Final = "args"


def given_to_trainer(found: Gathered, arguments: Call | None) -> dict[str, Keyword]:
    """What they are given before the trainer trains. Raises InputError for what may have been read before."""
    program, trainer = found.program, found.trainer
    trains = [one for one in found.all_calls if _is_train_of(program, one.node, trainer)]
    given: dict[str, Keyword] = {}
    for one in program.stores:
        if not _is_given(program, one, trainer, arguments):
            continue
        if trains and not any(is_before(found, one.statement, call) for call in trains):
            continue
        given[one.name] = program.stored(one, runs=program.is_certain(one.statement))
        if one.name not in READ_LATE:
            raise InputError(
                f"{program.source}: {one.name} is {given[one.name].text} after {trainer.name} is made, which may have "
                f"read it before; say it where {trainer.name if arguments is None else arguments.name} is made"
            )
    return given


def _is_given(program: Program, one: Store, trainer: Call, arguments: Call | None) -> bool:
    """Whether it is stored in ``trainer.args``, or in the arguments by their own name after it is made."""
    if isinstance(one.holder, ast.Attribute):
        return one.holder.attr == OF_TRAINER and _is_trainer(program, one.holder.value, trainer)
    made = program.call_of(one.holder)
    is_own = made is not None and arguments is not None and made.node is arguments.node
    return is_own and _is_before(program, trainer.node, one.statement)


def _is_before(program: Program, node: ast.AST, other: ast.AST) -> bool:
    """Whether a node of the same function stands before another."""
    return program.function_of(node) is program.function_of(other) and Place.of(node) < Place.of(other)


def _is_train_of(program: Program, node: ast.Call, trainer: Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == TRAINS
        and _is_trainer(program, function.value, trainer)
    )


def _is_trainer(program: Program, node: ast.expr, trainer: Call) -> bool:
    """Whether it stands for the trainer, or is called so where only running the program tells."""
    made = program.call_of(node)
    return made.node is trainer.node if made is not None else "trainer" in last_name(node).casefold()
