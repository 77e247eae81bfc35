"""The best evaluation of a run: which it is, what stays of it whatever comes between, and when the run ends by it."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.recipe.evaluation import Evaluation
from vlmplan_trainer.saving.best import BestEvaluation, BestResult

LOSSES = st.lists(st.floats(0, 4).map(lambda loss: round(loss, 1)), max_size=12)
BEST = Evaluation(batch=1, load_best_model_at_end=True)


@given(losses=LOSSES, patience=st.integers(1, 4), threshold=st.sampled_from([0.0, 0.15, 1.0]))
def test_a_run_ends_where_transformers_ends_it_and_its_best_is_the_same(
    losses: list[float], patience: int, threshold: float
):
    callbacks = pytest.importorskip("transformers.trainer_callback")
    callback = callbacks.EarlyStoppingCallback(early_stopping_patience=patience, early_stopping_threshold=threshold)
    arguments = SimpleNamespace(metric_for_best_model="loss", greater_is_better=False)
    state, control = callbacks.TrainerState(), callbacks.TrainerControl()
    found = BestEvaluation(patience=patience, threshold=threshold)
    for step, loss in enumerate(losses, start=1):
        callback.on_evaluate(arguments, state, control, {"eval_loss": loss})
        if state.best_metric is None or loss < state.best_metric:  # Trainer._determine_best_metric
            state.best_metric, state.best_global_step = loss, step
        found.add(step, loss)
        assert (found.loss, found.step) == (state.best_metric, state.best_global_step)
        assert found.ends_run is control.should_training_stop
        if found.ends_run:
            break


def test_no_loss_and_one_before_the_first_step_are_never_the_best():
    found = BestEvaluation(patience=2)
    assert not found.add(0, 0.1)
    assert (found.step, found.num_worse) == (None, 0)
    assert [found.add(step, loss) for step, loss in enumerate((float("nan"), None), start=1)] == [False, False]
    assert found.ends_run
    assert found.as_json()["best_eval_loss"] is None


@given(ways=st.lists(st.tuples(st.sampled_from(["go on", "save", "kill"]), st.integers(1, 9)), max_size=12))
def test_the_best_up_to_the_checkpoint_is_there_whenever_a_run_is_killed_and_never_more_than_two(ways):
    lines, saved = [], 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def started() -> BestResult:
            return BestResult(BEST, place, lambda to: (to / "model").mkdir(parents=True, exist_ok=True), rank=0)

        best = started()
        for what, loss in ways:
            if what == "kill":  # metrics.jsonl loses what came behind the checkpoint
                lines, best = lines[:saved], started()
                best.restore(lines)
            else:
                best.add(len(lines) + 1, loss)
                lines.append({"step": len(lines) + 1, "eval_loss": loss})
                if what == "save":
                    saved = len(lines)
                    best.has_checkpoint()
            there = sorted(int(one.name.removeprefix("step-")) for one in place.glob("best/*"))
            kept = {min(part, key=lambda line: line["eval_loss"])["step"] for part in (lines, lines[:saved]) if part}
            assert kept <= set(there)
            assert len(there) <= 2


def test_a_run_that_is_told_to_keep_its_best_while_it_goes_on_looks_for_it_from_there(tmp_path: Path, capsys):
    best = BestResult(BEST, tmp_path, lambda to: (to / "model").mkdir(parents=True), rank=0)
    best.restore([{"step": 1, "eval_loss": 0.1}, {"step": 2, "eval_loss": 0.2}])
    assert "step-00000001 is not there: the best evaluation is looked for from here on" in capsys.readouterr().out
    best.add(3, 0.5)
    assert (best.found.step, best.found.num_worse) == (3, 0)


def test_a_best_result_that_somebody_has_taken_away_is_said_to_be_gone(tmp_path: Path, capsys):
    best = BestResult(BEST, tmp_path, lambda to: (to / "model").mkdir(parents=True), rank=0)
    assert not best.take("model", tmp_path / "model")
    best.add(3, 0.5)
    assert best.take("model", tmp_path / "model")
    assert (tmp_path / "model").is_dir()
    (tmp_path / "best" / "step-00000003" / "model").rmdir()
    assert not best.take("model", tmp_path / "model")
    said = capsys.readouterr().out
    assert "no evaluation has found a loss: the result is that of the last step" in said
    assert "the result is that of step 3, with the lowest loss: 0.5000" in said
    assert "model is gone: the result is that of the last step" in said
