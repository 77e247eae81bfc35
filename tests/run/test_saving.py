"""How many checkpoints of a run are on disk, against what the Trainer's own code leaves there."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import workload
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.request import parse
from vlmplan.request.saving_and_loading import requested_saving
from vlmplan.run.saving import LAUNCHED_TASK, Interval, Saving, run_disk, saving_of


def written(interval: Interval, every: float, num_steps: int, epochs: float = 1.0) -> int | None:
    return Saving(interval=interval, every=every).num_written(num_steps, epochs, run_seconds=None)


def test_the_last_step_is_saved_whether_its_turn_has_come_or_not():
    assert written(Interval.STEPS, 3, num_steps=9) == 3
    assert written(Interval.STEPS, 3, num_steps=10) == 3 + 1
    assert written(Interval.STEPS, 500, num_steps=7) == 1
    assert written(Interval.STEPS, 0.25, num_steps=10) == 3 + 1  # after 3, 6, 9 and 10 steps
    assert written(Interval.EPOCHS, 500, num_steps=10, epochs=2.5) == 3
    assert written(Interval.NEVER, 500, num_steps=10) == 0


def test_minutes_save_as_often_as_the_run_is_long_and_once_more():
    saving = Saving(interval=Interval.MINUTES, every=30)
    assert [saving.num_written(1, 1.0, 60 * minutes) for minutes in (29, 31, 91)] == [1, 1 + 1, 1 + 3]
    assert saving.num_written(1, 1.0, None) is None
    assert saving.num_at_once(1) == 1
    assert saving.num_at_once(2) == saving.num_at_once(None) == 2 + 1


@settings(max_examples=20)
@given(
    num_saves=st.integers(1, 6),
    limit=st.none() | st.integers(1, 4),
    best=st.none() | st.integers(0, 5),
)
def test_no_more_checkpoints_are_there_at_once_than_are_counted(num_saves: int, limit: int | None, best: int | None):
    trainer_utils = pytest.importorskip("transformers.trainer_utils")
    most = left = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_saves):
            place = Path(folder) / f"checkpoint-{number}"
            place.mkdir()
            os.utime(place, (10 * number, 10 * number))
            most = max(most, len(os.listdir(folder)))
            found = None if best is None or best > number else str(Path(folder) / f"checkpoint-{best}")
            trainer_utils.rotate_checkpoints(folder, limit, found, use_mtime=True)
            left = len(os.listdir(folder))
    trainers = Saving(interval=Interval.STEPS, every=1, keep_last=limit, by_hugging_face=True)
    saving = replace(trainers, keeps_best=best is not None)
    counted = saving.num_at_once(saving.num_written(num_saves, 1.0, None))
    assert most <= counted
    if best is None or best < num_saves - 2:  # the best is neither the newest nor still to come
        assert most == counted
    if limit != 1:  # where one is to stay, the newest goes when training has ended
        assert left <= saving.num_kept(num_saves)


def test_the_bundled_trainers_best_is_a_result_and_no_checkpoint():
    sizes = {"checkpoint_bytes": 7, "result_bytes": 3, "num_steps": 100, "epochs": 1.0, "run_seconds": None}
    saving = Saving(interval=Interval.STEPS, every=10)
    plain, best = run_disk(saving, **sizes), run_disk(replace(saving, keeps_best=True), **sizes)
    assert (plain.peak_bytes, plain.end_bytes) == (3 * 7, 2 * 7 + 3)
    assert (best.peak_bytes, best.end_bytes) == (3 * 7 + 2 * 3, 2 * 7 + 2 * 3)
    assert best.num_kept == plain.num_kept
    assert run_disk(replace(LAUNCHED_TASK, interval=Interval.STEPS, every=10, keeps_best=True), **sizes) == best


def test_the_trainer_saves_when_it_is_counted_to():
    callback = pytest.importorskip("transformers.trainer_callback")
    strategies = pytest.importorskip("transformers.trainer_utils")
    no = strategies.IntervalStrategy.NO
    args = SimpleNamespace(
        logging_first_step=False, logging_strategy=no, eval_strategy=no, save_strategy=strategies.SaveStrategy.STEPS
    )
    for num_steps, every in ((9, 3), (10, 3), (2, 5)):
        saves = 0
        for step in range(1, num_steps + 1):
            control = callback.TrainerControl()
            state = callback.TrainerState(global_step=step, max_steps=num_steps, save_steps=every)
            saves += callback.DefaultFlowCallback().on_step_end(args, state, control).should_save
        assert saves == written(Interval.STEPS, every, num_steps)


@given(keep=st.integers(1, 9), steps=st.integers(1, 60), every=st.integers(1, 60), result=st.integers(0, 100))
def test_fewer_checkpoints_never_need_more_room(keep: int, steps: int, every: int, result: int):
    def peak(keep_last: int | None) -> int:
        saving = Saving(interval=Interval.STEPS, every=every, keep_last=keep_last)
        sizes = {"checkpoint_bytes": 7, "result_bytes": result}
        return run_disk(saving, **sizes, num_steps=steps, epochs=1.0, run_seconds=None).peak_bytes

    assert peak(keep) <= peak(keep + 1) <= peak(None)


def test_a_trainer_that_is_planned_for_keeps_all_of_them():
    assert saving_of(None) == Saving()
    for tool in ("trl", "transformers", "llamafactory", "ms-swift"):
        saving = saving_of(tool)
        assert (saving.interval, saving.every, saving.keep_last) == (Interval.STEPS, 500, None)
        assert saving.writes_result is (tool != "ms-swift")
    assert (saving_of("axolotl").interval, saving_of("axolotl").keep_last) == (Interval.EPOCHS, 4)


def test_a_task_is_saved_as_launch_does_it_and_for_trl_as_trl_does():
    options = {"model": "qwen2.5-0.5b", "gpu": ("h100-sxm:2",), "task": "dpo", "zero_stage": "2"}
    launched, of_trl = (requested_saving(parse(options | more)) for more in ({}, {"made_for": "trl"}))
    assert launched == Saving(by_hugging_face=True, is_launched=True)
    assert of_trl == saving_of("trl")
    recipe = Recipe(zero_stage=2)
    with_model, without = (
        Estimator(workload("qwen2.5-0.5b", saving=saving), recipe).disk(recipe) for saving in (of_trl, launched)
    )
    assert with_model.checkpoint_bytes - without.checkpoint_bytes == with_model.export_bytes
