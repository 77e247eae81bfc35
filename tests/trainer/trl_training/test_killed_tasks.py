"""A task that is killed in an evaluation or behind its last step goes on as one that is not."""

from typing import Any

import pytest

pytest.importorskip("trl")

import transformers
from killed_here import assert_alike, train_killed
from task_files import LINES, preferences
from trainer_runs import planned, train_here

from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.trl_training import trained
from vlmplan_trainer.trl_training.callback import StepCallback

pytestmark = [pytest.mark.sweep, pytest.mark.long]

IN_EVALUATION, IN_EXPORT = (transformers.Trainer, "evaluate", 1), (trained, "export", 1)
IN_STEP = (StepCallback, "on_step_end", 2)


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"eval_every": "epoch"}, [IN_EVALUATION, IN_EVALUATION, IN_EXPORT]),
        ({"eval_every": "2", "eval_on_start": True}, [IN_STEP, IN_STEP, IN_EXPORT]),
        ({"eval_every": "epoch", "eval_after_training": True}, [(transformers.Trainer, "evaluate", 2), IN_EXPORT]),
    ],
)
def test_a_task_that_is_killed_anywhere_does_the_steps_and_evaluations_of_one_that_is_not(
    tmp_path, options: dict[str, Any], ends: list[tuple[Any, str, int]]
):
    model, data = write_tiny_model(tmp_path / "llama", "llama"), str(preferences(tmp_path))
    more = {"task": "dpo", "zero_stage": "none", "method": "lora", "micro_batch": 2, "grad_accum": 3, "eval_batch": 4}
    plan = planned(model, num_ranks=1, epochs=1.5, **more, **options)
    words = ("--train-data", data, "--eval-data", data, "--save-every", "1", "--learning-rate", "1e-3")
    words = (*words, "--schedule", "constant", "--measured-steps", "0")
    whole = train_here(plan, tmp_path / "whole", *words)
    first = [line["num_samples"] for line in whole.metrics if "loss" in line and line["epoch"] == 0]
    assert (sum(first), first[-1]) == (LINES, LINES % 6)  # what is left of an epoch is a step of its own
    assert_alike(train_killed(plan, tmp_path / "killed", words, ends), whole)
