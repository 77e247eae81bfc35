"""What happens at each step of a trainer of TRL's: what is measured, written and saved, and whether it goes on."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from vlmplan.phase_names import LOAD
from vlmplan.recipe.evaluation import AFTER_EPOCHS, Evaluation
from vlmplan.recipe.task_choices import Reference
from vlmplan_trainer.engines.zero import forget_empty_step
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.models.weight_types import set_types
from vlmplan_trainer.ranks import of_all_ranks
from vlmplan_trainer.reporting.earlier import Earlier
from vlmplan_trainer.reporting.evaluated import Evaluated
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.starting import refuse_reported
from vlmplan_trainer.stopping import StopRequest, agreed
from vlmplan_trainer.trl_training.planned import PlannedRun

OWN = ("loss", "grad_norm", "learning_rate", "epoch", "num_tokens", "step", "step_time", "total_flos")
"""Figures of a log that a report of a step has itself."""
OF_EVAL = ("eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_num_tokens")
"""Figures of an evaluation that are told apart, or count what is told of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStepReport(StepReport):
    """``figures``: what TRL says of the step beside it: rewards, margins, lengths of answers and more."""

    figures: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in StepReport.__dataclass_fields__} | dict(self.figures)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer of torch's within accelerate's and DeepSpeed's."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


