"""``vlmplan rehearse`` and ``recommend --rehearse``: the contract of ``--json``, exit codes, files, refusals.

The recorded answer stands for the trainer's; ``test_real_rehearsals`` asks the real one.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_rehearsal import ANSWER, CONFIG, planned, recorded, recorded_json

from cli_calls import DOES_NOT_FIT, DONE, USAGE, call, folder_of, refusal, says
from documented_json import documented_keys, undocumented
from vlmplan.plan import write_plan
from vlmplan.rehearsal import process

WORDS = (
    *("--gpu", "a100-sxm4-80gb:2", "--zero-stage", "2", "--seq-len", "512", "--micro-batch", "2", "--grad-accum", "2"),
    *("--no-activation-checkpointing", "--no-expandable-segments"),
)
GIB = 2**30


def answering(path: Path) -> tuple[str, str]:
    return ("-c", f"import sys; sys.stdin.read(); print(open({str(path)!r}).read())")


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of("small-llama", CONFIG)
    monkeypatch.setattr(process, "installed_version", lambda name: "1")
    monkeypatch.setattr(process, "COMMAND", answering(ANSWER))


def rehearse(*words: str):
    return call("rehearse", "--model", "small-llama", *WORDS, *words)


def with_more_bytes(num_bytes: int) -> Path:
    """The recorded answer with one more storage at its start, alive to the end."""
    answer = recorded_json()
    answer["events"]["storages"].insert(0, 10**9)
    answer["events"]["bytes"].insert(0, num_bytes)
    answer["origins"]["storages"].append(10**9)
    answer["origins"]["places"].append(0)
    for mark in answer["marks"]:
        mark[0] += 1
        mark[3] += 1
    for phase in answer["phases"]:
        phase["peak_bytes"] += num_bytes
        phase["resident_bytes"] += num_bytes
        phase["components"]["weights"] += num_bytes
    path = Path("more.json").absolute()
    path.write_text(json.dumps(answer))
    return path


# -- the schema ------------------------------------------------------------------------------------------------------


def test_json_has_the_contract_and_no_more():
    found = rehearse("--json")
    assert (found.code, found.err) == (DONE, "")
    assert found.document.keys() - {"schema"} == documented_keys("vlmplan.rehearsal/1")
    assert undocumented(found.document) == set()
    assert found.document["schema"] == "vlmplan.rehearsal/1"


def test_components_add_up_to_the_peak_and_errors_are_of_what_was_rehearsed():
    found = rehearse("--json").document
    assert sum(found["components_at_peak"].values()) == found["peak_allocated_bytes"]
    error = found["estimated_peak_allocated_bytes"] / found["peak_allocated_bytes"] - 1
    assert found["relative_error"] == pytest.approx(error)
    for phase in found["phases"]:
        assert sum(phase["components"].values()) == phase["peak_bytes"]
        assert sum(phase["estimated_components"].values()) == phase["estimated_peak_bytes"]
        if phase["peak_bytes"]:
            assert phase["relative_error"] == pytest.approx(phase["estimated_peak_bytes"] / phase["peak_bytes"] - 1)


def test_json_has_the_estimates_phases_beside_the_rehearsed():
    estimate = call("estimate", "--model", "small-llama", *WORDS, "--json").document
    found = rehearse("--json").document
    keys = ("name", "estimated_resident_bytes", "estimated_peak_bytes")
    assert [tuple(phase[key] for key in keys) for phase in found["phases"]] == [
        (phase["name"], phase["resident_bytes"], phase["peak_bytes"]) for phase in estimate["phases"]
    ]
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes"):
        assert found[f"estimated_{name}"] == estimate[name]
    assert found["recipe"] == estimate["recipe"]


def test_bytes_grow_from_allocated_over_reserved_to_device():
    found = rehearse("--json").document
    assert found["peak_allocated_bytes"] <= found["peak_reserved_bytes"] < found["peak_device_bytes"]
    added = sum(one["bytes"] or 0 for one in found["not_rehearsed"] if one["what"] != "cuBLAS workspaces")
    assert found["peak_device_bytes"] == found["peak_reserved_bytes"] + added


def test_table_and_json_say_the_same():
    printed, found = rehearse().out, rehearse("--json").document
    assert f"{found['peak_device_bytes'] / GIB:.2f} GiB of" in printed
    assert f"rank {found['rank']} of {found['num_ranks']}" in printed


@pytest.mark.parametrize(("gib", "is_said"), [("1", True), ("512", False)])
def test_a_host_that_is_too_small_is_said_beside_what_was_rehearsed_of_the_gpu(gib: str, is_said: bool):
    found = rehearse("--host-ram", gib)
    assert ("the host's memory is too small, as vlmplan estimate shows" in " ".join(found.out.split())) is is_said


def test_seconds_are_said_as_rehearsed_and_as_estimated_only_where_both_are_known(monkeypatch: pytest.MonkeyPatch):
    assert " as rehearsed, " in rehearse().out.partition("by the roofline: ")[2].splitlines()[0]
    monkeypatch.setattr("vlmplan.estimation.Estimate.step_seconds", None)
    assert "by the roofline: " not in rehearse().out


# -- exit codes ------------------------------------------------------------------------------------------------------


def test_more_than_the_card_has_is_exit_code_3_whatever_the_estimate_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "COMMAND", answering(with_more_bytes(79 * GIB)))
    found = rehearse("--json")
    assert found.code == DOES_NOT_FIT
    assert (found.document["verdict"], found.document["estimated_verdict"]) == ("does_not_fit", "fits")
    assert call("rehearse", "--model", "small-llama", *WORDS).out.splitlines()[2].startswith("does not fit: ")


def test_neither_model_nor_plan_is_misuse():
    says(refusal("rehearse", *WORDS, code=USAGE), "--plan FILE, --config FILE or --model NAME is needed")


def test_unknown_option_is_misuse():
    says(refusal("rehearse", "--model", "small-llama", "--micro", "x", code=USAGE), "--micro")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rank", "2"), "--rank is 2; the plan has ranks 0 to 1"),
        (("--steps", "1"), "--steps is 1; 3 or more are needed"),
        (("--gpu", "a100-sxm4-800gb"), "unknown GPU"),
        (("--micro-batch", "0"), "micro"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: tuple[str, ...], said: str):
    kept = [word for pair in zip(WORDS[:-2:2], WORDS[1:-2:2], strict=True) if pair[0] not in words for word in pair]
    says(refusal("rehearse", "--model", "small-llama", *kept, *words), said)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "installed_version", lambda name: None)
    says(refusal("rehearse", "--model", "small-llama", *WORDS), "torch", 'pip install "vlmplan[train]"')


def test_a_task_without_trl_says_what_brings_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "installed_version", lambda name: None if name in ("trl", "datasets") else "1.0")
    words = ("rehearse", "--model", "small-llama", *WORDS, "--task", "dpo")
    says(refusal(*words), "needs trl, datasets, not installed here", 'pip install "vlmplan[rl]"')


def test_a_task_that_is_not_launched_is_not_rehearsed():
    words = ("rehearse", "--model", "small-llama", *WORDS, "--task", "grpo", "--max-completion-tokens", "16")
    says(refusal(*words, "--generation", "server"), "--generation server is planned, not launched")


def test_a_rehearsal_that_dies_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "COMMAND", ("-c", "raise RuntimeError('aten::thing')"))
    says(refusal("rehearse", "--model", "small-llama", *WORDS), "ended before it began: RuntimeError: aten::thing")


@pytest.mark.sweep
def test_samples_decide_what_is_rehearsed_as_they_do_what_is_estimated():
    turns = [{"role": "user", "content": "why? " * 300}, {"role": "assistant", "content": "because " * 40}]
    Path("chats.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 40)
    words = ("--model", "small-llama", "--data", "chats.jsonl", *WORDS[:4], *WORDS[6:], "--json")
    found, estimate = call("rehearse", *words).document, call("estimate", *words).document
    assert found["estimated_peak_device_bytes"] == estimate["peak_device_bytes"]
    assert found["estimated_peak_device_bytes"] != rehearse("--json").document["estimated_peak_device_bytes"]
    assert found["data"]["tokens"] == estimate["data"]["tokens"]
    assert "data: chats.jsonl: 40 samples" in call("rehearse", *words[:-1]).out


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_rehearsed_as_its_options_are():
    write_plan(planned()[0], Path("plan.json"))
    by_plan, by_options = call("rehearse", "--plan", "plan.json", "--json"), rehearse("--json")
    assert by_plan.code == DONE, by_plan.err
    for name in ("phases", "peak_device_bytes", "estimated_peak_device_bytes", "components_at_peak"):
        assert by_plan.document[name] == by_options.document[name], name


def test_a_folder_stands_for_the_plan_in_it():
    Path("plan").mkdir()
    write_plan(planned()[0], Path("plan/plan.json"))
    by_folder, by_file = (call("rehearse", "--plan", path, "--json") for path in ("plan", "plan/plan.json"))
    assert by_folder.code == DONE, by_folder.err
    assert by_folder.document == by_file.document
    Path("plan/plan.json").unlink()
    says(refusal("rehearse", "--plan", "plan"), "plan/plan.json does not exist")


def test_a_plan_goes_with_no_options_of_estimate():
    write_plan(planned()[0], Path("plan.json"))
    sentence = refusal("rehearse", "--plan", "plan.json", "--micro-batch", "4", "--zero-stage", "3")
    says(sentence, "plan.json decides everything that is planned", "--micro-batch, --zero-stage")


@pytest.mark.parametrize(
    "words", [("rehearse",), ("explain", "stage"), ("launch", "--output-dir", "out", "--dummy-data", "4")]
)
def test_an_option_beside_a_plan_is_named_as_it_was_given(words: tuple[str, ...]):
    write_plan(planned()[0], Path("plan.json"))
    sentence = refusal(*words, "--plan", "plan.json", "--no-autocast", "--foreach-optimizer")
    says(sentence, "plan.json decides everything that is planned", "--foreach-optimizer, --no-autocast cannot")


def test_a_plan_that_is_not_there_is_said():
    says(refusal("rehearse", "--plan", "nothing.json"), "nothing.json does not exist")


def test_hardware_that_nobody_knows_here_is_said():
    write_plan(planned()[0], Path("plan.json"))
    plan = json.loads(Path("plan.json").read_text())
    plan["hardware"] |= {"gpu_id": "mine", "gpu_name": "A card of mine"}
    Path("mine.json").write_text(json.dumps(plan))
    says(refusal("rehearse", "--plan", "mine.json"), "A card of mine of the plan is neither in the catalog nor")


# -- files -----------------------------------------------------------------------------------------------------------

FILES = {"--html": "memory.html", "--svg": "memory.svg", "--trace": "memory.json"}


def test_files_are_written_and_not_overwritten_without_force():
    words = [word for pair in FILES.items() for word in pair]
    assert rehearse(*words).code == DONE
    texts = {name: Path(name).read_text() for name in FILES.values()}
    assert texts["memory.html"].startswith("<!DOCTYPE html>")
    assert texts["memory.svg"].startswith("<?xml")
    assert json.loads(texts["memory.json"])["traceEvents"]
    for option, name in FILES.items():
        Path(name).write_text("mine")
        says(refusal("rehearse", "--model", "small-llama", *WORDS, option, name), f"{name} exists already; --force")
        assert Path(name).read_text() == "mine"
    assert rehearse(*words, "--force").code == DONE
    assert {name: Path(name).read_text() for name in FILES.values()} == texts


def test_a_file_that_is_in_the_way_is_said_before_anything_is_rehearsed(monkeypatch: pytest.MonkeyPatch):
    started = Path("started").absolute()
    monkeypatch.setattr(process, "COMMAND", ("-c", f"open({str(started)!r}, 'w')"))
    Path("here.svg").write_text("mine")
    says(refusal("rehearse", "--model", "small-llama", *WORDS, "--svg", "here.svg"), "here.svg exists already")
    assert not started.exists()


def test_two_kinds_in_one_file_are_refused():
    words = ("--html", "both", "--svg", "./both")
    says(refusal("rehearse", "--model", "small-llama", *WORDS, *words), "need a file each")


def test_the_models_name_is_text_in_the_page():
    name = "<b>bold & co"
    folder_of(name, CONFIG)
    assert call("rehearse", "--model", name, *WORDS, "--html", "page.html").code == DONE
    page = Path("page.html").read_text()
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold &amp; co" in page


# -- recommend -------------------------------------------------------------------------------------------------------

SEARCH = ("recommend", "--model", "small-llama", "--gpu", "a100-sxm4-80gb:2", "--gpu", "h100-sxm:2", "--method", "full")
FIXED = ("--zero-stage", "2", "--seq-len", "512", "--micro-batch", "2", "--grad-accum", "2")


def test_the_winner_is_confirmed_with_both_figures():
    found = call(*SEARCH, *FIXED, "--rehearse", "--json")
    assert found.code == DONE, found.err
    first, *others = found.document["plans"]
    assert first["rehearsal"]["verdict"] == "fits"
    assert first["rehearsal"]["estimated_peak_device_bytes"] == first["estimate"]["peak_device_bytes"]
    assert first["rehearsal"]["peak_device_bytes"] > 0
    assert not any("rehearsal" in plan for plan in others)
    bare = call(*SEARCH, *FIXED, "--json").document["plans"]
    assert [plan | {"rehearsal": None} for plan in bare] == [
        plan | {"rehearsal": None} for plan in found.document["plans"]
    ]


def test_what_was_confirmed_is_printed():
    printed = call(*SEARCH, *FIXED, "--rehearse").out
    says(printed, "rehearsed: rank 0 of 2, 3 steps", "usable on each GPU as rehearsed", "as estimated")
    assert "as rehearsed" not in call(*SEARCH, *FIXED).out


def test_a_winner_that_does_not_fit_makes_way_for_the_next(monkeypatch: pytest.MonkeyPatch):
    """The first rehearsal finds 79 GiB more than there are, the second does not."""
    bare = call(*SEARCH, *FIXED, "--json").document["plans"]
    more, seen = with_more_bytes(79 * GIB), Path("seen").absolute()
    script = (
        f"import os, sys; sys.stdin.read(); first = not os.path.exists({str(seen)!r}); open({str(seen)!r}, 'w'); "
        f"print(open({str(more)!r} if first else {str(ANSWER)!r}).read())"
    )
    monkeypatch.setattr(process, "COMMAND", ("-c", script))
    found = call(*SEARCH, *FIXED, "--rehearse", "--json")
    assert found.code == DONE, found.err
    plans = found.document["plans"]
    assert [plan["gpu"] for plan in plans] == [plan["gpu"] for plan in bare[1:]]
    assert plans[0]["rank"] == 1
    assert plans[0]["rehearsal"]["verdict"] == "fits"
    note = next(note for note in found.document["notes"] if "was ranked higher" in note)
    says(note, "full on 2 x", "rehearsed, it takes", "usable", "as estimated")
    assert [one["gpu"] for one in found.document["rejected"]] == [bare[0]["gpu"]]


def test_where_nothing_fits_when_rehearsed_nothing_is_recommended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "COMMAND", answering(with_more_bytes(200 * GIB)))
    found = call(*SEARCH, *FIXED, "--rehearse", "--json")
    assert (found.code, found.document["plans"]) == (DOES_NOT_FIT, [])
    printed = call(*SEARCH, *FIXED, "--rehearse")
    assert printed.code == DOES_NOT_FIT
    says(printed.out, "nothing fits", "rehearsed, it takes")


# -- light -----------------------------------------------------------------------------------------------------------


def test_the_command_line_imports_no_training_library():
    """Not even the planner's half of a rehearsal, whose trainer runs in a process of its own."""
    script = (
        "import sys, vlmplan.cli, vlmplan.cli.rehearse, vlmplan.rehearsal, vlmplan.answers.rehearsal; "
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'transformers', 'deepspeed')])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_help_names_the_command():
    says(call("--help").out, "rehearse")
    says(call("rehearse", "--help").out, "--rank", "--steps", "--html", "--svg", "--trace", "--plan", "--zero-stage")


def test_recorded_steps_are_those_of_the_trainer():
    assert recorded().num_steps == 3
