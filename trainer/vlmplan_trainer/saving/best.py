"""The evaluation with the lowest loss: what a run is worth by it, kept while it goes on, and whether it goes on.

As transformers has it (5.23): ``load_best_model_at_end`` and ``EarlyStoppingCallback`` (``trainer_callback.py``), for
which an evaluation before the first step counts for nothing. transformers keeps the best checkpoint and reads it at the
end; here the result of that evaluation is written at once, which takes no memory that the run's end would not take, and
less disk.

Which evaluation that is, and how many have come since, follows from the lines of metrics.jsonl, so a run that goes on
knows it. Its checkpoint may be of an earlier step than a better result: what was best when the checkpoint was written
stays until the next one.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmplan.launch.finished import STOPPED_EARLY
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.run.training import BEST
from vlmplan.units import counted
from vlmplan_trainer.phases import say_phase
from vlmplan_trainer.ranks import of_all_ranks
from vlmplan_trainer.saving.export import copy_result
from vlmplan_trainer.saving.manifest import folder_name


@dataclass(slots=True, kw_only=True)
class BestEvaluation:
    """The step whose ``loss`` is the lowest, None: there is none yet, and how many evaluations in a row were no better.

    ``patience``: so many of these end the run; None: none do. One that is lower by no more than ``threshold`` is the
    lowest from then on, and counts among them.
    """

    patience: int | None = None
    threshold: float = 0.0
    step: int | None = None
    loss: float = math.inf
    num_worse: int = 0

    def add(self, step: int, loss: float | None) -> bool:
        """Count the evaluation behind ``step``; whether it is the best. A loss that is no number is not."""
        if step == 0:
            return False
        if loss is None or not loss < self.loss:
            self.num_worse += 1
            return False
        is_better = self.step is None or self.loss - loss > self.threshold
        self.step, self.loss, self.num_worse = step, loss, 0 if is_better else self.num_worse + 1
        return True

    @property
    def ends_run(self) -> bool:
        return self.patience is not None and self.num_worse >= self.patience

    def as_json(self) -> dict[str, Any]:
        """For metrics.jsonl and report.json."""
        return {
            "best_step": self.step,
            "best_eval_loss": None if self.step is None else self.loss,
            "evaluations_since_best": self.num_worse,
            STOPPED_EARLY: self.ends_run,
        }

    def sentence(self) -> str:
        """Why the run ends."""
        since = "of no evaluation" if self.step is None else f"than {self.loss:.4f} after step {self.step}"
        since += f" by more than {self.threshold:g}" if self.threshold else ""
        return f"stopped early: {counted(self.num_worse, 'evaluation')} in a row found no lower loss {since}"


class BestResult:
    """The best evaluation of a run, and its result in ``output_dir/best/step-N``. Every rank has one and calls all of
    it, in the same order. ``write`` puts the result of now into a folder."""

    def __init__(self, evaluation: Evaluation, output_dir: Path, write: Callable[[Path], Any], *, rank: int) -> None:
        self.found = BestEvaluation(
            patience=evaluation.early_stopping_patience, threshold=evaluation.early_stopping_threshold
        )
        self._folder, self._write, self._is_first = output_dir / BEST, write, rank == 0
        self._of_checkpoint: int | None = None
        """The step of what was best when the last checkpoint was written."""

    def restore(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take the evaluations of earlier processes up to the checkpoint, which the first rank's ``lines`` are."""
        mine = [(line["step"], line["eval_loss"]) for line in lines] if self._is_first else None
        for step, loss in of_all_ranks(mine)[0]:
            self.found.add(step, loss)
        best = self.found.step
        if best is not None and not of_all_ranks(self._place(best).is_dir())[0]:
            say_phase(f"{self._place(best)} is not there: the best evaluation is looked for from here on")
            self.found = BestEvaluation(patience=self.found.patience, threshold=self.found.threshold)
        self._of_checkpoint = self.found.step

    def add(self, step: int, loss: float) -> None:
        """Count an evaluation, and keep its result where it is the best."""
        if self.found.add(step, loss):
            self._remove_others()
            self._write(self._place(step))

    def has_checkpoint(self) -> None:
        """A checkpoint has been written."""
        self._of_checkpoint = self.found.step
        self._remove_others()

    def take(self, name: str, place: Path) -> bool:
        """Have what is called ``name`` in the best result in ``place``; False where there is none, which is said."""
        step = self.found.step
        kept = None if step is None else self._place(step) / name
        is_there = of_all_ranks(kept is not None and kept.is_dir())[0]
        if kept is None or not is_there:
            why = "no evaluation has found a loss" if kept is None else f"{kept} is gone"
            say_phase(f"{why}: the result is that of the last step")
            return False
        say_phase(f"the result is that of step {step}, with the lowest loss: {self.found.loss:.4f}")
        if self._is_first:
            copy_result(kept, place)
        return True

    def _place(self, step: int) -> Path:
        return self._folder / folder_name(step)

    def _remove_others(self) -> None:
        """Remove results of other steps than the best's and the checkpoint's."""
        kept = [self._place(step) for step in (self.found.step, self._of_checkpoint) if step is not None]
        if self._is_first and self._folder.is_dir():
            for other in self._folder.iterdir():
                if other not in kept:
                    shutil.rmtree(other, ignore_errors=True)
