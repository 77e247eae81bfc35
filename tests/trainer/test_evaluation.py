"""The loss on --eval-data, and what is left out of either file, in metrics.jsonl and report.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from killed_here import assert_alike, train_killed
from trainer_runs import planned, train_here

from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.run.training import TrainerOptions
from vlmplan_trainer import run
from vlmplan_trainer.data.read import read_data
from vlmplan_trainer.loop import Trainer
from vlmplan_trainer.models.tiny import write_tiny_model

CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello to you"}]}
BAD = {"messages": [{"role": "nobody", "content": "?"}]}
WORDS = ("--measured-steps", "0", "--skip-bad-samples", "--learning-rate", "1e-2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama")


def plan_of(model: Path, **options: Any) -> Plan:
    return planned(model, num_ranks=1, num_samples=6, micro_batch=2, epochs=2, **options)


def chats(path: Path, num_good: int, num_bad: int = 0) -> str:
    path.write_text("".join(json.dumps(chat) + "\n" for chat in [BAD] * num_bad + [CHAT] * num_good))
    return str(path)


def test_the_loss_on_other_data_and_what_is_left_out_are_kept(model: Path, tmp_path: Path):
    train, other = chats(tmp_path / "train.jsonl", 6, 2), chats(tmp_path / "eval.jsonl", 5, 1)
    done = train_here(plan_of(model), tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    assert done.code == 0, done.err
    steps = [line for line in done.metrics if "loss" in line]
    evaluations = [line for line in done.metrics if "eval_loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert {line["num_left_out"] for line in steps} == {2}
    assert [line["step"] for line in evaluations] == [3, 6]
    assert evaluations[1]["eval_loss"] < evaluations[0]["eval_loss"]
    report = done.report
    assert report["eval_loss"] == evaluations[-1]["eval_loss"]
    assert (report["num_left_out"], report["num_eval_samples"], report["num_eval_left_out"]) == (2, 4, 1 + 1)


@pytest.mark.parametrize(("every", "steps"), [("2", [2, 4, 6]), ("0.6", [4, 6]), ("end", [6]), ("epoch", [3, 6])])
def test_a_run_evaluates_when_its_plan_says(model: Path, tmp_path: Path, every: str, steps: list[int]):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 4)
    plan = plan_of(model, eval_batch=2, eval_samples=4, eval_every=every)
    done = train_here(plan, tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    evaluations = [line for line in done.metrics if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == steps
    assert len(steps) == plan.recipe.evaluation.num_in(6, 2)
    assert done.report["eval_seconds"] == evaluations[-1]["eval_seconds"] > 0
    assert [line["step"] for line in done.metrics if "loss" in line] == [1, 2, 3, 4, 5, 6]
    [figure] = [line for line in done.report["planned_and_measured"] if line["name"] == "evaluation"]
    assert figure["measured"] == done.report["eval_seconds"]


def test_a_run_may_evaluate_before_its_first_step_too(model: Path, tmp_path: Path):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 4)
    plan = plan_of(model, eval_batch=2, eval_samples=4, eval_on_start=True)
    done = train_here(plan, tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    evaluations = [line for line in done.metrics if "eval_loss" in line]
    assert [line["step"] for line in evaluations] == [0, 3, 6]
    assert len(evaluations) == plan.recipe.evaluation.num_in(6, 2)
    assert evaluations[0]["eval_loss"] > evaluations[1]["eval_loss"]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ({"eval_every": "1", "eval_delay": 5}, [5, 6]),
        ({"eval_every": "epoch", "eval_delay": 1.5}, [6]),
        ({"eval_every": "epoch", "eval_after_training": True}, [3, 6, 6]),
    ],
)
def test_a_run_evaluates_after_the_delay_and_once_more_after_training(
    model: Path, tmp_path: Path, words: dict[str, Any], steps: list[int]
):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 4)
    plan = plan_of(model, eval_batch=2, eval_samples=4, **words)
    done = train_here(plan, tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    assert [line["step"] for line in done.metrics if "eval_loss" in line] == steps
    assert len(steps) == plan.recipe.evaluation.num_in(6, 2)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"eval_every": "epoch"}, [(Trainer, "evaluate", 1), (Trainer, "evaluate", 1), (run, "export", 1)]),
        ({"eval_every": "epoch"}, [(Trainer, "_step", 4), (run, "export", 1)]),
        ({"eval_every": "2"}, [(Trainer, "evaluate", 2), (Trainer, "_step", 2), (Trainer, "evaluate", 1)]),
        ({"eval_every": "epoch", "eval_after_training": True}, [(Trainer, "evaluate", 3), (run, "export", 1)]),
        ({"eval_every": "end", "eval_on_start": True}, [(Trainer, "_step", 2), (Trainer, "evaluate", 1)]),
    ],
)
def test_a_run_that_is_killed_anywhere_evaluates_as_often_as_one_that_is_not(
    model: Path, tmp_path: Path, options: dict[str, Any], ends: list[tuple[Any, str, int]]
):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 4)
    plan = plan_of(model, eval_batch=2, eval_samples=4, **options)
    words = ("--train-data", train, "--eval-data", other, "--save-every", "1", *WORDS)
    whole = train_here(plan, tmp_path / "whole", *words)
    assert_alike(train_killed(plan, tmp_path / "killed", words, ends), whole)


def test_a_look_at_the_data_says_what_each_file_is_for(model: Path, tmp_path: Path):
    train, other = Path(chats(tmp_path / "train.jsonl", 6)), Path(chats(tmp_path / "eval.jsonl", 2))
    data = read_data(plan_of(model), TrainerOptions(output_dir=tmp_path / "out", train_data=train, eval_data=other))
    assert data.evaluation is not None
    assert data.train.account.lines()[0].startswith("6 samples to train on,")
    assert data.evaluation.account.lines()[0].startswith("2 samples to evaluate on,")


def test_evaluation_takes_no_account_of_accumulation(model: Path, tmp_path: Path):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 5)
    plan = plan_of(model, grad_accum=3)
    done = train_here(plan, tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    assert done.report["num_eval_samples"] == 4


def test_too_little_to_evaluate_is_said_before_training(model: Path, tmp_path: Path):
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 1)
    done = train_here(plan_of(model), tmp_path, "--train-data", train, "--eval-data", other, *WORDS)
    assert done.code == 1
    assert "--eval-data" in done.err
    assert not (done.folder / "metrics.jsonl").exists()


def test_fewer_samples_than_a_batch_of_the_evaluation_are_refused_though_a_micro_batch_has_fewer(
    model: Path, tmp_path: Path
):
    train, other = Path(chats(tmp_path / "train.jsonl", 6)), Path(chats(tmp_path / "eval.jsonl", 3))
    plan = plan_of(model, eval_batch=4)
    with pytest.raises(InputError, match=r"3 samples, but one batch of the evaluation takes 4; .* --eval-batch"):
        read_data(plan, TrainerOptions(output_dir=tmp_path / "out", train_data=train, eval_data=other))


def test_a_run_says_what_it_is_doing_and_since_when(model: Path, tmp_path: Path):
    train = chats(tmp_path / "train.jsonl", 6)
    done = train_here(plan_of(model), tmp_path, "--train-data", train, *WORDS)
    lines = [line.split(" s  ", 1) for line in done.out.splitlines() if " s  " in line and not line.startswith("step")]
    seconds, texts = [float(line[0]) for line in lines], [line[1] for line in lines]
    assert seconds == sorted(seconds)
    for text, part in zip(
        texts,
        ("loading torch", "reading", "looking at 6 samples", "building the model", "making the optimizer", "training"),
        strict=False,
    ):
        assert text.startswith(part)
    assert texts[-1] == "writing the result"
    assert "\x1b" not in done.out
