"""A run's folder holds what was started, whole, and belongs to one training."""

import errno
import json
import os
import shlex
from dataclasses import replace

import pytest

from launch_cases import cpu_plan, gpu_plan
from vlmplan.emit import write_files
from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import write_atomically
from vlmplan.launch import demo
from vlmplan.launch.run_folder import (
    LOG_FILE,
    folder_problems,
    has_checkpoint,
    locked_log,
    report_mark,
    run_texts,
    what_differs,
    write_run_files,
)
from vlmplan.plan import Plan, read_plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, OptimizerKind
from vlmplan.recipe.settings import RESULT_FIELDS
from vlmplan.recipe.switches import option_text
from vlmplan.run.training import ADAPTER_FOLDER, CHECKPOINTS, MANIFEST, MERGED_FOLDER, MODEL_FOLDER, REPORT_FILE

COMMAND = ["/env/python", "-m", "vlmplan_trainer", "--train-data", "my data.jsonl"]
LORA = Recipe(zero_stage=2, micro_batch=3, method=Method.LORA)
OTHER = {
    "method": Method.QLORA,
    "lora_rank": 2 * LORA.lora_rank,
    "lora_targets": "attention",
    "lora_alpha": 3 * LORA.lora_rank,
    "use_rslora": True,
    "use_dora": True,
    "lora_init": "gaussian",
    "lora_exclude": "o_proj",
    "train_embeddings": True,
    "train_vision": False,
    "train_projector": False,
    "full_vision": True,
    "full_projector": True,
    "train_language": False,
    "optimizer": OptimizerKind.ADAMW_8BIT,
}


def written(folder, plan: Plan) -> None:
    write_run_files(folder, run_texts(plan, COMMAND, {"DS_ACCELERATOR": "cpu", "X": "a b"}, {"python": "3"}))


def test_the_files_say_what_was_run(tmp_path):
    plan = gpu_plan()
    written(tmp_path / "a" / "run", plan)
    texts = {path.name: path.read_text() for path in (tmp_path / "a" / "run").iterdir()}
    assert set(texts) == {"plan.json", "ds_config.json", "command.txt", "environment.txt", "versions.json"}
    assert read_plan(tmp_path / "a" / "run" / "plan.json") == plan
    assert json.loads(texts["ds_config.json"]) == plan.ds_config
    assert shlex.split(texts["command.txt"]) == COMMAND
    assert texts["environment.txt"].splitlines() == ["DS_ACCELERATOR=cpu", "X=a b"]
    assert json.loads(texts["versions.json"]) == {"python": "3"}


def test_plain_pytorch_has_no_ds_config(tmp_path):
    written(tmp_path, cpu_plan(1))
    assert not (tmp_path / "ds_config.json").exists()


# -- whose folder it is ----------------------------------------------------------------------------------------------


def test_a_folder_with_the_same_plan_and_no_run_can_be_used(tmp_path):
    write_files(gpu_plan(), tmp_path)
    assert folder_problems(tmp_path, gpu_plan(), resumes=False) == []
    assert folder_problems(tmp_path / "new", gpu_plan(), resumes=False) == []
    (tmp_path / "notes.txt").write_text("mine")
    assert folder_problems(tmp_path, gpu_plan(), resumes=False) == []


def test_another_plans_folder_is_refused(tmp_path):
    write_files(gpu_plan(), tmp_path)
    (problem,) = folder_problems(tmp_path, gpu_plan(num_gpus=4), resumes=False)
    assert "holds another plan" in problem


RESULTS = {
    "metrics.jsonl": '{"step": 1}\n',
    "report.json": "{}",
    "model/config.json": "{}",
    "adapter/adapter_config.json": "{}",
    "merged/config.json": "{}",
    f"{CHECKPOINTS}/step-00000007.unfinished/state.pt": "",
}


def started(folder, plan: Plan) -> None:
    """What every start leaves: its files, a log, and the metrics of no step."""
    written(folder, plan)
    (folder / LOG_FILE).write_text("$ ...\nvlmplan_trainer: data.jsonl:1 is not JSON\n")
    (folder / "metrics.jsonl").touch()


@pytest.mark.parametrize("name", RESULTS)
def test_a_second_start_where_one_left_results_is_refused_unless_it_resumes(name: str, tmp_path):
    started(tmp_path, gpu_plan())
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(RESULTS[name])
    (problem,) = folder_problems(tmp_path, gpu_plan(), resumes=False)
    assert f"holds a run already ({name.partition('/')[0]}); --resume goes on" in problem
    assert folder_problems(tmp_path, gpu_plan(), resumes=True) == []
    with pytest.raises(InputError, match="holds a run already"), locked_log(tmp_path, resumes=False):
        pass
    (problem,) = folder_problems(tmp_path, gpu_plan(LORA), resumes=True)
    assert "cannot be resumed" in problem


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("plan", [gpu_plan(), gpu_plan(LORA)], ids=["the same", "another"])
def test_the_folder_of_a_start_that_failed_can_be_used_again(plan: Plan, resumes: bool, tmp_path):
    started(tmp_path, gpu_plan())
    assert folder_problems(tmp_path, plan, resumes=resumes) == []
    with locked_log(tmp_path, resumes=resumes) as log:
        written(tmp_path, plan)
        log.write(b"again\n")
    assert read_plan(tmp_path / "plan.json") == plan
    assert (tmp_path / LOG_FILE).read_text().endswith("is not JSON\nagain\n")


