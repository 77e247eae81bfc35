"""``vlmplan launch --curriculum``: stages in order, each from what the one before left, resumable at any point.

The trainer is a stand-in; tests/trainer has real ones that go on from adapters and merge them.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli_calls import DONE, MENDABLE, TINY, USAGE, call, folder_of, option_words, refusal, says
from launch_cases import recorded, stand_in_trainer
from vlmplan.plan import read_plan
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.versions import installed_version

pytestmark = pytest.mark.skipif(
    os.name != "posix" or any(installed_version(name) is None for name in ("torch", "transformers")),
    reason="launch needs POSIX and the training packages",
)
TWO = """
stages:
  - {name: align, train_data: one.jsonl, learning_rate: 1e-3, epochs: 2}
  - {name: instruct, train_data: two.jsonl, micro-batch: 2}
"""
LAUNCH = ("launch", "--curriculum", "c.yaml", "--model", "./tiny", "--gpu", "cpu:1", "--seq-len", "64")
OUT = ("--output-dir", "out")


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(stand_in_trainer(tmp_path)))
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DS_ACCELERATOR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STAND_IN", "results")
    (folder_of("tiny", TINY) / "model.safetensors").touch()
    for name, num_lines in (("one", 6), ("two", 8)):
        Path(f"{name}.jsonl").write_text('{"messages": []}\n' * num_lines)
    Path("c.yaml").write_text(TWO)


def stages(*listed: dict[str, Any]) -> None:
    Path("c.yaml").write_text(json.dumps({"stages": listed}))


def argument(folder: str, flag: str) -> str | None:
    """What the trainer of a stage got for an option."""
    words = recorded(Path(folder))["argv"]
    return words[words.index(flag) + 1] if flag in words else None


def model_of(folder: str) -> str:
    return read_plan(Path(folder) / "plan.json").model_source


# -- order -----------------------------------------------------------------------------------------------------------


def test_each_stage_has_its_data_rate_and_epochs_and_starts_from_the_model_before():
    found = call(*LAUNCH, *OUT)
    assert found.code == DONE, found.err
    assert "stage 1 of 2, align: full" in found.out
    first, second = read_plan(Path("out/1-align/plan.json")), read_plan(Path("out/2-instruct/plan.json"))
    assert (first.workload.num_samples, second.workload.num_samples) == (6, 8)
    assert (first.workload.epochs, second.workload.epochs) == (2, 1)
    assert (first.recipe.micro_batch, second.recipe.micro_batch) == (1, 2)
    assert argument("out/1-align", "--learning-rate") == "0.001"
    assert argument("out/2-instruct", "--learning-rate") is None
    assert model_of("out/1-align") == str(Path("tiny").absolute())
    assert model_of("out/2-instruct") == str(Path("out/1-align/model").absolute())


def test_what_a_stage_leaves_out_is_that_of_the_command_line_and_paths_are_beside_the_file():
    Path("there").mkdir()
    Path("c.yaml").rename("there/c.yaml")
    for name in ("one", "two"):
        Path(f"{name}.jsonl").rename(f"there/{name}.jsonl")
    words = [word.replace("c.yaml", "there/c.yaml") for word in LAUNCH]
    assert call(*words, *OUT, "--learning-rate", "5e-5", "--dummy-data", "4").code == DONE
    assert argument("out/1-align", "--learning-rate") == "0.001"
    assert argument("out/2-instruct", "--learning-rate") == "5e-05"
    assert argument("out/2-instruct", "--train-data") == str(Path("there/two.jsonl").absolute())
    assert argument("out/2-instruct", "--dummy-data") is None


@pytest.mark.parametrize(
    "options",
    [
        {"task": "dpo", "method": "lora"},
        {"task": "kto", "micro_batch": 2},
        {"video_frames": 8, "method": "lora"},
        {"eval_batch": 3, "eval_samples": 9},
        {"precision": "fp16", "zero_stage": 3, "global_batch": 8},
    ],
)
def test_a_stage_is_planned_as_launch_plans_its_options(options: dict[str, Any]):
    stages({"dummy_data": 4, **options})
    planned_for = ("--model", "qwen2-vl-2b", "--gpu", "h100-sxm:2", *OUT, "--dry-run", "--json")
    (stage,) = json.loads(call(*LAUNCH[:3], *planned_for).out)["stages"]
    alone = call("launch", *option_words({"dummy_data": 4, **options}), *planned_for).document
    assert stage["plan"] == alone["plan"]


def test_a_stage_is_planned_from_its_own_data_and_trained_on_it():
    for name, count in (("few", 3), ("many", 5)):
        chat = {"messages": [{"role": "user", "content": "hi " * count}, {"role": "assistant", "content": "yes"}]}
        Path(f"{name}.jsonl").write_text((json.dumps(chat) + "\n") * count)
    stages({"data": "few.jsonl"}, {"data": "many.jsonl"})
    found = call(*LAUNCH[:3], "--model", "smollm2-135m", "--gpu", "cpu:1", *OUT, "--dry-run", "--json")
    assert [stage["plan"]["workload"]["num_samples"] for stage in json.loads(found.out)["stages"]] == [3, 5]
    for stage, name in zip(json.loads(found.out)["stages"], ("few", "many"), strict=True):
        assert str(Path(f"{name}.jsonl").absolute()) in stage["command"]


def test_train_names_the_parts_that_are_trained():
    stages({"train": ["projector"], "dummy_data": 4}, {"train": ["projector", "language"], "dummy_data": 4})
    found = call(*LAUNCH[:3], "--model", "qwen2-vl-2b", "--gpu", "cpu:1", "--dry-run", "--json", *OUT)
    first, second = (stage["plan"]["recipe"] for stage in json.loads(found.out)["stages"])
    assert [first[f"train_{part}"] for part in ("vision", "projector", "language")] == [False, True, False]
    assert [second[f"train_{part}"] for part in ("vision", "projector", "language")] == [False, True, True]


def test_stages_that_train_the_same_adapter_go_on_with_it():
    stages({"method": "lora", "dummy_data": 4}, {"method": "lora", "dummy_data": 4, "learning_rate": 1e-5})
    assert call(*LAUNCH, *OUT).code == DONE
    assert argument("out/2-stage", "--adapter") == str(Path("out/1-stage/adapter").absolute())
    assert [model_of(f"out/{number}-stage") for number in (1, 2)] == [str(Path("tiny").absolute())] * 2
    assert "--merge-adapters" not in recorded(Path("out/1-stage"))["argv"]


def test_preferences_behind_another_stage_are_held_to_the_adapter_that_it_leaves():
    Path("pairs.jsonl").write_text('{"prompt": "a", "chosen": " b", "rejected": " c"}\n' * 4)
    pairs = {"method": "lora", "task": "dpo", "train_data": "pairs.jsonl"}
    given = ("--model", "smollm2-135m", "--gpu", "h100-sxm:1", "--zero-stage", "none", *OUT, "--dry-run", "--json")
    for other, reference in [({}, "adapter-copy"), ({"reference": "adapter-off"}, "adapter-off")]:
        stages({"method": "lora", "dummy_data": 4}, {**pairs, **other})
        found = json.loads(call(*LAUNCH[:3], *given).out)["stages"]
        assert [(stage["plan"]["recipe"]["task"] or {}).get("reference") for stage in found] == [None, reference]
    stages({"method": "lora", "task": "reward", "train_data": "pairs.jsonl"}, pairs)
    assert "the stage before leaves a reward model" in call(*LAUNCH[:3], *given).err


@pytest.mark.parametrize("other", [{"method": "lora", "lora_rank": 4}, {"method": "qlora"}, {"method": "full"}])
def test_another_adapter_starts_from_the_model_with_the_first_one_merged_in(other):
    stages({"method": "lora", "dummy_data": 4}, {**other, "dummy_data": 4})
    found = call(*LAUNCH, *OUT)
    assert found.code == DONE, found.err
    assert "--merge-adapters" in recorded(Path("out/1-stage"))["argv"]
    assert argument("out/2-stage", "--adapter") is None
    assert model_of("out/2-stage") == str(Path("out/1-stage/merged").absolute())
    assert ("rounded to 4 bits again" in found.err) is (other["method"] == "qlora")


# -- going on --------------------------------------------------------------------------------------------------------


def test_a_stage_that_fails_stops_the_curriculum_and_resuming_skips_what_is_done(monkeypatch):
    monkeypatch.setenv("STAND_IN", "results 2-instruct")
    found = call(*LAUNCH, *OUT)
    assert found.code == 5
    assert not Path("out/2-instruct/report.json").exists()
    Path("out/1-align/rank-0.json").unlink()
    monkeypatch.setenv("STAND_IN", "results")
    again = call(*LAUNCH, *OUT, "--resume")
    assert again.code == DONE, again.err
    assert not Path("out/1-align/rank-0.json").exists()
    assert recorded(Path("out/2-instruct"))
    assert "all 2 stages are done" in again.out


def test_the_folder_is_all_that_resuming_needs(monkeypatch):
    monkeypatch.setenv("STAND_IN", "results 2-instruct")
    assert call(*LAUNCH, *OUT, "--weight-decay", "0.5", "--seed", "7").code == 5
    first = recorded(Path("out/2-instruct"))["argv"]
    Path("c.yaml").unlink()
    monkeypatch.setenv("STAND_IN", "results")
    found = call("launch", "--resume", *OUT)
    assert found.code == DONE, found.err
    assert set(recorded(Path("out/2-instruct"))["argv"]) - set(first) <= {"--learning-rate", "1e-05"}
    assert "all 2 stages are done" in found.out


@pytest.mark.sweep
def test_an_option_of_a_stage_that_was_started_stays_and_that_of_a_later_one_may_change(monkeypatch):
    monkeypatch.setenv("STAND_IN", "results 1-align")
    assert call(*LAUNCH, *OUT).code == 5
    Path("out/1-align/metrics.jsonl").write_text('{"step": 1}\n')
    Path("c.yaml").write_text(TWO.replace("micro-batch: 2", "seed: 7").replace("1e-3", "2e-3"))
    refused = call("launch", "--curriculum", "c.yaml", "--resume", *OUT)
    assert refused.code == MENDABLE
    says(refused.err, "--learning-rate 0.001", "--learning-rate 0.002")
    Path("c.yaml").write_text(TWO.replace("micro-batch: 2", "seed: 7"))
    monkeypatch.setenv("STAND_IN", "results")
    found = call("launch", "--curriculum", "c.yaml", "--resume", *OUT)
    assert found.code == DONE, found.err
    assert argument("out/2-instruct", "--seed") == "7"


def test_a_second_start_without_resume_is_refused():
    assert call(*LAUNCH, *OUT).code == DONE
    found = call(*LAUNCH, *OUT)
    assert found.code == MENDABLE
    assert "out/1-align holds a run already" in found.err


def test_a_stage_that_is_done_cannot_become_another_one():
    assert call(*LAUNCH, *OUT).code == DONE
    stages({"name": "align", "train_data": "one.jsonl", "epochs": 2, "method": "lora"})
    says(refusal(*LAUNCH, *OUT, "--resume"), "stage 1 of 1, align", "method full", "--output-dir")


def test_a_stage_that_is_done_is_not_made_longer_behind_its_back():
    assert call(*LAUNCH, *OUT).code == DONE
    Path("c.yaml").write_text(TWO.replace("epochs: 2", "epochs: 3, max_steps: 4"))
    refused, looked_at = (call(*LAUNCH, *OUT, "--resume", *more) for more in ((), ("--dry-run",)))
    assert (refused.code, refused.err) == (looked_at.code, looked_at.err)
    assert refused.code == MENDABLE
    says(refused.err, "stage 1 of 2, align", "--epochs 2", "--epochs 3", "no --max-steps", "--max-steps 4")


def test_a_stage_that_is_done_does_not_silently_stop_later_or_leave_another_result():
    evaluated = {"name": "align", "train_data": "one.jsonl", "eval_data": "two.jsonl", "eval_batch": 2}
    stages({**evaluated, "early_stopping_patience": 2})
    assert call(*LAUNCH, *OUT).code == DONE
    for changed, words in (
        ({"early_stopping_patience": 5}, ("--early-stopping-patience 2", "--early-stopping-patience 5")),
        ({"load_best_model_at_end": True}, ("no --load-best-model-at-end", "with --load-best-model-at-end")),
    ):
        stages(evaluated | changed)
        refused = call(*LAUNCH, *OUT, "--resume")
        assert refused.code == MENDABLE
        says(refused.err, "stage 1 of 1, align", *words)


def test_stages_before_the_last_one_that_is_done_may_be_deleted(monkeypatch):
    stages(*({"name": name, "dummy_data": 4} for name in ("one", "two", "three")))
    monkeypatch.setenv("STAND_IN", "results 3-three")
    assert call(*LAUNCH, *OUT).code == 5
    shutil.rmtree("out/1-one")
    monkeypatch.setenv("STAND_IN", "results")
    found = call("launch", "--resume", *OUT)
    assert found.code == DONE, found.err
    assert not Path("out/1-one").exists()
    assert model_of("out/3-three") == str(Path("out/2-two/model").absolute())


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_curriculum_goes_on_where_its_folder_was_moved_to(monkeypatch, method: str):
    stages(*({"name": name, "dummy_data": 4, "method": method} for name in ("one", "two", "three")))
    monkeypatch.setenv("STAND_IN", "results 3-three")
    assert call(*LAUNCH, *OUT).code == 5
    Path("out/3-three/metrics.jsonl").write_text('{"step": 1}\n')
    Path("out").rename("moved")
    monkeypatch.setenv("STAND_IN", "results")
    found = call("launch", "--resume", "--output-dir", "moved")
    assert found.code == DONE, found.err
    if method == "full":
        assert model_of("moved/3-three") == str(Path("moved/2-two/model").absolute())
        assert "the model is read from" in found.err
    else:
        assert argument("moved/3-three", "--adapter") == str(Path("moved/2-two/adapter").absolute())


def test_a_curriculum_that_goes_on_has_the_evaluations_that_it_was_planned_with(monkeypatch):
    stages({"dummy_data": 4, "eval_data": "one.jsonl"}, {"dummy_data": 4, "eval_data": "two.jsonl"})
    monkeypatch.setenv("STAND_IN", "results 1-stage")
    assert call(*LAUNCH, *OUT).code == 5
    Path("out/1-stage/metrics.jsonl").write_text('{"step": 1}\n')
    monkeypatch.setenv("STAND_IN", "results")
    found = call("launch", "--resume", *OUT)
    assert found.code == DONE, found.err
    evaluations = [read_plan(Path(f"out/{number}-stage/plan.json")).recipe.evaluation for number in (1, 2)]
    assert evaluations == [Evaluation(batch=1, samples=6), Evaluation(batch=1, samples=8)]
    assert "from here on" not in found.err
    with Path("one.jsonl").open("a") as file:
        file.write('{"messages": []}\n')
    assert call("launch", "--resume", *OUT).code == DONE


# -- before anything is started --------------------------------------------------------------------------------------


def test_a_problem_of_a_later_stage_is_found_before_the_first_starts():
    stages({"train_data": "one.jsonl"}, {"train_data": "nowhere.jsonl"})
    found = call(*LAUNCH, *OUT)
    assert found.code == MENDABLE
    says(found.err, "stage 2 of 2, stage", "--train-data nowhere.jsonl does not exist")
    assert not Path("out").exists()


def test_a_dry_run_shows_every_stage_and_writes_nothing():
    found = call(*LAUNCH, *OUT, "--dry-run")
    assert found.code == DONE
    says(found.out, "stage 1 of 2, align", "stage 2 of 2, instruct", "out/2-instruct/plan.json")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("listed", "parts"),
    [
        ({"train": "decoder"}, ("stage 1", "'decoder'", "vision, projector, language")),
        ({"methode": "lora"}, ("stage 1", "'methode'", "'method'")),
        ({"method": "lorra"}, ("stage 1", "'lorra' is not one of 'full', 'lora', 'lora-8bit', 'qlora'")),
        ({"learning_rate": "fast"}, ("stage 1", "'fast' is not a number")),
        ({"epochs": [1, 2], "dummy_data": 4}, ("stage 1", "'1,2' is not a number")),
        ({"merge_adapters": "yes"}, ("stage 1: merge_adapters", "true or false")),
        ({"name": "../up"}, ("stage 1: name", '"../up"')),
        ({"resume": True}, ("stage 1", "'resume'")),
        ({"html": "a.html", "dummy_data": 4}, ("stage 1", "'html'")),
        ({"seq_len": 64}, ("stage 1 of 1", "one of --train-data, --dummy-data is needed")),
        ({"dummy_data": 4, "micro_batch": 0}, ("stage 1 of 1", "--micro-batch is 0")),
        ("align", ("stage 1", '"align"', "an object")),
    ],
)
def test_what_is_wrong_with_a_stage_is_one_sentence(listed, parts):
    stages(listed)
    says(refusal(*LAUNCH, *OUT), *parts)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("stages: []", "a list of one stage or more"),
        ("- a", "an object {...} is needed"),
        ("stages: [{}]\nmore: 1", "unknown key 'more'"),
        ("stages: [{}]\n---\nstages: [{}]", "2 YAML documents"),
        ("stages: [", "in line 2, column 1"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_sentence(text, part):
    Path("c.yaml").write_text(text)
    says(refusal(*LAUNCH, *OUT), "--curriculum c.yaml", part)


def test_options_that_a_curriculum_has_no_use_for_are_refused():
    for words in (("--random-weights",), ("--plan", "p.json")):
        says(refusal(*LAUNCH, *OUT, *words, code=USAGE), words[0], "does not go with it")
    demo = refusal("launch", "--curriculum", "c.yaml", "--demo", *OUT, code=USAGE)
    says(demo, "--demo", "does not go with it")
    says(refusal("launch", "--curriculum", "c.yaml", *OUT, code=USAGE), "--curriculum needs --model")


def test_the_data_of_every_stage_is_looked_at_before_the_first_one_starts(monkeypatch):
    monkeypatch.setenv("LOOK", '{"problem": "two.jsonl:3 is bad"}')
    found = call(*LAUNCH, *OUT)
    assert found.code == MENDABLE
    assert found.err.count("vlmplan: two.jsonl:3 is bad") == 2
    assert not Path("out/1-align").exists()
