"""``vlmplan advise``: every row is what recommend says with those options, in order, and the best of them is named."""

import json
import shlex
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli_calls import DOES_NOT_FIT, DONE, TINY, Call, call, refusal, says
from documented_json import documented_keys
from vlmplan.timing.step import HOST_LAUNCHES

MODEL, VISION_MODEL = "smollm2-135m", "qwen2-vl-2b"
CHANGE = {
    *("change", "options", "keeps_results", "fits", "within_limits", "gpu", "num_gpus", "num_nodes", "offer", "recipe"),
    *("hours", "usd", "hours_change", "usd_change", "bound_by", "reason"),
}
PARTS = {
    *("matrix products", "attention", "memory bandwidth", HOST_LAUNCHES, "communication between GPUs"),
    *("offload to the host", "opening images on the host"),
}
ADVISED = [
    (MODEL,),
    (VISION_MODEL, "--gpu", "rtx-4090:1", "--method", "lora"),
    pytest.param(("llama-3.1-8b", "--method", "full", "--objective", "time"), marks=pytest.mark.sweep),
    ("llama-3.1-8b", "--method", "full", "--gpu", "t4:1"),
    (MODEL, "--gpu", "t4:1", "--max-hours", "0.05"),
    (MODEL, "--max-usd", "1"),
]


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recommend", "advise"):
        monkeypatch.setattr(f"vlmplan.commands.{module}.today", lambda: date(2026, 11, 21))


@cache
def advised(model: str, *words: str) -> Call:
    found = call("advise", "--model", model, *words, "--json")
    assert found.err == ""
    return found


def fitting(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["changes"] if one["fits"]]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("words", ADVISED)
def test_json_keeps_the_contract(words: Sequence[str]):
    document = advised(*words).document
    assert document.keys() - {"schema"} == documented_keys("vlmplan.advice/1")
    assert document["schema"] == "vlmplan.advice/1"
    assert [set(one) for one in document["changes"]] == [CHANGE] * len(document["changes"])
    for one in document["changes"]:
        assert one["options"]
        assert bool(one["reason"]) is not one["fits"]
        if one["fits"]:
            over = not one["within_limits"]
            assert one["bound_by"] in ({"--max-usd", "--max-hours"} if over else {*PARTS, None})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", ADVISED)
def test_changes_come_best_first_those_over_the_limits_after_those_that_do_not_fit_last(words: Sequence[str]):
    document = advised(*words).document
    first = "usd" if document["objective"] == "cost" else "hours"
    unknown = float("inf")
    keys = [
        (not one["fits"], not one["within_limits"], unknown if one[first] is None else one[first])
        for one in document["changes"]
    ]
    assert keys == sorted(keys)
    assert len(keys) >= 5


@pytest.mark.sweep
@pytest.mark.parametrize("words", [ADVISED[1], pytest.param(ADVISED[0], marks=pytest.mark.sweep)])
def test_every_row_is_what_recommend_finds_with_its_options(words: Sequence[str]):
    document = advised(*words).document
    base, model = document["base"], words[0]
    pinned = {"--gpu": f"{base['gpu']}:{base['num_gpus']}", "--method": base["recipe"]["method"]}
    for one in fitting(document):
        options = shlex.split(one["options"])
        if options[0].startswith("--no-") or options[0] in ("--activation-checkpointing",):
            rest = [*(word for pair in pinned.items() for word in pair), *options]
        else:
            changed = pinned | dict(zip(options[::2], options[1::2], strict=True))
            rest = [word for pair in changed.items() for word in pair]
        again = call("recommend", "--model", model, *rest, "--json").document["plans"][0]
        assert (one["usd"], one["hours"]) == (again["usd"], again["hours"]), one["change"]


@pytest.mark.parametrize("words", ADVISED)
def test_percentages_are_of_the_base(words: Sequence[str]):
    document = advised(*words).document
    base = document["base"]
    for one in fitting(document):
        for name in ("usd", "hours"):
            change = one[f"{name}_change"]
            if base is None or one[name] is None:
                assert change is None
            else:
                assert (1 + change) * base[name] == pytest.approx(one[name])


@pytest.mark.sweep
def test_base_is_the_plan_of_recommend():
    base = advised(MODEL).document["base"]
    assert base == call("recommend", "--model", MODEL, "--json").document["plans"][0]


def test_the_best_change_saves_most_and_the_sentence_has_its_options():
    document = advised(VISION_MODEL, "--gpu", "rtx-4090:1", "--method", "lora").document
    best = document["changes"][0]
    assert best["usd"] == min(one["usd"] for one in fitting(document) if one["usd"] is not None)
    assert document["best"] == best["change"]
    assert document["advice"].startswith(f"{best['change']} ({best['options']}): $")
    assert " less (-" in document["advice"]


