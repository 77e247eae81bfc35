"""Programs that start the script themselves, as ``llamafactory-cli train`` and ``swift sft`` do.

A Python program on the path runs as it is, up to where it would start ranks; what it would start there runs here
instead.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from vlmplan_trainer.rehearse.replaced import replaced

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
LONGEST_FIRST_LINE = 512


class StartedElsewhere(BaseException):
    """The script would start ``words`` with ``environment`` in a process of its own."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        super().__init__(" ".join(words))
        self.words, self.environment = list(words), dict(environment)


def python_program(name: str) -> str | None:
    """The file of a program on the path that Python runs; None where there is none."""
    path = shutil.which(name)
    if path is None:
        return None
    with open(path, "rb") as file:
        line = file.readline(LONGEST_FIRST_LINE)
    return path if line.startswith(b"#!") and b"python" in line else None


@contextmanager
def starting_ranks_here(*, is_program: bool) -> Iterator[None]:
    """Within, to start a launcher raises StartedElsewhere; so does to start a Python script where a program runs."""
    start: Any = subprocess.Popen.__init__

    def told(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        if isinstance(args, (list, tuple)):
            refuse([os.fsdecode(word) for word in args], kwargs.get("env"))
        start(self, args, *rest, **kwargs)

    def refuse(words: list[str], environment: Any) -> None:
        if starts_ranks(words, is_program=is_program):
            raise StartedElsewhere(words, environment or {})

    def execute(call: Any) -> Any:
        def told_call(file: Any, args: Any, *environment: Any) -> Any:
            refuse([os.fsdecode(word) for word in args], environment[0] if environment else None)
            return call(file, args, *environment)

        return told_call

    with ExitStack() as stack:
        stack.enter_context(replaced(subprocess.Popen, "__init__", told))
        for name in ("execv", "execve", "execvp", "execvpe"):
            stack.enter_context(replaced(os, name, execute(getattr(os, name))))
        yield


def starts_ranks(words: Sequence[str], *, is_program: bool) -> bool:
    """Whether ``words`` start a launcher; for a program, or a Python script that is no helper in a string.

    >>> starts_ranks(["python", "-m", "torch.distributed.run", "a.py"], is_program=False)
    True
    >>> starts_ranks(["python", "a.py"], is_program=False)
    False
    >>> starts_ranks(["python", "-c", "print()"], is_program=True)
    False
    """
    program = os.path.basename(words[0]) if words else ""
    if program in LAUNCHERS:
        return True
    if not program.startswith("python"):
        return False
    options = [word for word in words[1:3] if word.startswith("-")]
    module = words[words.index("-m") + 1] if "-m" in options and len(words) > words.index("-m") + 1 else ""
    return module in LAUNCHING_MODULES or (is_program and "-c" not in options and len(words) > 1)
