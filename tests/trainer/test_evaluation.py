"""The loss on --eval-data, and what is left out of either file, in metrics.jsonl and report.json."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from killed_here import assert_alike, train_killed
from safetensors.torch import load_file
from trainer_runs import planned, train_here

from vlmplan.errors import InputError
from vlmplan.plan import Plan
from vlmplan.run.training import TrainerOptions
from vlmplan_trainer import run
from vlmplan_trainer.data.read import read_data
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.loop import Rates, StepRules, Trainer
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.saving.best import BestResult

CHAT = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello to you"}]}
BAD = {"messages": [{"role": "nobody", "content": "?"}]}
WORDS = ("--measured-steps", "0", "--skip-bad-samples", "--learning-rate", "1e-2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama")


def plan_of(model: Path, **options: Any) -> Plan:
    return planned(model, num_ranks=1, num_samples=6, micro_batch=2, **{"epochs": 2, **options})


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
    assert (report["num_left_out"], report["num_eval_samples"], report["num_eval_left_out"]) == (2, 5, 1)


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


def other_words(path: Path) -> str:
    """Samples that are the likelier the less a model has learnt of ``CHAT``."""
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "zebras quietly juggle maps"}]
    path.write_text("".join(json.dumps({"messages": said}) + "\n" for _ in range(4)))
    return str(path)


STOPPED = ("--measured-steps", "0", "--learning-rate", "3e-2", "--schedule", "constant")
EVERY_STEP = {"eval_batch": 2, "eval_samples": 4, "eval_every": "1"}


@pytest.mark.parametrize(
    ("method", "name", "rate"),
    [("full", "model", "3e-2"), pytest.param("lora", "adapter", "1", marks=pytest.mark.sweep)],
)
def test_a_run_that_gets_worse_stops_early_and_its_result_is_that_of_its_best_step(
    model: Path, tmp_path: Path, method: str, name: str, rate: str
):
    train, other = chats(tmp_path / "train.jsonl", 6), other_words(tmp_path / "eval.jsonl")
    words = ("--train-data", train, "--eval-data", other, *STOPPED, "--learning-rate", rate)
    plan = plan_of(model, method=method, epochs=4, early_stopping_patience=2, **EVERY_STEP)
    done = train_here(plan, tmp_path / "early", *words)
    assert done.code == 0, done.err
    losses = [line["eval_loss"] for line in done.metrics if "eval_loss" in line]
    best = losses.index(min(losses)) + 1
    assert len(losses) == done.report["steps"] == best + 2 < plan.expected.num_steps
    assert (done.report["best_step"], done.report["best_eval_loss"]) == (best, min(losses))
    assert done.report["stopped_early"] is True
    assert f"stopped early: 2 evaluations in a row found no lower loss than {min(losses):.4f}" in done.out
    short = train_here(plan_of(model, method=method, epochs=4), tmp_path / "short", *words, "--max-steps", str(best))
    same = [load_file(next((run.folder / name).glob("*.safetensors"))) for run in (done, short)]
    assert all(torch.equal(tensor, same[1][key]) for key, tensor in same[0].items())
    again = train_here(plan, tmp_path / "early", *words, "--resume")
    assert (again.code, "it stopped early, after" in again.err) == (1, True)
    larger = plan_of(model, method=method, epochs=4, early_stopping_patience=3, **EVERY_STEP)
    assert train_here(larger, tmp_path / "early", *words, "--resume").report["steps"] == best + 3


def test_the_best_is_the_result_of_a_run_that_goes_on_to_its_end(model: Path, tmp_path: Path):
    train, other = chats(tmp_path / "train.jsonl", 6), other_words(tmp_path / "eval.jsonl")
    plan = plan_of(model, load_best_model_at_end=True, **EVERY_STEP)
    done = train_here(plan, tmp_path, "--train-data", train, "--eval-data", other, *STOPPED)
    assert (done.report["steps"], done.report["stopped_early"]) == (6, False)
    assert done.report["best_step"] < 6
    assert f"the result is that of step {done.report['best_step']}" in done.out


def test_a_best_evaluation_of_no_data_is_refused(model: Path, tmp_path: Path):
    plan = plan_of(model, load_best_model_at_end=True, **EVERY_STEP)
    done = train_here(plan, tmp_path, "--train-data", chats(tmp_path / "train.jsonl", 6), *STOPPED)
    assert (done.code, "--load-best-model-at-end needs --eval-data" in done.err) == (1, True)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "ends",
    [
        [(BestResult, "add", 0), (BestResult, "add", 2), (BestResult, "take", 1)],
        [(Trainer, "_step", 1), (Trainer, "evaluate", 1), (run, "_report_content", 1)],
        [(run, "save_checkpoint", 2), (ProgressReporter, "evaluated", 2), (run, "_report_content", 1)],
    ],
)
@pytest.mark.parametrize("save_every", [1, 2])
def test_a_run_that_is_killed_anywhere_stops_as_early_as_one_that_is_not_with_the_same_result(
    model: Path, tmp_path: Path, ends: list[tuple[Any, str, int]], save_every: int
):
    """The first end of the first two is so many calls behind the first checkpoint."""
    train, other = chats(tmp_path / "train.jsonl", 6), other_words(tmp_path / "eval.jsonl")
    plan = plan_of(model, early_stopping_patience=3, **EVERY_STEP)
    words = ("--train-data", train, "--eval-data", other, "--save-every", str(save_every), *STOPPED)
    whole = train_here(plan, tmp_path / "whole", *words)
    (place, name, nth), *later = ends
    first = (place, name, nth if name == "save_checkpoint" else nth + save_every)
    killed = train_killed(plan, tmp_path / "killed", words, [first, *later])
    assert_alike(killed, whole)
    same = [load_file(one.folder / "model" / "model.safetensors") for one in (killed, whole)]
    assert all(torch.equal(tensor, same[1][key]) for key, tensor in same[0].items())


def test_a_look_at_the_data_says_what_each_file_is_for(model: Path, tmp_path: Path):
    train, other = Path(chats(tmp_path / "train.jsonl", 6)), Path(chats(tmp_path / "eval.jsonl", 2))
    data = read_data(plan_of(model), TrainerOptions(output_dir=tmp_path / "out", train_data=train, eval_data=other))
    assert data.evaluation is not None
    assert data.train.account.lines()[0].startswith("6 samples to train on,")
    assert data.evaluation.account.lines()[0].startswith("2 samples to evaluate on,")


def test_a_batch_without_labels_has_no_part_in_the_loss():
    class Engine:
        model, loss_scale, device = torch.nn.Identity(), 1, torch.device("cpu")

        def forward(self, batch: dict[str, torch.Tensor], num_items: int) -> torch.Tensor:
            return batch["input_ids"].sum() / (batch["labels"] != IGNORED_LABEL).sum().clamp(max=1)

        def totals(self, values: list[float]) -> list[float]:
            return values

    batch = {"input_ids": torch.tensor([[6, 0]]), "labels": torch.tensor([[IGNORED_LABEL, 1]])}
    nothing = {"input_ids": torch.zeros(1, 2), "labels": torch.full((1, 2), IGNORED_LABEL)}
    engine: Any = Engine()
    meter = Meter(engine.device, num_steps=0)
    rates = Rates(peak=1.0, num_steps=1, warmup_fraction=0.0, schedule="constant")
    trainer = Trainer(engine, meter, rates, StepRules(grad_accum=1, samples_per_step=1))
    assert trainer.evaluate(cast(Any, [batch, nothing])) == 6


@pytest.mark.parametrize("options", [{}, {"batching": "padding-free"}, {"batching": "packed"}])
def test_every_sample_is_evaluated_however_many_are_taken_at_once(model: Path, tmp_path: Path, options: dict[str, str]):
    train, other = chats(tmp_path / "train.jsonl", 36), tmp_path / "eval.jsonl"
    answers = [{"messages": [CHAT["messages"][0], {"role": "assistant", "content": "yes " * n}]} for n in range(1, 6)]
    other.write_text("".join(json.dumps(chat) + "\n" for chat in answers))
    words = ("--train-data", train, "--eval-data", str(other), *WORDS, "--max-steps", "1")
    losses = []
    for batch in (1, 2, 4, 8):
        plan = plan_of(model, precision="fp32", eval_batch=batch, eval_samples=5, grad_accum=3, **options)
        done = train_here(plan, tmp_path / str(batch), *words)
        assert (done.report["num_eval_samples"], done.report["num_eval_left_out"]) == (5, 0), done.err
        losses.append(done.report["eval_loss"])
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)


def test_nothing_to_evaluate_is_said_before_training(model: Path, tmp_path: Path):
    train, other = Path(chats(tmp_path / "train.jsonl", 6)), tmp_path / "eval.jsonl"
    long = {"messages": [{"role": "user", "content": "hello " * 99}, CHAT["messages"][1]]}
    other.write_text(json.dumps(long) + "\n")
    options = TrainerOptions(output_dir=tmp_path / "out", train_data=train, eval_data=other)
    with pytest.raises(
        InputError, match=r"--eval-data .*the data has 0 samples after 1 was left out .*; one or more are"
    ):
        read_data(plan_of(model), options)


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


def test_an_evaluation_does_not_change_what_4_bit_weights_learn_behind_it(model: Path, tmp_path: Path, monkeypatch):
    """Where the processor has AVX512-BF16, for which bitsandbytes packs weights anew that are not trained."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: True)
    train, other = chats(tmp_path / "train.jsonl", 6), chats(tmp_path / "eval.jsonl", 4)
    plan = plan_of(model, method="qlora", eval_batch=2, eval_samples=4, eval_every="2")
    with_it = train_here(plan, tmp_path / "with", "--train-data", train, "--eval-data", other, *WORDS)
    without = train_here(plan_of(model, method="qlora"), tmp_path / "without", "--train-data", train, *WORDS)
    assert with_it.code == 0, with_it.err
    assert with_it.losses == without.losses