class StepCallback(TrainerCallback):
    """Follows a run. ``reports`` are of the steps of this process, ``stopped_by`` the signal that ended it early."""

    def __init__(self, planned: PlannedRun, progress: ProgressReporter, stop: StopRequest) -> None:
        self._planned, self._progress, self._stop = planned, progress, stop
        self.reports: list[StepReport] = []
        self.stopped_by: int | None = None
        self._began = self._seconds = 0.0
        self._saved_at = time.monotonic()
        self._totals = (0, 0)
        self._num_micro_batches = 0
        self.on_loaded: Callable[[], None] = lambda: None
        """Called when a checkpoint to go on from has been read."""
        self.reference: Any = None
        """A second model, where there is one."""
        self.evaluated: Evaluated | None = None
        """What is found on --eval-data after every epoch, where there is any."""
        self._is_evaluated = False
        """Whether a run that goes on has done its last step and all evaluations."""

    @property
    def earlier(self) -> Earlier:
        """What the run did before this process."""
        return self._progress.earlier

    def on_init_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        recipe, phases = self._planned.plan.recipe, self._planned.phases
        if recipe.trains_adapters:
            set_types(named["model"], recipe)  # TRL rounds adapters of 4-bit models
        phases.begin_init(named["model"])
        if recipe.reference is Reference.COPY:
            phases.switch(LOAD)  # which TRL does next

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Everything is there, from a checkpoint too where there is one: then what it was ended before is due."""
        planned, optimizer = self._planned, named.get("optimizer")
        self.on_loaded()
        if planned.best is not None and self.evaluated is not None:
            planned.best.restore(self.earlier.evaluations)
            self.evaluated.best = planned.best.found.as_json()
        if planned.stops_early:
            refuse_reported(planned.options, planned.position.step)
        if planned.position.step and self.evaluated is not None:
            args.eval_on_start = self._is_behind(state, self.evaluated)
        stage = planned.plan.recipe.zero_stage
        if stage == 0 and state.global_step == 0 and optimizer is not None:
            forget_empty_step(inner_optimizer(optimizer))
        planned.phases.begin_training(named["model"], optimizer)
        if self.reference is not None:
            planned.phases.follow_reference(self.reference)

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._planned.phases.meter.start_step()
        self._began = time.perf_counter()
        self._num_micro_batches = 1

    def on_substep_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Another micro batch of the step comes; at the end of an epoch there may be fewer."""
        self._num_micro_batches += 1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._planned.phases.begin_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """Whether it is time for a checkpoint, and whether a signal came, is for all ranks to say."""
        planned, options = self._planned, self._planned.options
        planned.phases.end_step()
        self._seconds = time.perf_counter() - self._began
        planned.position.step = state.global_step
        planned.position.seconds += self._seconds
        late = options.save_seconds is not None and time.monotonic() - self._saved_at >= options.save_seconds
        counts = planned.counts
        mine = [float(counts.num_tokens), float(counts.num_answer_tokens), float(late), *self._stop.votes()]
        num_tokens, num_answers, num_late, *votes = planned.ranks.totals(mine)
        planned.counts.num_tokens = planned.counts.num_answer_tokens = 0
        self._totals = (int(num_tokens), int(num_answers))
        is_last = state.global_step >= planned.rates.num_steps
        self.stopped_by = None if is_last else agreed(votes)
        is_its_step = options.save_every is not None and state.global_step % options.save_every == 0
        control.should_evaluate = self._evaluates(lambda one: one.is_due(state.global_step, planned.rates.num_steps))
        control.should_save = is_last or is_its_step or num_late > 0 or self.stopped_by is not None
        control.should_training_stop = control.should_training_stop or is_last or self.stopped_by is not None
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        control.should_evaluate = self._evaluates(lambda one: one.is_due_at_end_of(state.epoch))
        return control

    @property
    def evaluates_after_training(self) -> bool:
        """Whether it evaluates once more when training has ended."""
        return not self._is_evaluated and self._evaluates(lambda one: one.after_training)

    def _is_behind(self, state: Any, evaluated: Evaluated) -> bool:
        """Whether an evaluation is missing before the first step of a run that goes on; ``evaluated`` gets what the
        last one found that is not."""
        planned, num_steps = self._planned.plan.recipe.evaluation or AFTER_EPOCHS, self._planned.rates.num_steps
        if self.earlier.evaluations:
            evaluated.restore(self.earlier.evaluations[-1])
        num_found = of_all_ranks(self.earlier.num_evaluations_after(state.global_step))[0]
        num_missing = planned.num_due_after(state.global_step, num_steps, state.epoch) - num_found
        is_last = state.global_step >= num_steps
        self._is_evaluated = is_last and num_missing <= 0
        return num_missing > (is_last and planned.after_training)

    def _evaluates(self, is_due: Callable[[Evaluation], bool]) -> bool:
        """Whether there is something to evaluate, and the plan has it due; one that says nothing evaluates as one that
        does after epochs."""
        if self.evaluated is None or self.stopped_by is not None:
            return False
        return is_due(self._planned.plan.recipe.evaluation or AFTER_EPOCHS)

    def on_evaluate(self, args: Any, state: Any, control: Any, **named: Any) -> Any:
        """An evaluation that ends the run has a checkpoint behind it, as its last step has."""
        if self._planned.stops_early:
            control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._saved_at = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
        if logs and "eval_loss" in logs and self.evaluated is not None:
            self._evaluated(self.evaluated, state.global_step, logs)
        if not logs or "loss" not in logs:
            return
        step = state.global_step
        num_tokens, num_answers = self._totals
        norm = logs.get("grad_norm")
        per_micro_batch = self._planned.plan.samples_per_step // args.gradient_accumulation_steps
        report = TaskStepReport(
            step=step,
            epoch=max(0, math.ceil(state.epoch or 0) - 1),
            loss=float(logs["loss"]),
            learning_rate=self._planned.rates.at(step - 1),
            grad_norm=None if norm is None else float(norm),
            is_skipped=False,
            seconds=self._seconds,
            num_samples=per_micro_batch * self._num_micro_batches,
            num_tokens=num_tokens,
            num_label_tokens=num_answers,
            figures={name: value for name, value in logs.items() if name not in OWN},
        )
        self.reports.append(report)
        self._progress.step(report, self._planned.phases.meter)

    def _evaluated(self, found: Evaluated, step: int, logs: Mapping[str, float]) -> None:
        """TRL's figures of pairs that were evaluated: rewards, margins and how often the chosen answer wins."""
        found.loss, found.seconds = float(logs["eval_loss"]), float(logs["eval_runtime"])
        others = [name for name in logs if name.startswith("eval_") and name not in OF_EVAL]
        found.figures = {name: logs[name] for name in others}
        best = self._planned.best
        if best is not None:
            best.add(step, found.loss)  # before it is written down: what metrics.jsonl has is kept
            found.best = best.found.as_json()
        self._progress.say(found.sentence(step, self._planned.options.eval_data))
        self._progress.evaluated(step, found.as_json())
