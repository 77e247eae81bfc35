"""When a run is saved, who writes its checkpoints, and how many of them are on disk.

Sources: transformers 5.23 ``trainer_callback.py`` (``DefaultFlowCallback``), ``trainer_utils.py``
(``rotate_checkpoints``) and ``trainer.py`` (``_save_checkpoint``); the bundled trainer's ``saving/checkpoint.py``. Both
write a checkpoint to its end before they remove an older one.
"""

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from vlmplan.run.training import DEFAULT_KEEP_LAST, SAVE_MINUTES


class Interval(Enum):
    """What is counted between two checkpoints."""

    STEPS = "steps"
    EPOCHS = "epochs"
    MINUTES = "minutes"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """The bundled trainer's where nothing else is said.

    ``every`` counts steps or minutes; a number of steps below 1 is a part of the run. ``keep_last`` None: all stay.
    ``keeps_best``: the best evaluation's checkpoint stays whatever its age, of Hugging Face's Trainer; the bundled one
    keeps its result, from which no run goes on and which is as large as what it exports. ``only_model``: without
    optimizer states. ``writes_result``: the model or its adapters are written beside the checkpoints when training has
    ended.
    """

    interval: Interval = Interval.MINUTES
    every: float = SAVE_MINUTES
    keep_last: int | None = DEFAULT_KEEP_LAST
    keeps_best: bool = False
    only_model: bool = False
    writes_result: bool = True
    by_hugging_face: bool = False
    """Whether Hugging Face's Trainer writes them, which decides what is in each (``memory.disk``)."""
    is_launched: bool = False
    """Whether it is ``vlmplan launch`` that runs that Trainer. It saves as often as the bundled trainer does then, and
    writes no model beside DeepSpeed's files, which have the weights already."""
    gathers_shards: bool = True
    """``stage3_gather_16bit_weights_on_model_save``: that Trainer writes the model of ZeRO-3 whole too."""

    def num_written(self, num_steps: int, epochs: float, run_seconds: float | None) -> int | None:
        """Checkpoints that the whole run writes; None where its time decides and is not known."""
        match self.interval:
            case Interval.NEVER:
                return 0
            case Interval.EPOCHS:
                return math.ceil(epochs)
            case Interval.STEPS:
                every = math.ceil(self.every * num_steps) if self.every < 1 else int(self.every)
                return math.ceil(num_steps / every)  # the last step is saved too
            case Interval.MINUTES:
                return None if run_seconds is None else 1 + int(run_seconds / (60 * self.every))

    def num_at_once(self, num_written: int | None) -> int:
        """The most that are on disk at the same time: those that stay, and the one that is being written.

        Where minutes are between them, one on the way counts as many: the time of a run is not known that well.
        """
        if self._most_stay is None:
            assert num_written is not None, self
            return num_written
        most = self._most_stay + 1
        if self.interval is Interval.MINUTES:
            return 1 if num_written == 1 else most
        return most if num_written is None else min(num_written, most)

    def num_kept(self, num_written: int | None) -> int:
        """Checkpoints that stay when training has ended. The Trainer removes the newest at the end where one is to stay
        and the best is another."""
        at_once = self.num_at_once(num_written)
        return at_once if self.keep_last is None else min(at_once, self.keep_last)

    @property
    def _most_stay(self) -> int | None:
        """The most checkpoints that stay beside the one being written; the newest and the best are never removed."""
        keeps_two = self.keeps_best and not self.keeps_best_result
        return None if self.keep_last is None else max(self.keep_last, 1 + keeps_two)

    @property
    def keeps_best_result(self) -> bool:
        """Whether the best is kept as a result, not as a checkpoint."""
        return self.keeps_best and (self.is_launched or not self.by_hugging_face)

    @property
    def num_results(self) -> int:
        """The most results at a time: the best one that belongs to the last checkpoint, and a better one behind it;
        when training has ended, the best one and the run's own."""
        return 2 if self.keeps_best_result else int(self.writes_result)


class RunDisk(NamedTuple):
    """What a whole run has in its output folder.

    ``num_written`` checkpoints in all (None: not known), ``num_at_once`` of them at the fullest moment, ``num_kept`` at
    the end. ``peak_bytes`` at that moment, ``end_bytes`` when the result is there too.
    """

    num_written: int | None
    num_at_once: int
    num_kept: int
    peak_bytes: int
    end_bytes: int


def run_disk(
    saving: Saving,
    *,
    checkpoint_bytes: int,
    result_bytes: int,
    num_steps: int,
    epochs: float,
    run_seconds: float | None,
) -> RunDisk:
    """The fullest moment is when a checkpoint has been written and none removed for it, or when the result is there."""
    written = saving.num_written(num_steps, epochs, run_seconds)
    at_once, kept = saving.num_at_once(written), saving.num_kept(written)
    results = saving.num_results * result_bytes
    end = kept * checkpoint_bytes + results
    return RunDisk(
        num_written=written,
        num_at_once=at_once,
        num_kept=kept,
        peak_bytes=max(at_once * checkpoint_bytes + (results if saving.keeps_best_result else 0), end),
        end_bytes=end,
    )


LAUNCHED_TASK = Saving(by_hugging_face=True, is_launched=True)
"""Of DPO, reward models and GRPO, which TRL's trainers do (``vlmplan_trainer.trl_training``)."""


def saving_of(tool: str | None) -> Saving:
    """How a trainer saves where its configuration says nothing; None is the bundled one.

    Every 500 steps, all are kept (``training_args.py``). ms-swift writes no result beside its last checkpoint
    (``pipelines/train/sft.py`` 4.6.0). axolotl saves once an epoch and keeps four (``core/builders/base.py`` 0.19.0).
    """
    if tool is None:
        return Saving()
    if tool == "axolotl":
        return Saving(interval=Interval.EPOCHS, every=500, keep_last=4, by_hugging_face=True)
    return Saving(
        interval=Interval.STEPS, every=500, keep_last=None, by_hugging_face=True, writes_result=tool != "ms-swift"
    )