def test_of_what_trains_the_same_the_best_is_named_as_well():
    document = advised(VISION_MODEL, "--gpu", "rtx-4090:1", "--method", "lora").document
    best = document["changes"][0]
    base = document["base"]["usd"]
    same = [
        one
        for one in fitting(document)
        if one["keeps_results"] and one["usd"] is not None and one["usd"] < base * 0.995
    ]
    assert ("of what trains the same" in document["advice"]) == bool(same and not best["keeps_results"])
    if same and not best["keeps_results"]:
        assert f"of what trains the same, {same[0]['change']} ({same[0]['options']})" in document["advice"]


def test_only_what_changes_the_model_or_the_samples_trains_otherwise():
    document = advised(VISION_MODEL, "--gpu", "rtx-4090:1", "--method", "lora").document
    for one in document["changes"]:
        other = any(word in one["options"] for word in ("--method", "--seq-len", "--image-size"))
        assert one["keeps_results"] is not other
    assert any("--image-size 224x224" in one["options"] for one in document["changes"])


@pytest.mark.sweep
def test_a_card_without_a_price_is_judged_by_time():
    document = advised(MODEL, "--gpu", "rtx-3060-12gb", "--method", "full").document
    assert (document["base"]["usd"], document["objective"]) == (None, "time")
    hours = [one["hours"] for one in fitting(document)]
    assert hours == sorted(hours)
    assert hours[0] < document["base"]["hours"]
    assert document["best"] == document["changes"][0]["change"]
    others = [one["gpu"] for one in document["changes"] if " x " in one["change"]]
    machines = call("recommend", "--model", MODEL, "--method", "full", "--objective", "time", "--json").document
    fastest = [point for point in machines["pareto"] if point["num_gpus"] == 1]
    assert min(fastest, key=lambda point: point["hours"])["gpu"] in others


def test_a_deadline_is_met_for_the_least_money():
    document = advised(MODEL, "--gpu", "t4:1", "--max-hours", "0.05").document
    assert document["objective"] == "cost"
    assert not document["base_within_limits"]
    assert document["base"]["hours"] > 0.05
    in_time = [one for one in fitting(document) if one["hours"] <= 0.05 and one["usd"] is not None]
    assert in_time
    assert document["best"] == min(in_time, key=lambda one: one["usd"])["change"]
    assert document["advice"].endswith("within 3 min") or "within 3 min;" in document["advice"]


def test_a_budget_alone_asks_for_speed():
    document = advised(MODEL, "--max-usd", "1").document
    assert document["objective"] == "time"
    assert document["base"]["usd"] <= 1
    affordable = [one for one in fitting(document) if one["usd"] is not None and one["usd"] <= 1]
    fastest = min(affordable, key=lambda one: one["hours"])
    if fastest["hours"] < document["base"]["hours"] * 0.995:
        assert document["best"] == fastest["change"]
    else:
        assert document["best"] is None
        assert document["advice"] == "no single change makes it faster within $1.00"


def test_a_card_that_brings_it_within_the_budget_is_named_although_many_are_faster():
    words = ("--model", "llama-3.2-1b", "--method", "lora", "--objective", "time", "--max-usd", "0.15")
    document = call("advise", *words, "--gpu", "h100-sxm:2", "--json").document
    assert document["base"]["usd"] > 0.15
    affordable = call("recommend", *words, "--gpu", "v100-sxm2-16gb:2", "--json").document["plans"][0]
    named = {one["gpu"]: one for one in fitting(document) if one["within_limits"]}
    assert affordable["usd"] <= 0.15
    assert document["best"] == "2 x v100-sxm2-16gb"
    assert named["v100-sxm2-16gb"]["usd"] == affordable["usd"]


@pytest.mark.sweep
def test_a_card_that_brings_it_within_the_deadline_is_named_where_nothing_fits_although_many_are_cheaper():
    words = ("--model", "llama-3.2-1b", "--method", "full", "--zero-stage", "0", "--micro-batch", "1")
    document = call("advise", *words, "--gpu", "t4:1", "--max-hours", "0.02", "--json").document
    assert document["base"] is None
    quick = call("recommend", *words, "--max-hours", "0.02", "--json").document["plans"]
    named = {one["gpu"] for one in fitting(document) if one["within_limits"]}
    assert quick
    assert quick[0]["gpu"] in named


