"""The folder that a command of a shell script runs in: the script's own, and where ``cd`` before it goes from there."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.other_trainers.named_files import found_folder
from vlmplan.other_trainers.shell import Command
from vlmplan.other_trainers.shell_variables import UNKNOWN

GOES = "cd"
UP = ".."


def working_folder(commands: Sequence[Command], run: Command, folder: Path) -> Path:
    """Where ``run`` of ``commands`` runs whose script lies in ``folder``. A folder that is not here, or known to the
    shell alone, leaves it where it was: files are looked for in those above, too."""
    for command in commands:
        if command.start >= run.start:
            break
        operands = [word for word in command.words[1:] if not word.startswith("-")]
        if command.program != GOES or len(operands) != 1 or UNKNOWN in operands[0]:
            continue
        if set(Path(operands[0]).parts) == {UP}:
            folder = folder.joinpath(operands[0]).resolve()
            continue
        with suppress(InputError):
            folder = found_folder(operands[0], folder, "", GOES).resolve()
    return folder
