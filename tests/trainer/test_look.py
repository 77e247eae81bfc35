"""A look at data says what the start of a run finds in it, and refuses it with the same sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import planned, train_here

from vlmplan.files.data_file import num_records_in
from vlmplan.launch.data_look import looked_at
from vlmplan.launch.run_folder import result_in
from vlmplan.plan import Plan, read_plan, write_plan
from vlmplan.run.training import TrainerOptions
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.look import main
from vlmplan_trainer.models.tiny import write_tiny_model

ANSWER = {"from": "gpt", "value": "A red square."}


def llava(image: str | None = None, said: str = "What is it?", **more: Any) -> dict[str, Any]:
    shown = {} if image is None else {"image": image}
    said = said if image is None else f"<image>\n{said}"
    return {"id": "1", "conversations": [{"from": "human", "value": said}, ANSWER], **shown, **more}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "qwen2_vl")


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A plan for two samples a step, and images beside the data."""
    plan = planned(model, num_ranks=1, method="lora", num_samples=6, micro_batch=2, global_batch=2)
    write_plan(plan, tmp_path / "plan.json")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(coloured_png((255, 0, 0), (56, 56)))
    (tmp_path / "images" / "large.png").write_bytes(coloured_png((0, 0, 255), (300, 200)))
    return tmp_path


def look(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["--plan", str(folder / "plan.json"), "--output-dir", str(folder / "run"), *words])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def data(folder: Path, *samples: Any, name: str = "data.json") -> Path:
    (folder / name).write_text(json.dumps(samples))
    return folder / name


def test_an_account_says_what_becomes_of_every_sample(folder: Path, capsys):
    many = {**llava("a.png"), "image": ["a.png", "a.png"]}
    many["conversations"] = [{"from": "human", "value": "<image><image>Both?"}, ANSWER]
    path = data(
        folder,
        llava("a.png"),
        llava("large.png"),
        llava(),
        llava(said="word " * 200),
        {"instruction": "Say red.", "input": "", "output": "red " * 200},
        {"prompt": [{"role": "user", "content": "x"}], "completion": [{"role": "assistant", "content": "y"}]},
        many,
        {"messages": []},
        llava("missing.png"),
    )
    words = ("--train-data", str(path), "--image-folder", str(folder / "images"), "--skip-bad-samples")
    code, found = look(folder, capsys, *words)
    account = found["train"]
    assert (code, found["eval"]) == (0, None)
    assert account["forms"] == {
        "conversations (LLaVA)": 5, "instruction, output (Alpaca)": 1, "prompt, completion (TRL, messages)": 1
    }  # fmt: skip
    counts = {key: value for key, value in account.items() if key.startswith("num_")}
    assert 0 < counts.pop("num_learnt") < counts.pop("num_tokens")
    assert counts == {
        "num_samples": 5, "num_bad": 2, "num_no_room": 2, "num_left_out": 4, "num_truncated": 1, "num_images": 2,
        "num_images_reduced": 1,
        "num_videos": 0,
        "num_sounds": 0,
    }  # fmt: skip
    assert num_records_in(path) == account["num_samples"] + account["num_left_out"]
    assert account["longest"] == 64
    assert len(account["sentences"]) == 4
    done = train_here(planned_in(folder), folder, *words, "--max-steps", "1")
    assert done.code == 0, done.err
    assert all(line in done.out for line in account["lines"])
    assert (done.report["num_left_out"], done.report["num_skipped"]) == (4, 4)


def planned_in(folder: Path) -> Plan:
    return read_plan(folder / "plan.json")


BAD = {
    "a wrong form": ([llava(), {"text": "x"}], r"data.json[1]: the sample has none of messages"),
    "a missing image": ([llava("none.png")], 'data.json[0]: the image "none.png" is no file'),
    "too few": ([llava()], "takes 2; more samples"),
    "no room for anything": ([llava(said="w " * 300)] * 3, "takes 2; more samples"),
}


BAD_TO_EVALUATE = {name: BAD[name] for name in BAD if name != "too few"} | {
    "no room for anything": (BAD["no room for anything"][0], "one or more are needed")
}
"""One sample is enough to evaluate."""


@pytest.mark.parametrize(
    ("of", "samples", "part"),
    [("--train-data", *one) for one in BAD.values()] + [("--eval-data", *one) for one in BAD_TO_EVALUATE.values()],
    ids=[f"--train-data-{name}" for name in BAD] + [f"--eval-data-{name}" for name in BAD_TO_EVALUATE],
)
def test_what_the_start_refuses_a_look_refuses_with_the_same_sentence_and_the_folder_stays_free(
    of: str, samples: list[dict[str, Any]], part: str, folder: Path, capsys
):
    good = data(folder, *[llava()] * 4, name="good.json")
    words = ["--train-data", str(good), of, str(data(folder, *samples))]
    code, found = look(folder, capsys, *words)
    assert (code, part in found["problem"]) == (1, True), found
    refused = train_here(planned_in(folder), folder, *words)
    assert refused.code == 1
    assert refused.err.strip().splitlines()[-1] == f"vlmplan_trainer: {found['problem']}"
    assert result_in(folder / "run") is None


@pytest.mark.sweep
def test_launch_gets_the_account_from_a_process_of_its_own(folder: Path):
    path = data(folder, *[llava()] * 4)
    plan, options = planned_in(folder), TrainerOptions(output_dir=folder / "run", train_data=path)
    found = looked_at(plan, options, dict(plan.environment))
    assert found.problem is None
    assert next(found.lines()) == f"--train-data {path}:"
    assert found.accounts["train"]["num_samples"] == 4
    path.write_text("[{}]")
    assert "none of messages" in str(looked_at(plan, options, dict(plan.environment)).problem)
