"""Reports as the command line writes them: each brings everything with it and nothing of the machine, says without
scripts what it says with them, and takes no name for markup."""

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from cli_calls import DOES_NOT_FIT, DONE, call, isolate, refusal, says
from picture_checks import Elements, is_a_report, report_data
from rehearsal.recorded_rehearsal import CONFIG, comparison
from vlmplan.reports import rehearsal_report
from vlmplan.reports.launch import measured_section
from vlmplan.units import GIB

SETUP = ("--model", "smollm2-135m", "--gpu", "rtx-4090:2", "--method", "lora")
SEARCH = ("--model", "smollm2-135m", "--gpu", "rtx-4090", "--gpu", "a100-sxm4-80gb", "--seq-len", "256")
SFT = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nmax_length: 256\n"
MOST_BYTES = 250_000
"""Of a report without a timeline: its charts' code is 30 KB of them."""


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)
    Path("sft.yaml").write_text(SFT)


def report_of(*words: str, code: int = DONE) -> str:
    shown = call(*words, "--html", "report.html")
    assert (shown.code, shown.err) == (code, "")
    return Path("report.html").read_text(encoding="utf-8")


def words_in(page: str) -> str:
    """What a reader without scripts sees."""
    return " ".join(unescape(" ".join(Elements(page).texts)).split())


@pytest.mark.parametrize(
    "words",
    [
        ("estimate", *SETUP),
        ("estimate", *SETUP, "--compare", "zero"),
        ("recommend", *SEARCH),
        ("advise", *SEARCH[:4], "--seq-len", "256"),
        ("check", "sft.yaml", "--gpu", "rtx-4090"),
        ("check", "sft.yaml"),
    ],
    ids=lambda words: " ".join(words[:1] + words[-2:]),
)
def test_a_report_brings_everything_with_it(words: tuple[str, ...]):
    page = report_of(*words)
    is_a_report(page)
    assert len(page) < MOST_BYTES
    assert str(Path.cwd()) not in page


def test_an_estimate_has_its_numbers_as_charts_tables_and_words():
    page = report_of("estimate", *SETUP)
    document = json.loads(call("estimate", *SETUP, "--json").out)
    drawn = report_data(page)["estimate"]
    assert drawn["document"]["peak_device_bytes"] == document["peak_device_bytes"]
    assert {phase["name"]: phase["peak_bytes"] for phase in drawn["phases"]} == {
        phase["name"]: phase["peak_bytes"] for phase in document["phases"]
    }
    seen = words_in(page)
    for text in ("device, as nvidia-smi shows it", "rtx-4090:2", "usable", *drawn["lines"]):
        assert " ".join(text.split()) in seen
    assert page.count("<svg") == 1


def test_a_checked_file_is_one_of_a_model_on_a_card():
    printed, seen = (
        call("check", "sft.yaml", "--gpu", "rtx-4090").out,
        words_in(report_of("check", "sft.yaml", "--gpu", "rtx-4090")),
    )
    heading = next(line for line in printed.splitlines() if "parameters" in line)
    assert "GeForce RTX 4090" in heading
    assert f"read as TRL 1.16.0 reads it; {heading}" in seen


@pytest.mark.sweep
def test_what_does_not_fit_says_what_would():
    words = ("estimate", "--model", "llama-2-7b", "--gpu", "t4", "--method", "full")
    seen = words_in(report_of(*words, code=DOES_NOT_FIT))
    assert "does not fit" in seen
    assert "To fit on " in seen


def test_a_search_has_its_points_its_plans_and_why():
    page = report_of("recommend", *SEARCH)
    data = report_data(page)
    found = json.loads(call("recommend", *SEARCH, "--json").out)
    assert [plan["estimate"]["document"]["peak_device_bytes"] for plan in data["plans"]] == [
        plan["estimate"]["peak_device_bytes"] for plan in found["plans"]
    ][: len(data["plans"])]
    assert data["offers"]["document"]["plans"][0]["usd"] == found["plans"][0]["usd"]
    assert {point["is_front"] for point in data["offers"]["points"]} == {True, False}
    assert found["explanation"] in words_in(page)
    assert 'id="plans-table"' in page


