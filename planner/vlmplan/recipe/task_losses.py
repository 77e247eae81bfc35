"""Losses that trainers of tasks have alone."""

from typing import Final

from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task_choices import TaskKind, TaskTrainer

LOSSES_OF_TASKS: Final = {
    (TaskTrainer.LLAMA_FACTORY, TaskKind.DPO): LossKind.LOG_SOFTMAX,
    (TaskTrainer.LLAMA_FACTORY, TaskKind.KTO): LossKind.LOG_SOFTMAX,
    (TaskTrainer.MS_SWIFT, TaskKind.DPO): LossKind.SELECTIVE,
    (TaskTrainer.MS_SWIFT, TaskKind.KTO): LossKind.SELECTIVE,
    (TaskTrainer.MS_SWIFT, TaskKind.GRPO): LossKind.TEMPERED,
    (TaskTrainer.AXOLOTL, TaskKind.DPO): LossKind.AXOLOTL,
    (TaskTrainer.AXOLOTL, TaskKind.KTO): LossKind.AXOLOTL,
    (TaskTrainer.AXOLOTL, TaskKind.GRPO): LossKind.AXOLOTL_ANSWERS,
}
"""The one loss of a trainer's task, which no other has; ms-swift's of GRPO with or without entropies."""