def test_a_start_that_failed_may_have_left_a_plan_of_another_version(tmp_path):
    started(tmp_path, gpu_plan())
    (tmp_path / "plan.json").write_text("{}")
    assert folder_problems(tmp_path, gpu_plan(), resumes=False) == []


def test_resuming_where_nothing_was_started_starts_so_that_one_command_serves_interruptible_machines(tmp_path):
    assert folder_problems(tmp_path / "new", gpu_plan(), resumes=True) == []


def test_what_is_no_folder_or_no_plan_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (problem,) = folder_problems(tmp_path / "file", gpu_plan(), resumes=False)
    assert "is not a folder" in problem
    (problem,) = folder_problems(tmp_path / "file" / "below", gpu_plan(), resumes=False)
    assert "cannot be written" in problem
    (tmp_path / "plan.json").write_text("{}")
    for resumes in (False, True):
        (problem,) = folder_problems(tmp_path, gpu_plan(), resumes=resumes)
        assert "cannot be read" in problem


# -- resuming --------------------------------------------------------------------------------------------------------


def test_every_setting_that_shapes_what_is_trained_has_a_case():
    assert set(OTHER) == set(RESULT_FIELDS)


@pytest.mark.parametrize("name", RESULT_FIELDS)
def test_a_run_cannot_be_resumed_as_another_training(name: str, tmp_path):
    written(tmp_path, gpu_plan(LORA))
    (problem,) = folder_problems(tmp_path, gpu_plan(LORA.with_changes(**{name: OTHER[name]})), resumes=True)
    before = LORA.as_json()[name]
    assert option_text(name, "none" if before is None else before) in problem
    assert "cannot be resumed" in problem


def test_a_run_cannot_be_resumed_with_another_model():
    plan = gpu_plan()
    model = plan.workload.model
    for changes in ({"hub_id": "org/other"}, {"config": {"model_type": "llama"}}):
        other = replace(plan, workload=replace(plan.workload, model=replace(model, **changes)))
        assert "model" in str(what_differs(plan, other))


def test_a_checkpoint_is_one_when_the_trainer_has_finished_it(tmp_path):
    assert not has_checkpoint(tmp_path / "none")
    place = tmp_path / CHECKPOINTS / "step-00000007"
    place.mkdir(parents=True)
    assert not has_checkpoint(tmp_path)
    (place / MANIFEST).touch()
    assert has_checkpoint(tmp_path)


def test_no_result_of_the_trainer_is_called_like_the_model_of_the_demo():
    results = {MODEL_FOLDER, ADAPTER_FOLDER, MERGED_FOLDER, CHECKPOINTS}
    assert demo.MODEL_FOLDER not in results


def test_a_run_can_be_resumed_on_other_hardware_and_the_old_plan_is_kept(tmp_path):
    old, new = gpu_plan(num_gpus=2), gpu_plan(num_gpus=4)
    written(tmp_path, old)
    assert folder_problems(tmp_path, new, resumes=True) == []
    written(tmp_path, new)
    written(tmp_path, new)
    written(tmp_path, old)
    assert read_plan(tmp_path / "plan.json") == old
    assert read_plan(tmp_path / "plan-1.json") == old
    assert read_plan(tmp_path / "plan-2.json") == new
    assert not (tmp_path / "plan-3.json").exists()


# -- the log ---------------------------------------------------------------------------------------------------------


def test_a_resumed_run_adds_to_the_log(tmp_path):
    with locked_log(tmp_path / "run", resumes=False) as log:
        log.write(b"first\n")
    with locked_log(tmp_path / "run", resumes=True) as log:
        log.write(b"second\n")
    assert (tmp_path / "run" / LOG_FILE).read_bytes() == b"first\nsecond\n"


def test_two_runs_cannot_share_a_folder(tmp_path):
    with locked_log(tmp_path, resumes=False):
        with pytest.raises(InputError, match="another run is going on"), locked_log(tmp_path, resumes=True):
            pass
        with pytest.raises(InputError, match="another run is going on"), locked_log(tmp_path, resumes=False):
            pass
        (problem,) = folder_problems(tmp_path, gpu_plan(), resumes=False)
        assert "another run is going on" in problem
    with locked_log(tmp_path, resumes=True):
        pass


@pytest.mark.parametrize("resumes", [False, True])
def test_where_nothing_can_be_locked_a_log_may_be_of_a_run_that_goes_on(resumes: bool, monkeypatch, tmp_path):
    import fcntl

    def refused(file, operation) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with locked_log(tmp_path / "new", resumes=resumes):
        pass
    if resumes:
        with locked_log(tmp_path / "new", resumes=True):
            return
    with pytest.raises(InputError, match="cannot be locked"), locked_log(tmp_path / "new", resumes=False):
        pass


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be written"), locked_log(tmp_path / "file", resumes=False):
        pass


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_log_that_is_no_regular_file_is_not_written_through(kind, tmp_path):
    log, elsewhere = tmp_path / LOG_FILE, tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    log.symlink_to(elsewhere) if kind == "link" else os.mkfifo(log)
    with pytest.raises(InputError, match=r"run\.log is a link or no regular file"), locked_log(tmp_path, resumes=True):
        pass
    assert elsewhere.read_text() == "mine"


def test_a_report_is_told_from_one_that_was_there_before(tmp_path):
    assert report_mark(tmp_path) is None
    marks = []
    for _ in range(2):
        write_atomically(tmp_path / REPORT_FILE, "the same", force=True)
        marks.append(report_mark(tmp_path))
    assert marks[0] != marks[1]
