"""The one training run that a program holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from vlmplan.errors import InputError
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
from vlmplan.other_trainers.programs.source import ProgramSource
from vlmplan.other_trainers.programs.trl_runs import OF_TRL_PROGRAMS, TRAINERS, loads_model, trl_run
from vlmplan.other_trainers.programs.unsloth_runs import UNSLOTH_RUNS, unsloth_loaders, unsloth_run

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
    InputError where it holds no run, or more than one, or a kind that is not read."""
    parsed = Program(program.code, source=source, folder=folder, given=given)
    calls = parsed.calls()
    loaders = unsloth_loaders(calls)
    known = (*SFT_TRAINERS, *DPO_TRAINERS, *REWARD_TRAINERS, *KTO_TRAINERS, *GRPO_TRAINERS)
    trainers = [call for call in calls if call.name in (*known, UNSLOTH_GRPO, *OTHER_TRAINERS)]
    if not loaders and not any(call.name in (*known, *TRAINERS) for call in trainers):
        return None
    trainer = _one_of(trainers, source, takes_plain=not loaders)
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
