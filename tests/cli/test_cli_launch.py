"""``vlmplan launch`` with a stand-in for the trainer: what it is started with, what is left behind, what is refused."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from cli_calls import DONE, MENDABLE, TINY, USAGE, call, folder_of, refusal
from documented_json import undocumented
from fake_nvml import FakeCard, fake_driver
from launch_cases import recorded, stand_in_trainer
from test_package import HEAVY, modules_after
from vlmplan.answers.launch import SCHEMA
from vlmplan.emit import write_files
from vlmplan.launch.demo import MODEL_FOLDER, demo_folder
from vlmplan.launch.finished import run_length
from vlmplan.plan import read_plan
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.run.record import read_record
from vlmplan.run.shortage import Shortage, write_shortage
from vlmplan.run.training import CHECKPOINTS, EXIT_OUT_OF_MEMORY, MANIFEST, TrainerOptions
from vlmplan.units import MIB, gib_text
from vlmplan.versions import installed_version

NEEDED = ("torch", "transformers", "deepspeed", "safetensors", "pillow")
pytestmark = pytest.mark.skipif(
    os.name != "posix" or any(installed_version(name) is None for name in NEEDED),
    reason="launch needs POSIX and the training packages",
)
RECIPE = ("--model", "./tiny", "--gpu", "cpu:1", "--seq-len", "64")
TRAIN = ("--train-data", "data.jsonl", "--output-dir", "out")


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(stand_in_trainer(tmp_path)))
    for name in ("STAND_IN", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "DS_ACCELERATOR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    (folder_of("tiny", TINY) / "model.safetensors").touch()
    Path("data.jsonl").write_text('{"messages": []}\n' * (2 * 3 * 5))


def problems_of(*words: str) -> list[str]:
    """The sentences with which a run is refused before it starts."""
    found = call("launch", *words)
    assert (found.code, found.out) == (MENDABLE, ""), found
    lines = found.err.splitlines()
    return [line.removeprefix("vlmplan: ") for line in lines if line.startswith("vlmplan: ")]


# -- a run -----------------------------------------------------------------------------------------------------------


def test_options_become_a_plan_that_the_trainer_gets():
    found = call("launch", *RECIPE, *TRAIN, "--micro-batch", "3", "--max-steps", "7", "--skip-bad-samples")
    assert found.code == DONE, found.err
    assert found.out == "trained\n"
    out = Path("out").absolute()
    data = str(Path("data.jsonl").absolute())
    words = ["--plan", f"{out}/plan.json", "--output-dir", str(out), "--train-data", data]
    assert recorded(out)["argv"] == [*words, "--skip-bad-samples", "--max-steps", "7"]
    plan = read_plan(out / "plan.json")
    assert plan.recipe.micro_batch == 3
    assert plan.workload.num_samples == 2 * 3 * 5
    assert plan.model_source == str(Path("tiny").absolute())


def test_what_is_evaluated_without_a_word_of_how_is_planned_as_the_trainer_does_it():
    Path("eval.jsonl").write_text('{"messages": []}\n' * 9)
    words = (*RECIPE, *TRAIN, "--micro-batch", "3", "--eval-data", "eval.jsonl")
    assert call("launch", *words).code == DONE
    assert read_plan(Path("out/plan.json")).recipe.evaluation == Evaluation(batch=3, samples=9)
    again = (*words, "--resume", "--activation-checkpointing")
    assert call("launch", *again).code == DONE
    assert read_plan(Path("out/plan.json")).recipe.evaluation == Evaluation(batch=3, samples=9)


def test_a_first_start_with_resume_is_planned_as_one_without():
    Path("eval.jsonl").write_text('{"messages": []}\n' * 9)
    assert call("launch", *RECIPE, *TRAIN, "--eval-data", "eval.jsonl", "--resume").code == DONE
    assert read_plan(Path("out/plan.json")).recipe.evaluation == Evaluation(batch=1, samples=9)


def test_what_is_evaluated_from_a_later_start_on_is_no_part_of_the_plan():
    a_run_with_a_checkpoint()
    Path("eval.jsonl").write_text('{"messages": []}\n' * 9)
    words = ("--resume", "--output-dir", "out", "--eval-data", "eval.jsonl", "--epochs", "7")
    found = call("launch", *words)
    assert found.code == DONE, found.err
    assert read_plan(Path("out/plan.json")).recipe.evaluation is None
    assert "but the plan has no evaluation" in found.err.replace("\n  ", " ")


def test_what_is_said_of_an_evaluation_is_completed_from_its_file():
    Path("eval.jsonl").write_text('{"messages": []}\n' * 9)
    words = (*RECIPE, *TRAIN, "--eval-data", "eval.jsonl", "--eval-every", "5", "--eval-on-start")
    assert call("launch", *words).code == DONE
    assert read_plan(Path("out/plan.json")).recipe.evaluation == Evaluation(batch=1, samples=9, every=5, on_start=True)


def test_a_dry_run_has_evaluations_in_the_time_of_the_run():
    Path("eval.jsonl").write_text('{"messages": []}\n' * 9)
    words = ("--model", "./tiny", "--gpu", "a100-sxm4-80gb:1", "--seq-len", "64", *TRAIN, "--dry-run")
    plain, evaluated = [call("launch", *words, *more).out for more in ((), ("--eval-data", "eval.jsonl"))]
    assert " for 30 steps\n" in plain
    assert " for 30 steps with 1 evaluation of " in evaluated


def test_what_is_run_is_kept_beside_its_results():
    assert call("launch", *RECIPE, *TRAIN).code == DONE
    out = Path("out")
    names = {path.name for path in out.iterdir()} - {"rank-0.json", "metrics.jsonl", "report.json"}
    assert names == {"plan.json", "command.txt", "environment.txt", "versions.json", "run.json", "run.log"}
    command = (out / "command.txt").read_text()
    assert shlex.split(command)[3:] == recorded(out)["argv"]
    assert (out / "run.log").read_text() == f"$ {command}trained\n"
    environ = recorded(out)["environ"]
    for line in (out / "environment.txt").read_text().splitlines():
        name, _, value = line.partition("=")
        assert environ[name] == value
    assert environ["DS_ACCELERATOR"] == "cpu"
    versions = json.loads((out / "versions.json").read_text())
    assert versions["packages"]["torch"] == installed_version("torch")


def test_no_module_of_the_working_directory_is_run_in_place_of_the_trainer():
    for name in ("vlmplan_trainer.py", "random.py", "json.py"):
        Path(name).write_text("raise SystemExit('taken')")
    found = call("launch", *RECIPE, *TRAIN, "--dry-run")
    assert found.code == DONE, found.err
    assert "7 samples to train on" in found.out
    assert call("launch", *RECIPE, *TRAIN).out == "trained\n"


def test_a_run_that_ends_with_0_and_leaves_no_new_report_has_failed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "cut")
    for words in ((), ("--resume",)):  # the second time there is a report, which is of another run
        found = call("launch", *RECIPE, *TRAIN, *words)
        assert found.code == MENDABLE
        assert "did not finish" in found.err
        Path("out/report.json").touch()


@pytest.mark.parametrize("code", [1, 3, 42])
def test_the_exit_code_of_the_run_is_handed_on(monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setenv("STAND_IN", f"exit {code}")
    found = call("launch", *RECIPE, *TRAIN)
    assert found.code == code
    assert "out/run.log" in found.err


def a_finished_run(gpu: str = "cpu:1", *words: str, steps: int = 12) -> None:
    """Start one, and leave the report and the last checkpoint that its trainer would have left."""
    assert call("launch", "--model", "./tiny", "--gpu", gpu, "--seq-len", "64", *TRAIN, *words).code == DONE
    record = read_record(Path("out"))
    assert record is not None
    length = run_length(read_plan(Path("out/plan.json")), record.options)
    Path("out/report.json").write_text(json.dumps({"steps": steps, "length": length}), encoding="utf-8")
    last = Path(f"out/checkpoints/step-{steps:08d}/complete.json")
    last.parent.mkdir(parents=True)
    last.touch()


def test_what_a_killed_process_had_half_written_goes_with_the_next_start():
    a_run_with_a_checkpoint()
    left, others = Path("out/.report.json.0123456789ab.tmp"), Path("out/.mine.tmp")
    for path in (left, others):
        path.write_text("{")
    assert call("launch", "--resume", "--output-dir", "out").code == DONE
    assert (left.exists(), others.exists()) == (False, True)


def test_a_finished_run_is_said_to_be_before_anything_starts():
    a_finished_run()
    Path("out/rank-0.json").unlink()
    found = call("launch", "--resume", "--output-dir", "out")
    assert found.code == MENDABLE
    assert "the run in out is finished: its 12 steps are done" in found.err
    assert not Path("out/rank-0.json").exists()
    assert "exit code" not in found.err


@pytest.mark.sweep
def test_the_adapter_of_a_finished_run_is_merged_in_one_process_and_nothing_is_trained():
    a_finished_run("cpu:2", "--method", "lora")
    Path("out/adapter").mkdir()
    for rank in (0, 1):
        Path(f"out/rank-{rank}.json").unlink()
    merge = ("launch", "--resume", "--merge-adapters", "--output-dir", "out")
    looked_at = call(*merge, "--dry-run")
    assert looked_at.code == DONE, looked_at.err
    assert "would take" not in looked_at.out
    found = call(*merge)
    assert found.code == DONE, found.err
    assert "merging the adapter of the run that has ended into its model; nothing is trained" in found.err
    assert "--merge-adapters" in recorded(Path("out"))["argv"]
    assert not Path("out/rank-1.json").exists()
    Path("out/merged").mkdir()
    again = call(*merge)
    assert again.code == MENDABLE
    assert "its adapter is merged into its model already, in out/merged; there is nothing left to do" in again.err


@pytest.mark.parametrize("words", [("--max-steps", "13"), ("--epochs", "9")], ids=["steps", "epochs"])
def test_a_finished_run_that_is_made_longer_goes_on(words: tuple[str, ...]):
    a_finished_run()
    Path("out/rank-0.json").unlink()
    found = call("launch", "--resume", "--output-dir", "out", *words)
    assert found.code == DONE, found.err
    assert Path("out/rank-0.json").exists()


@pytest.mark.parametrize("max_steps", ["5", "12"])
def test_a_finished_run_that_may_have_no_more_steps_is_said_to_be_finished(max_steps: str):
    a_finished_run()
    Path("out/rank-0.json").unlink()
    found = call("launch", "--resume", "--output-dir", "out", "--max-steps", max_steps)
    assert found.code == MENDABLE
    assert "the run in out is finished: its 12 steps are done" in found.err
    assert not Path("out/rank-0.json").exists()


def test_a_finished_run_whose_last_checkpoint_is_gone_is_for_the_trainer_to_judge():
    a_finished_run()
    Path("out/checkpoints/step-00000012").rename("out/checkpoints/step-00000011")
    assert call("launch", "--resume", "--output-dir", "out").code == DONE


def test_a_finished_run_whose_checkpoints_are_gone_is_not_begun_anew_over_its_result():
    a_finished_run()
    shutil.rmtree("out/checkpoints")
    found = call("launch", "--resume", "--output-dir", "out", "--max-steps", "13")
    assert found.code == MENDABLE
    assert "the run in out is finished and its checkpoints are gone" in found.err
    assert "starts anew" not in found.err
    Path("out/report.json").unlink()
    assert "so training starts anew" in call("launch", "--resume", "--output-dir", "out").err


def test_who_has_just_seen_a_resume_refused_is_not_told_to_resume(monkeypatch: pytest.MonkeyPatch):
    a_run_with_a_checkpoint()
    Path("out/report.json").unlink()
    monkeypatch.setenv("STAND_IN", "exit 1")
    assert "--resume goes on" not in call("launch", "--resume", "--output-dir", "out").err
    monkeypatch.setenv("STAND_IN", "exit 137")
    assert "--resume goes on" in call("launch", "--resume", "--output-dir", "out").err


def test_a_start_that_failed_is_repeated_in_its_folder_with_another_plan_and_its_log_is_kept(monkeypatch):
    monkeypatch.setenv("STAND_IN", "exit 1")
    assert call("launch", *RECIPE, *TRAIN).code == 1
    monkeypatch.setenv("STAND_IN", "exit 0")
    found = call("launch", *RECIPE, *TRAIN, "--micro-batch", "5")
    assert found.code == DONE, found.err
    assert read_plan(Path("out/plan.json")).recipe.micro_batch == 5
    assert Path("out/run.log").read_text().count("trained\n") == 2


def test_a_plan_file_is_run_as_it_is():
    assert call("launch", *RECIPE, *TRAIN, "--micro-batch", "5").code == DONE
    found = call("launch", "--plan", "out/plan.json", "--train-data", "data.jsonl", "--output-dir", "again")
    assert found.code == DONE, found.err
    assert Path("again/plan.json").read_text() == Path("out/plan.json").read_text()


def test_a_run_can_start_in_the_folder_that_its_plan_was_written_to():
    assert call("launch", *RECIPE, *TRAIN).code == DONE
    write_files(read_plan(Path("out/plan.json")), Path("planned"))
    words = ("--plan", "planned/plan.json", "--dummy-data", "8", "--output-dir", "planned")
    assert call("launch", *words).code == DONE


def test_a_second_start_is_refused_and_resuming_needs_no_plan():
    assert call("launch", *RECIPE, *TRAIN).code == DONE
    (problem,) = problems_of(*RECIPE, *TRAIN)
    assert "--resume" in problem
    checkpoint = Path("out", CHECKPOINTS, "step-00000001")
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).touch()
    found = call("launch", *TRAIN, "--resume")
    assert found.code == DONE, found.err
    assert "--resume" in recorded(Path("out"))["argv"]
    assert Path("out/run.log").read_text().count("trained\n") == 2


def test_resuming_before_the_first_checkpoint_starts_anew_so_that_one_command_serves_machines_that_are_taken_away():
    for _ in range(2):
        found = call("launch", *RECIPE, *TRAIN, "--resume")
        assert found.code == DONE, found.err
        assert "starts anew" in found.err
        assert "--resume" not in recorded(Path("out"))["argv"]


CHECKPOINT = Path("out", CHECKPOINTS, "step-00000001", MANIFEST)


def a_run_with_a_checkpoint(*words: str) -> list[str]:
    """Start one with these options; the arguments that its trainer got."""
    found = call("launch", *RECIPE, *TRAIN, *words)
    assert found.code == DONE, found.err
    CHECKPOINT.parent.mkdir(parents=True)
    CHECKPOINT.touch()
    return recorded(Path("out"))["argv"]


def test_a_run_goes_on_with_its_model_at_another_place_and_with_no_other_model():
    Path("tiny/model.safetensors").write_bytes(b"weights" * 10_000)
    a_run_with_a_checkpoint("--method", "lora")
    Path("tiny").rename("moved")
    resume = ("--resume", "--output-dir", "out")
    assert problems_of(*resume) == [
        f"the model's folder {Path('tiny').absolute()} is not on this machine; --model FOLDER says where it is now"
    ]
    moved = call("launch", *resume, "--model", "./moved")
    assert moved.code == DONE, moved.err
    assert f"the model is read from {Path('moved').absolute()} from here on" in moved.err
    assert call("launch", *resume).code == DONE
    shutil.copytree("moved", "other")
    Path("other/model.safetensors").write_bytes(b"weights" * 9_999 + b"Weights")
    assert "which has other weights" in problems_of(*resume, "--model", "./other")[0]
    (folder_of("larger", TINY | {"vocab_size": 2 * TINY["vocab_size"]}) / "model.safetensors").touch()
    assert "cannot be resumed with model" in problems_of(*resume, "--model", "./larger")[0]


def test_a_run_of_which_nothing_tells_its_weights_goes_on_at_no_other_place():
    a_run_with_a_checkpoint()
    Path("tiny").rename("moved")
    record = json.loads(Path("out/run.json").read_text())
    Path("out/run.json").write_text(json.dumps({**record, "weights": None}))
    found = problems_of("--resume", "--output-dir", "out", "--model", "./moved")
    assert "of which run.json does not tell whether its weights are the same" in found[0]


def test_the_folder_is_all_that_resuming_needs():
    words = (
        "--learning-rate",
        "1e-3",
        "--seed",
        "7",
        "--save-every",
        "3",
        "--weight-decay",
        "0.1",
        "--micro-batch",
        "5",
    )
    first = a_run_with_a_checkpoint(*words)
    found = call("launch", "--resume", "--output-dir", "out")
    assert found.code == DONE, found.err
    again = recorded(Path("out"))["argv"]
    assert [word for word in again if word != "--resume"] == first
    assert "--resume" in again


def test_what_a_dry_run_and_its_look_at_the_data_both_find_is_said_once(monkeypatch: pytest.MonkeyPatch):
    a_run_with_a_checkpoint()
    with Path("data.jsonl").open("a") as file:
        file.write("{}\n")
    words = ("launch", "--resume", "--output-dir", "out", "--dry-run")
    found = call(*words)
    (problem,) = [line for line in found.err.splitlines() if line.startswith("vlmplan: ")]
    monkeypatch.setenv("LOOK", json.dumps({"problem": problem.removeprefix("vlmplan: ")}))
    assert call(*words).err == found.err


def test_where_the_models_folder_is_gone_its_data_is_not_looked_at_with_it(monkeypatch: pytest.MonkeyPatch):
    a_run_with_a_checkpoint()
    Path("tiny").rename("moved")
    monkeypatch.setenv("LOOK", '{"problem": "the model is nowhere"}')
    found = call("launch", "--resume", "--output-dir", "out", "--dry-run")
    (problem,) = [line for line in found.err.splitlines() if line.startswith("vlmplan: ")]
    assert "/tiny is not on this machine" in problem


def test_a_run_whose_plan_is_gone_says_which_file_that_was():
    a_run_with_a_checkpoint()
    Path("out/plan.json").unlink()
    found = call("launch", "--resume", "--output-dir", "out")
    assert found.code == USAGE
    assert "there is no out/plan.json, so --plan FILE or --model NAME is needed" in found.err


def test_resuming_with_the_same_command_changes_nothing():
    first = a_run_with_a_checkpoint("--schedule", "linear")
    plan = Path("out/plan.json").read_text()
    found = call("launch", *RECIPE, *TRAIN, "--schedule", "linear", "--resume")
    assert found.code == DONE, found.err
    assert set(recorded(Path("out"))["argv"]) == {*first, "--resume", "--learning-rate", "1e-05"}
    assert Path("out/plan.json").read_text() == plan
    assert "from here on" not in found.err


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("--learning-rate", "1e-3"), ("--learning-rate 1e-05", "--learning-rate 0.001")),
        (("--schedule", "constant"), ("--schedule cosine", "--schedule constant")),
        (("--group-by-length",), ("no --group-by-length", "with --group-by-length")),
        (("--method", "lora"), ("--method full", "--method lora")),
        (("--precision", "fp32"), ("--precision bf16", "--precision fp32")),
        (("--seq-len", "32"), ("--seq-len 64", "--seq-len 32")),
        (("--micro-batch", "2"), ("samples a step 1", "samples a step 2")),
        (("--zero-stage", "2"), ("--zero-stage none", "--zero-stage 2")),
    ],
    ids=lambda value: value[0].strip("-"),
)
def test_what_differs_from_the_run_is_refused_with_both_values(words: tuple[str, ...], values: tuple[str, str]):
    a_run_with_a_checkpoint()
    for more in ((), RECIPE):
        asked = dict(zip(more[::2], more[1::2], strict=True)) | ({} if len(words) == 1 else {words[0]: words[1]})
        given = [*(word for pair in asked.items() for word in pair), *(words if len(words) == 1 else ())]
        problem = next(line for line in problems_of("--resume", "--output-dir", "out", *given) if values[0] in line)
        assert "cannot be resumed" in problem
        assert values[1] in problem


def test_what_may_change_is_said_and_kept():
    a_run_with_a_checkpoint("--micro-batch", "2", "--grad-accum", "2")
    found = call(
        "launch", "--resume", "--output-dir", "out", "--save-every", "5", "--epochs", "3", "--micro-batch", "4"
    )
    assert found.code == DONE, found.err
    for sentence in (
        "--save-every 5 from here on",
        "--epochs 3.0 from here on",
        "--micro-batch 4 from here on; it was --micro-batch 2",
    ):
        assert sentence in found.err
    recipe = read_plan(Path("out/plan.json")).recipe
    assert (recipe.micro_batch, recipe.grad_accum) == (4, 1)
    again = call("launch", "--resume", "--output-dir", "out")
    assert "from here on" not in again.err
    assert recorded(Path("out"))["argv"].count("--save-every") == 1


def test_a_step_takes_as_many_samples_on_other_ranks_also_where_the_number_is_given():
    a_run_with_a_checkpoint("--micro-batch", "2", "--grad-accum", "2")
    for words in ((), ("--global-batch", "4")):
        found = call("launch", "--resume", "--output-dir", "out", "--gpu", "cpu:2", *words, "--dry-run", "--json")
        recipe = found.document["plan"]["recipe"]
        assert (recipe["micro_batch"], recipe["grad_accum"]) == (2, 1), found.err
        back = call("launch", "--resume", "--output-dir", "out", "--gpu", "cpu:1", *words, "--dry-run")
        assert back.code == DONE, back.err
        assert "no effect" not in back.err


def test_data_that_has_changed_since_is_refused():
    a_run_with_a_checkpoint()
    Path("data.jsonl").write_text('{"messages": []}\n' * (2 * 3 * 5 + 1))
    (problem,) = problems_of("--resume", "--output-dir", "out")
    assert "--train-data" in problem
    assert "510 bytes then, 527 now" in problem


def test_a_run_of_an_older_version_says_what_is_missing_and_goes_on_with_what_is_given():
    a_run_with_a_checkpoint("--learning-rate", "1e-3")
    Path("out/run.json").unlink()
    sentence = refusal("launch", "--resume", "--output-dir", "out")
    assert "has no run.json" in sentence
    assert "command.txt" in sentence
    found = call("launch", *TRAIN, "--resume", "--learning-rate", "1e-3")
    assert found.code == DONE, found.err
    assert "goes on with --learning-rate 0.001" in found.err
    assert "does not exist" in refusal("launch", "--resume", "--output-dir", "nowhere")


# -- when memory runs out --------------------------------------------------------------------------------------------

SHORTAGE = Shortage(
    rank=0,
    phase="backward",
    step=3,
    is_on_host=True,
    allocated_bytes=2 * 3 * 5 * MIB,
    peak_allocated_bytes=2 * 3 * 5 * MIB,
    requested_bytes=7 * MIB,
    free_bytes=3 * MIB,
    total_bytes=11 * 13 * MIB,
    planned_bytes=2 * 3 * 5 * MIB,
)


def test_after_a_run_out_of_memory_the_command_that_fits_is_printed_and_can_be_run(monkeypatch: pytest.MonkeyPatch):
    write_shortage(SHORTAGE, Path("left"))
    monkeypatch.setenv("STAND_IN", f"shortage {Path('left/out_of_memory-0.json').absolute()}")
    words = ("--micro-batch", "4", "--grad-accum", "2", "--no-activation-checkpointing", "--seed", "7")
    found = call("launch", *RECIPE, *TRAIN, *words)
    assert found.code == EXIT_OUT_OF_MEMORY
    ran_out, change, to_fit = found.err.splitlines()[-3:]
    assert "ran out in backward of step 3 on rank 0" in ran_out
    for num_bytes in (SHORTAGE.planned_bytes, SHORTAGE.requested_bytes, SHORTAGE.free_bytes, SHORTAGE.total_bytes):
        assert gib_text(num_bytes) in ran_out
    assert "--micro-batch" in change
    monkeypatch.setenv("STAND_IN", "exit 0")
    program, *command = shlex.split(to_fit.removeprefix("to fit: "))
    assert program == "vlmplan"
    again = call(*command)
    assert again.code == DONE, again.err
    before, after = (read_plan(Path(folder, "plan.json")) for folder in ("out", "out-2"))
    assert after.samples_per_step == before.samples_per_step
    changed = {name for name, value in after.recipe.as_json().items() if value != before.recipe.as_json()[name]}
    assert changed == {"micro_batch", "grad_accum"}
    assert recorded(Path("out-2"))["argv"][-2:] == ["--seed", "7"]


def test_what_an_earlier_attempt_left_is_not_believed(monkeypatch: pytest.MonkeyPatch):
    write_shortage(SHORTAGE, Path("out"))
    monkeypatch.setenv("STAND_IN", f"exit {EXIT_OUT_OF_MEMORY}")
    found = call("launch", *RECIPE, *TRAIN)
    assert found.code == EXIT_OUT_OF_MEMORY
    assert "to fit" not in found.err
    assert "on a rank whose folder is not on this machine" in found.err


# -- dry run ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_run_and_writes_nothing():
    before = sorted(Path().rglob("*"))
    found = call("launch", *RECIPE, *TRAIN, "--dry-run")
    assert found.code == DONE, found.err
    would_run = next(line for line in found.out.splitlines() if line.startswith("would run: "))
    words = shlex.split(would_run)
    assert "DS_ACCELERATOR=cpu" in words
    assert str(Path("data.jsonl").absolute()) in words
    assert sorted(Path().rglob("*")) == before


def test_the_document_of_a_dry_run_is_what_the_run_writes():
    document = call("launch", *RECIPE, *TRAIN, "--dry-run", "--json").document
    assert document["schema"] == SCHEMA
    assert undocumented(document) == set()
    assert document["problems"] == []
    assert call("launch", *RECIPE, *TRAIN).code == DONE
    assert shlex.split(Path("out/command.txt").read_text()) == document["command"]
    assert json.loads(Path("out/plan.json").read_text()) == document["plan"]
    assert all(Path(name).is_file() for name in document["files"])


def test_a_dry_run_shows_the_command_even_where_it_cannot_run():
    found = call("launch", "--model", "./tiny", "--gpu", "a100-sxm4-80gb:4", *TRAIN, "--dry-run")
    assert found.code == MENDABLE
    assert "--num_gpus 4" in found.out
    assert "A100" in found.err


@pytest.mark.sweep
def test_looking_at_this_machine_imports_no_training_library():
    words = ["launch", *RECIPE, *TRAIN, "--dry-run"]
    assert not modules_after(f"from vlmplan.cli.command_line import run; assert run({words!r}) == 0") & HEAVY


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_everything_in_the_way_is_named_and_nothing_is_written(monkeypatch: pytest.MonkeyPatch):
    fake_driver(monkeypatch, [FakeCard(name="Tesla T4", total_mib=15360, device_id="1EB8", capability=(7, 5))])
    words = ("--train-data", "none.jsonl", "--output-dir", "out")
    problems = problems_of("--model", "./tiny", "--gpu", "a100-sxm4-80gb:2", *words)
    assert any("for 2 GPUs, but this machine has 1" in problem for problem in problems)
    assert any("T4, but the plan is for" in problem for problem in problems)
    assert any("none.jsonl does not exist" in problem for problem in problems)
    assert not Path("out").exists()


def test_a_dry_run_says_what_the_start_would_find_in_the_data(monkeypatch):
    found = call("launch", *RECIPE, *TRAIN, "--dry-run")
    assert found.out.splitlines()[-2:] == ["--train-data data.jsonl:", "  7 samples to train on"]
    document = call("launch", *RECIPE, *TRAIN, "--dry-run", "--json").document
    assert document["data"]["train"]["lines"] == ["7 samples to train on"]
    monkeypatch.setenv("LOOK", '{"problem": "data.jsonl:3 is bad"}')
    found = call("launch", *RECIPE, *TRAIN, "--dry-run")
    assert (found.code, found.err.splitlines()[-1]) == (MENDABLE, "vlmplan: data.jsonl:3 is bad")
    monkeypatch.setenv("LOOK", "Segmentation fault")
    found = call("launch", *RECIPE, *TRAIN, "--dry-run")
    assert (found.code, "the data cannot be looked at" in found.err) == (MENDABLE, True)


def test_data_that_cannot_be_opened_is_said_once():
    Path("data.jsonl").write_text("[{},")
    found = call("launch", *RECIPE, *TRAIN, "--num-samples", "30", "--dry-run")
    assert found.code == MENDABLE
    assert found.err.count("data.jsonl[1] is not JSON") == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*RECIPE, "--train-data", "data.jsonl"], "--output-dir"),
        (TRAIN, "--plan FILE or --model NAME"),
        ([*TRAIN, "--resume"], "--plan FILE or --model NAME"),
        ([*RECIPE, *TRAIN, "--json"], "--dry-run"),
        (["--demo", "--model", "qwen2-vl-2b"], "--demo"),
        (["--demo", "--plan", "p.json"], "--demo"),
        ([*RECIPE, *TRAIN, "--schedule", "cosin"], "'cosine'"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_a_usage_error(words, part: str):
    assert part in refusal("launch", *words, code=USAGE)


def test_a_plan_file_cannot_be_changed_by_options():
    sentence = refusal("launch", "--plan", "p.json", "--micro-batch", "2", "--freeze-vision", *TRAIN)
    assert "--freeze-vision, --micro-batch cannot" in sentence
    assert "p.json does not exist" in refusal("launch", "--plan", "p.json", *TRAIN)


def test_data_has_to_come_from_somewhere():
    assert "--train-data, --dummy-data" in refusal("launch", *RECIPE, "--output-dir", "out")


def test_every_option_of_the_trainer_is_explained():
    shown = call("launch", "--help")
    assert shown.code == DONE
    for name in TrainerOptions.__dataclass_fields__:
        assert f"--{name.replace('_', '-')} " in shown.out


# -- the demo --------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_the_demo_trains_a_tiny_model_on_two_ranks_under_deepspeed():
    found = call("launch", "--demo", "--max-steps", "4")
    assert found.code == DONE, found.out + found.err
    out = Path("vlmplan-demo")
    plan = read_plan(out / "plan.json")
    assert (plan.recipe.zero_stage, plan.hardware.vendor, plan.hardware.num_gpus) == (2, "cpu", 2)
    assert plan.expected.verdict == "fits"
    assert plan.model_source == str((out / MODEL_FOLDER).absolute())
    assert (out / MODEL_FOLDER / "model.safetensors").stat().st_size < 2**20
    for rank in range(2):
        environ = recorded(out, rank)["environ"]
        assert (environ["RANK"], environ["WORLD_SIZE"], environ["DS_ACCELERATOR"]) == (str(rank), "2", "cpu")
        assert recorded(out, rank)["argv"][-2:] == ["--max-steps", "4"]
    assert demo_folder() == Path("vlmplan-demo-2")


def test_a_demo_takes_the_first_folder_that_nothing_was_trained_in():
    assert demo_folder() == Path("vlmplan-demo")
    Path("vlmplan-demo", MODEL_FOLDER).mkdir(parents=True)
    assert demo_folder() == Path("vlmplan-demo")
    Path("vlmplan-demo/run.log").touch()
    Path("vlmplan-demo/metrics.jsonl").touch()
    assert demo_folder() == Path("vlmplan-demo")
    Path("vlmplan-demo/metrics.jsonl").write_text("{}\n")
    Path("vlmplan-demo-2").touch()
    assert demo_folder() == Path("vlmplan-demo-3")


def test_a_demo_does_not_write_into_another_run():
    assert call("launch", *RECIPE, *TRAIN).code == DONE
    assert "--resume" in refusal("launch", "--demo", "--output-dir", "out")
    assert not Path("out", MODEL_FOLDER).exists()
