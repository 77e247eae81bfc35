"""The one training run that a program holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vlmplan.errors import InputError
from vlmplan.notes import listed
from vlmplan.other_trainers.programs.calls import Call, Program
from vlmplan.other_trainers.programs.gathered import (
    DPO_TRAINERS,
    GRPO_TRAINERS,
    KTO_TRAINERS,
    OTHERWISE,
    REWARD_TRAINERS,
    SFT_TRAINERS,
    UNSLOTH_GRPO,
    Gathered,
    ProgramRun,
)
from vlmplan.other_trainers.programs.parsed_arguments import PARSERS
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.programs.trainer_calls import named_trainer
from vlmplan.other_trainers.programs.trl_runs import OF_TRL_PROGRAMS, TRAINERS, loads_model, trl_run
from vlmplan.other_trainers.programs.unsloth_runs import UNSLOTH_RUNS, unsloth_loaders, unsloth_run
from vlmplan.other_trainers.record import Unwritten

OTHER_TRAINERS: Final[Mapping[str, str]] = {
    **{name: name for name in ("ORPOTrainer", "CPOTrainer", "PPOTrainer", "BCOTrainer")},
    **dict.fromkeys((*TRAINERS, "SentenceTransformerTrainer"), "a trainer of another library"),
}
OF_PROGRAMS: Final = (*OF_TRL_PROGRAMS, *UNSLOTH_RUNS)
"""What runs of programs are called."""
READ: Final = f"{SFT_TRAINERS[0]}, {DPO_TRAINERS[0]}, {REWARD_TRAINERS[0]}, {KTO_TRAINERS[0]} and {GRPO_TRAINERS[0]}"


def run_of_program(
    program: ProgramSource,
    *,
    source: str,
    folder: Path | None = None,
    given: Mapping[str, object] | None = None,
) -> ProgramRun | None:
    """The run of a program that trains with TRL's trainers, or loads its model with Unsloth; None for another program.
    ``folder``: where it lies, for the files that it loads; ``given``: options that it is started with. Raises
    InputError where it holds no run, or more than one, or a kind that is not read.

    Where its own text does not tell everything, what it imports of files beside it is read with it; not of a program
    that takes its arguments from a command by transformers' or TRL's parser, of which the command tells them."""
    alone = Program(program.code, source=source, folder=folder, given=given)
    found: ProgramRun | None = None
    mistake: InputError | None = None
    try:
        found = _run_of(alone, program, is_started=given is not None)
    except InputError as error:
        mistake = error
    is_parsed = given is None and any(parser in program.code for parser in PARSERS)
    if not is_parsed and folder is not None and (found is None or _num_unwritten(found)):
        whole = Program(program.code, source=source, folder=folder, given=given, imports=True)
        if whole.modules.files:
            return _better_of(found, mistake, whole, program, is_started=given is not None)
    if mistake is not None:
        raise mistake
    return found


def _better_of(
    found: ProgramRun | None,
    mistake: InputError | None,
    whole: Program,
    program: ProgramSource,
    *,
    is_started: bool,
) -> ProgramRun | None:
    """The run of a program with its imports, or that of its text alone where that tells as much."""
    try:
        other = _run_of(whole, program, is_started=is_started)
    except InputError:
        if mistake is not None:
            raise
        return found
    if other is None and mistake is not None:
        raise mistake
    is_better = other is not None and (found is None or _num_unwritten(other) < _num_unwritten(found))
    return other if is_better else found


def _num_unwritten(run: ProgramRun) -> int:
    return sum(isinstance(value, Unwritten) for value in run.values.values())


def _refuse_other_computation(parsed: Program, calls: list[Call]) -> None:
    """Raise InputError where the trainer is a class of the program's own that computes something else."""
    own = next((call.own_name for call in calls if call.own_name in parsed.computing), None)
    if own is not None:
        raise InputError(
            f"{parsed.source} trains with {own}, a trainer of its own with another "
            f"{listed(parsed.computing[own])}: what that computes is not known{OTHERWISE}"
        )


def _run_of(parsed: Program, program: ProgramSource, *, is_started: bool) -> ProgramRun | None:
    source, calls = parsed.source, parsed.calls()
    loaders = unsloth_loaders(calls)
    known = (*SFT_TRAINERS, *DPO_TRAINERS, *REWARD_TRAINERS, *KTO_TRAINERS, *GRPO_TRAINERS)
    trainers = [call for call in calls if call.name in (*known, UNSLOTH_GRPO, *OTHER_TRAINERS)]
    if not loaders and not any(call.name in (*known, *TRAINERS) for call in trainers):
        if not is_started:
            _refuse_other_computation(parsed, calls)
        return None
    trainer = named_trainer(parsed, _one_of(trainers, source, takes_plain=not loaders))
    found = Gathered(program=parsed, trainer=trainer, all_calls=calls)
    if loaders:
        if trainer.name in (*REWARD_TRAINERS, *KTO_TRAINERS):
            raise InputError(f"{source}: {trainer.name} of a model that Unsloth loads is not planned{OTHERWISE}")
        return unsloth_run(found, loaders, program)
    return None if trainer.name in TRAINERS and not loads_model(found) else trl_run(found, program)


def _one_of(trainers: list[Call], source: str, *, takes_plain: bool) -> Call:
    if not trainers:
        raise InputError(f"{source} holds no trainer; {READ} are read")
    if len(trainers) > 1:
        names = ", ".join(call.name for call in trainers)
        raise InputError(
            f"{source} trains {len(trainers)} times ({names}); keep one of them in a file of its own{OTHERWISE}"
        )
    name = trainers[0].name
    if name in OTHER_TRAINERS and not (takes_plain and name in TRAINERS):
        raise InputError(f"{source} trains with {name}, which is not read; {READ} are{OTHERWISE}")
    return trainers[0]