def test_where_nothing_fits_the_cheapest_way_out_comes_first_and_the_least_on_the_same_machine_is_best():
    found = advised("llama-3.1-8b", "--method", "full", "--gpu", "t4:1")
    document = found.document
    assert (found.code, document["base"]) == (DONE, None)
    assert document["reason"]
    ways = fitting(document)
    assert {one["recipe"]["method"] for one in ways} == {"full", "lora", "qlora"}
    assert document["best"] == "LoRA"
    prices = [one["usd"] for one in ways if one["usd"] is not None]
    assert prices == sorted(prices)


@pytest.mark.sweep
def test_where_no_single_change_helps_several_do_together():
    words = ("--gpu", "rtx-3080-10gb:1", "--method", "full", "--provider", "genesis-cloud", "--seq-len", "16384")
    found = call("advise", "--model", "llama-3.1-8b", *words, "--micro-batch", "4", "--json")
    document = found.document
    (way,) = fitting(document)
    assert " + " in way["change"]
    assert "without --micro-batch" in way["options"]
    assert document["best"] == way["change"]
    assert found.code == DONE


HOPELESS = ("qwen2-vl-72b", "--method", "full", "--provider", "genesis-cloud")


@pytest.mark.sweep
def test_where_nothing_helps_that_is_said_and_the_code_is_three():
    found = advised(*HOPELESS)
    assert found.code == DOES_NOT_FIT
    assert (found.document["best"], fitting(found.document)) == (None, [])
    assert found.document["advice"] == "no change that was tried makes it fit"


@pytest.mark.sweep
def test_where_nothing_helps_that_is_printed():
    shown = call("advise", "--model", *HOPELESS)
    assert shown.code == DOES_NOT_FIT
    says(shown.out, "what makes it fit", "Nothing fits: ", "not possible:", "no change that was tried makes it fit")


@pytest.mark.sweep
def test_what_is_assumed_of_a_network_is_said_although_the_base_has_none():
    document = advised(MODEL).document
    assert any("--num-nodes 2" in one["options"] for one in fitting(document))
    assert any("network" in note for note in document["notes"])
    assert not any("network" in note for note in call("recommend", "--model", MODEL, "--json").document["notes"])


def test_table_has_the_base_first_and_every_change():
    document = advised(MODEL).document
    shown = call("advise", "--model", MODEL)
    assert (shown.code, shown.err) == (DONE, "")
    lines = shown.out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("change"))
    assert lines[start + 1].startswith("now ")
    names = [one["change"] for one in document["changes"]]
    assert all(line.startswith(name) for line, name in zip(lines[start + 2 :], names, strict=False))
    says(shown.out, document["advice"], "Now: about $")


def test_mistakes_are_one_sentence():
    says(refusal("advise", "--model", MODEL, "--region", "mars"), "unknown region 'mars'")
    says(refusal("advise", "--model", MODEL, "--max-usd", "0"), "--max-usd is 0", "more than 0")
    says(refusal("advise", "--model", MODEL, "--objective", "vram", code=2), "vram")


@pytest.mark.sweep
def test_no_change_of_a_machine_without_a_known_speed_is_said_to_buy_nothing():
    found = advised("smollm2-135m", "--gpu", "cpu:2", "--method", "lora", "--seq-len", "256").document
    assert (found["base"]["hours"], found["best"]) == (None, None)
    assert found["advice"].startswith("no speed is known of it as it is")


@pytest.mark.sweep
def test_what_a_search_makes_room_for_advice_does_too():
    """The base is the plan of ``recommend`` where layers' inputs go to the host since nothing fits otherwise."""
    pinned = "--gpu rtx-4060:1 --seq-len 2048 --method lora --grad-accum 2 --loss liger --lora-dropout 0.05".split()
    found = advised("qwen2.5-vl-3b", *pinned)
    plan = call("recommend", "--model", "qwen2.5-vl-3b", *pinned, "--json").document["plans"][0]
    assert found.code == DONE
    assert found.document["base"]["estimate"] == plan["estimate"]
    assert plan["recipe"]["offload_activations"]
    assert any("--offload-activations" in note for note in found.document["notes"])


def test_a_number_of_gpus_that_nobody_else_has_is_advised_without_other_gpus(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    document = advised(str(tmp_path), "--gpu", "rtx-4090:3", "--seq-len", "64").document
    assert document["base"]["num_gpus"] == 3
    assert not [one["change"] for one in document["changes"] if one["change"].startswith("3 x ")]


@pytest.mark.sweep
def test_what_is_said_of_a_first_plan_is_said_of_the_one_that_is_shown():
    """Another node has a first plan of its own, which takes less of each host."""
    words = ("--gpu", "rtx-4060:1", "--method", "full", "--seq-len", "512")
    found = advised("llama-3.2-3b", *words).document
    (said,) = [one for one in found["caveats"] if "the first plan needs" in one]
    assert said in call("recommend", "--model", "llama-3.2-3b", *words, "--json").document["notes"]