@pytest.mark.parametrize("command", ["estimate", "recommend", pytest.param("advise", marks=pytest.mark.sweep)])
def test_every_note_and_what_money_goes_into_stand_in_the_report_too(command: str):
    words = (
        command,
        "--model",
        "gpt2",
        "--gpu",
        "rtx-4090",
        "--num-nodes",
        "2",
        "--method",
        "lora",
        "--micro-batch",
        "1",
    )
    printed, seen = call(*words).out, words_in(report_of(*words))
    said = [*call(*words, "--json").document["notes"], *re.findall(r"^ *(cost: .*|assumed: .*)$", printed, re.M)]
    assert len(said) > 1
    assert [one for one in said if " ".join(one.split()) not in seen] == []


@pytest.mark.sweep
def test_where_nothing_fits_a_search_says_so():
    page = report_of("recommend", "--model", "llama-2-7b", "--gpu", "t4", "--method", "full", code=DOES_NOT_FIT)
    assert "nothing fits" in words_in(page)


def test_a_run_that_is_not_started_is_reported():
    words = ("launch", *SETUP[:2], "--gpu", "cpu:2", "--dummy-data", "8", "--seq-len", "64", "--output-dir", "out")
    shown = call(*words, "--dry-run", "--random-weights", "--html", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    is_a_report(page)
    assert str(Path.cwd()) not in page
    assert ("It cannot run" in page) == (shown.code != DONE)
    assert "--output_dir" in words_in(page) or "vlmplan_trainer" in words_in(page)


def test_what_a_run_measured_stands_beside_what_was_planned(tmp_path: Path):
    figure = {"name": "forward, peak", "unit": "bytes", "planned": 3 * GIB, "measured": 2 * GIB, "error": 0.5}
    content = {"schema": "vlmplan.report/1", "planned_and_measured": [figure]}
    (tmp_path / "report.json").write_text(json.dumps(content), encoding="utf-8")
    section = words_in(measured_section(tmp_path))
    for text in ("forward, peak", "3.00 GiB", "2.00 GiB", "+50.0%"):
        assert text in section
    assert not measured_section(tmp_path / "nowhere")


def test_a_report_overwrites_nothing_unless_it_is_forced():
    Path("report.html").write_text("mine")
    says(refusal("estimate", *SETUP, "--html", "report.html"), "report.html exists already; --force")
    assert call("estimate", *SETUP, "--html", "report.html", "--force").code == DONE


@pytest.mark.parametrize(
    ("command", "option"), [("estimate", "--html"), ("recommend", "--svg"), ("recommend", "--out")]
)
def test_where_nothing_can_be_written_is_told_before_a_model_is_looked_for(command: str, option: str):
    Path("file").touch()
    sentence = refusal(command, "--model", "no-such-model", "--gpu", "t4", option, "file/report")
    says(sentence, "vlmplan: file/report", "cannot be written: Not a directory")


HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def test_a_hostile_model_s_name_is_text(tmp_path: Path):
    folder = tmp_path / "kept-to-myself" / "<b onclick=alert(1)>&\u202e'\""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"_name_or_path": HOSTILE}))
    page = report_of("estimate", "--model", str(folder), "--gpu", "t4")
    is_a_report(page)
    assert "\u202e" not in page
    assert "kept-to-myself" not in page
    assert "&lt;b onclick=" in page


def test_hostile_tensors_and_makers_are_text():
    found = comparison()
    origins = dict(found.rehearsed.origins)
    for storage, one in list(origins.items())[:50]:
        origins[storage] = replace(one, maker=HOSTILE, dtype="</script>", operation="\u2028<!--")
    rehearsed = replace(found.rehearsed, origins=origins)
    page = rehearsal_report(replace(found, rehearsed=rehearsed), (), hints=(), command_text="vlmplan rehearse")
    is_a_report(page)
    assert HOSTILE in report_data(page)["timeline"]["texts"]
    assert "<img" not in page
