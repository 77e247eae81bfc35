"""The trainer, of which the last rank is killed without warning: in the middle of a step, or of a checkpoint.

``killed_trainer.py MOMENT ...`` with the words of ``python -m vlmplan_trainer``.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from vlmplan.plan import read_plan

STEP, CHECKPOINT = "step", "checkpoint"
MOMENTS = (CHECKPOINT, STEP)
KILLED_STEP, KILLED_CHECKPOINT = 6, "step-00000004"


def kill_in_step(grad_accum: int) -> None:
    """Once the gradients of its first micro batch are there."""
    backward, calls = torch.Tensor.backward, 0

    @wraps(backward)
    def counted(*given: Any, **named: Any) -> None:
        nonlocal calls
        backward(*given, **named)
        calls += 1
        if calls == (KILLED_STEP - 1) * grad_accum + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    torch.Tensor.backward = counted  # pyright: ignore[reportAttributeAccessIssue]


def kill_in_checkpoint() -> None:
    """Once its files are there, and nothing yet that says so."""
    from vlmplan_trainer.saving import checkpoint

    def summed(folder: Any, names: Any, sums: Callable[..., Any] = checkpoint.synced_marks) -> Any:
        if folder.name.startswith(KILLED_CHECKPOINT):
            os.kill(os.getpid(), signal.SIGKILL)
        return sums(folder, names)

    checkpoint.synced_marks = summed


def main(moment: str, words: list[str]) -> int:
    from vlmplan_trainer.__main__ import main as train

    if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
        if moment == CHECKPOINT:
            kill_in_checkpoint()
        else:
            kill_in_step(read_plan(Path(words[words.index("--plan") + 1])).recipe.grad_accum)
    return train(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
