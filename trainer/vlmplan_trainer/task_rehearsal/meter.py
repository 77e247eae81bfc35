"""The meter of TRL's trainers, and what else follows their phases.

GRPO generates and scores answers for several steps at once, so those phases are none of one step. Of DPO the reference
belongs to each step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vlmplan.phase_names import GENERATE, GENERATION, REFERENCE, RESUME, SCORE
from vlmplan.recipe.task import TrainingTask
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.rehearse.components import Owners
from vlmplan_trainer.rehearse.ledger import Ledger
from vlmplan_trainer.rehearse.meter import OUTSIDE_STEPS
from vlmplan_trainer.rehearse.run import leaves_whole
from vlmplan_trainer.script_rehearsal.meter import ScriptMeter
from vlmplan_trainer.script_rehearsal.mode import ScriptAttribution
from vlmplan_trainer.script_rehearsal.phases import inner_model
from vlmplan_trainer.trl_training.callback import StepCallback


class TaskMeter(ScriptMeter):
    """Counts from the ledger alone."""

    def follow(self, task: TrainingTask) -> None:
        """Learn, before the first phase, which phases are outside of steps."""
        of_answers = (GENERATE, SCORE, REFERENCE, GENERATION) if task.is_grpo else ()
        self.outside_steps = (*OUTSIDE_STEPS, RESUME, *of_answers)

    def count(self, model: nn.Module) -> None:
        """The ledger has seen every weight."""


class FollowedElsewhere:
    """What scripts' rehearsals ask of their phases: here the trainer itself says where they begin."""

    moment = (0, 0)
    """All that is saved belongs to one checkpoint."""

    @contextmanager
    def generating(self) -> Iterator[None]:
        yield

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        yield


class SilentProgress:
    """Nobody waits for the steps of a rehearsal."""

    def step(self, report: StepReport, meter: Meter) -> None:
        """Say nothing, and write nothing."""


class RehearsedSteps(StepCallback):
    """Who owns what is known once model and optimizer are there."""

    def know(self, ledger: Ledger, attribution: ScriptAttribution, vocab_size: int | None) -> None:
        """Learn, before training, what storages are told to."""
        self._ledger, self._attribution, self._vocab_size = ledger, attribution, vocab_size

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """The last step is followed by an evaluation, where the plan has one; so is the one before where that leaves
        something to it."""
        control = super().on_step_end(args, state, control, **named)
        last = self._planned.rates.num_steps
        steps = (last, last - leaves_whole(self._planned.plan))
        control.should_evaluate = state.global_step in steps and self._planned.plan.recipe.evaluation is not None
        return control

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        super().on_train_begin(args, state, control, **named)
        models = [inner_model(model) for model in (named["model"], self.reference) if model is not None]
        self._attribution.learn(models[0])
        engine = _Engine(named["optimizer"])
        meter: Any = self._planned.phases.meter
        meter.owners = Owners(self._ledger, nn.ModuleList(models), engine, self._vocab_size)


class _Engine:
    """What ``Owners`` asks of an engine."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
