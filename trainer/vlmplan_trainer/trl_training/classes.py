"""TRL's classes for a task, imported when they are asked for."""

import importlib
import os
import warnings
from typing import Any

from vlmplan.errors import MissingPackageError
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.versions import INSTALL_TASKS

NAMES = {TaskKind.DPO: "DPO", TaskKind.REWARD: "Reward", TaskKind.KTO: "KTO", TaskKind.GRPO: "GRPO"}
"""What TRL's classes of each task begin with."""


def trl_of(task: TrainingTask) -> tuple[Any, Any]:
    """The task's configuration and trainer."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trl = importlib.import_module("trl")
    except ImportError as error:
        raise MissingPackageError(
            f"--task {task.kind.value} needs TRL, which is not installed here ({error}): {INSTALL_TASKS}"
        ) from None
    name = NAMES[task.kind]
    return getattr(trl, f"{name}Config"), getattr(trl, f"{name}Trainer")
