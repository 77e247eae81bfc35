"""A run that has been put together: what it works with, and its evaluations."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlmplan.plan import Plan
from vlmplan.recipe.evaluation import AFTER_EPOCHS
from vlmplan_trainer.data.batches import Batches
from vlmplan_trainer.data.read import Data
from vlmplan_trainer.engines import Engine
from vlmplan_trainer.loop import Trainer
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.models.load import LoadedModel
from vlmplan_trainer.options import Options
from vlmplan_trainer.ranks import of_all_ranks
from vlmplan_trainer.reporting.earlier import Earlier
from vlmplan_trainer.reporting.evaluated import Evaluated
from vlmplan_trainer.reporting.monitors import Monitors
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.saving.best import BestResult


@dataclass(slots=True, kw_only=True)
class EvaluatedData:
    """--eval-data, and what was found on it. ``best``: what is kept of the best; None: nothing is."""

    batches: Batches
    found: Evaluated
    best: BestResult | None = None


@dataclass
class Run:
    """What a run works with, on this rank."""

    plan: Plan
    options: Options
    data: Data
    loaded: LoadedModel
    engine: Engine
    meter: Meter
    batches: Batches
    evaluation: EvaluatedData | None
    trainer: Trainer
    signature: Mapping[str, Any]
    """What has to be the same for the run to go on."""

    @property
    def num_left_out(self) -> int:
        """Samples of the data that are never trained on."""
        return self.data.train.account.num_left_out

    @property
    def stopped_by(self) -> int | None:
        """The signal that has ended the run before its last step."""
        return None if self.is_done else self.trainer.stopped_by

    @property
    def best(self) -> BestResult | None:
        return None if self.evaluation is None else self.evaluation.best

    @property
    def stops_early(self) -> bool:
        """Whether too many evaluations in a row have found no lower loss."""
        return self.best is not None and self.best.found.ends_run

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return self.trainer.position.step >= self.trainer.rates.num_steps or self.stops_early

    def num_evaluations_due(self) -> int:
        """How often the run evaluates between its last step and the next one."""
        planned, trainer = self.plan.recipe.evaluation or AFTER_EPOCHS, self.trainer
        step, epochs = trainer.position.step, trainer.position.step * self.plan.recipe.grad_accum / len(self.batches)
        return planned.num_due_after(step, trainer.rates.num_steps, epochs) if step else int(planned.on_start)

    def num_evaluations_missing(self, earlier: Earlier) -> int:
        """How many are due before the first step: of a run that goes on, those that it was ended before."""
        if self.evaluation is not None and earlier.evaluations:
            self.evaluation.found.restore(earlier.evaluations[-1])
        if self.evaluation is not None and self.best is not None:
            self.best.restore(earlier.evaluations)
            self.evaluation.found.best = self.best.found.as_json()
        num_found = earlier.num_evaluations_after(self.trainer.position.step)
        return self.num_evaluations_due() - of_all_ranks(num_found)[0]

    def evaluate(self, progress: ProgressReporter, monitors: Monitors, times: int) -> None:
        """The loss on --eval-data after the last step, so many ``times``, where there is any and no signal has come."""
        evaluation, trainer = self.evaluation, self.trainer
        if evaluation is None or self.stopped_by is not None:
            return
        for _ in range(times):
            step, found, began = trainer.position.step, evaluation.found, time.perf_counter()
            loss = found.loss = trainer.evaluate(evaluation.batches)
            found.seconds = time.perf_counter() - began
            if evaluation.best is not None:
                evaluation.best.add(step, loss)  # before it is written down: what metrics.jsonl has is kept
                found.best = evaluation.best.found.as_json()
            progress.say(found.sentence(step, self.options.eval_data))
            progress.evaluated(step, found.as_json())
            monitors.evaluated(step, loss)
