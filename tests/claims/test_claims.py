"""Published claims, answered by the tool: the stored answers, and the page that is made of them."""

from pathlib import Path
from typing import Any

import pytest
from claim_table import (
    HERE,
    QUANTITIES,
    README,
    Answer,
    asked,
    found_answer,
    guides,
    holds,
    merged_options,
    readme_text,
)
from regenerate_claims import regenerate

GUIDES = guides()
CLAIMS = [
    pytest.param(guide, claim, id=f"{guide['guide']}-{claim['id']}") for guide in GUIDES for claim in guide["claims"]
]


@pytest.fixture(autouse=True)
def beside_the_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.mark.one_in(61)
@pytest.mark.parametrize(("guide", "claim"), CLAIMS)
def test_the_tool_answers_as_stored(guide: dict[str, Any], claim: dict[str, Any]):
    for options, stored in asked(guide, claim):
        found = found_answer(options, stored)
        assert texts(found) == texts(stored), options
        assert numbers(found) == pytest.approx(numbers(stored), rel=0.01), options


def texts(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.items() if isinstance(value, str)}


def numbers(answer: Answer) -> dict[str, float]:
    return {name: value for name, value in answer.items() if not isinstance(value, str)}


def test_the_page_is_what_the_claims_make():
    assert README.read_text(encoding="utf-8") == readme_text(GUIDES)


def test_every_row_of_the_gpu_tables_is_answered():
    rows = {guide["guide"]: sum(claim["id"].startswith("gpu-") for claim in guide["claims"]) for guide in GUIDES}
    assert rows == {"000": 13, "001": 4 + 5 + 4 + 3 + 4, "002": 0, "003": 0, "004": 0}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide["guide"])
def test_a_claim_has_a_name_of_its_own(guide: dict[str, Any]):
    names = [claim["id"] for claim in guide["claims"]]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(("guide", "claim"), CLAIMS)
def test_a_claimed_figure_is_among_the_answers(guide: dict[str, Any], claim: dict[str, Any]):
    if isinstance(claim["claimed"], str):
        assert claim["claimed"] in ("fits", "does_not_fit", "open")
    elif "refused" not in claim["answer"]:
        assert set(claim["claimed"]) <= set(claim["answer"]) & set(QUANTITIES)


def test_every_deepspeed_file_is_asked_about():
    commands = [options for guide in GUIDES for claim in guide["claims"] for options, _ in asked(guide, claim)]
    named = {Path(word).name for command in commands for word in command.split() if word.startswith("ds_configs/")}
    assert named == {path.name for path in (HERE / "ds_configs").iterdir()}


@pytest.mark.parametrize(
    ("claimed", "answer", "expected"),
    [
        ("fits", {"verdict": "fits"}, True),
        ("fits", {"verdict": "tight"}, True),
        ("fits", {"verdict": "does_not_fit"}, False),
        ("fits", {"refused": "no"}, False),
        ("does_not_fit", {"verdict": "tight"}, False),
        ("does_not_fit", {"verdict": "does_not_fit"}, True),
        ("does_not_fit", {"refused": "no"}, False),
        ({"peak_device_gib": [10, 20]}, {"peak_device_gib": 10 * 0.8 + 0.01}, True),
        ({"peak_device_gib": [10, 20]}, {"peak_device_gib": 10 * 0.8 - 0.01}, False),
        ({"peak_device_gib": [10, 20]}, {"peak_device_gib": 20 * 1.2 - 0.01}, True),
        ({"peak_device_gib": [10, 20]}, {"peak_device_gib": 20 * 1.2 + 0.01}, False),
        ({"peak_device_gib": [10, 20]}, {"refused": "no"}, False),
    ],
)
def test_a_tight_setup_runs_and_a_figure_may_be_a_fifth_off(claimed: Any, answer: dict[str, Any], expected: bool):
    assert holds(claimed, answer) is expected


def test_an_option_that_comes_again_takes_the_place_of_the_earlier_one():
    merged = merged_options("--model a --gpu x --freeze-vision", "--gpu y:2 --num-nodes 3", "--num-nodes 5")
    assert merged == "--model a --gpu y:2 --freeze-vision --num-nodes 5"


def test_regenerating_replaces_a_stale_answer_and_names_the_claim(tmp_path: Path):
    text = """\
guide: "9"
title: one claim
about: none
common: --model smollm2-135m
claims:
- id: small
  says: it does not fit  # a comment that stays
  claimed: does_not_fit
  options: --gpu a16
  answer: {"verdict": "does_not_fit", "host_gib": 0}
  why: nothing
"""
    file = tmp_path / "guide_9.yaml"
    file.write_text(text, encoding="utf-8")
    changes = regenerate(file)
    assert [change.split(" (")[0] for change in changes] == ["guide_9 small: does_not_fit is now fits"]
    stale, fresh = text.splitlines(), file.read_text(encoding="utf-8").splitlines()
    assert [number for number, (old, new) in enumerate(zip(stale, fresh, strict=True)) if old != new] == [9]
    assert regenerate(file) == []
