"""``vlmplan models --gpu``: what is said to fit does by ``estimate``'s rules, and nothing that ``recommend`` has is
missing."""

import contextlib
import gc
import io
from datetime import date
from functools import partial

import pytest

from cli_calls import DOES_NOT_FIT, DONE, USAGE, call, refusal, says
from vlmplan.catalog import load_catalog
from vlmplan.cli.command_line import run
from vlmplan.estimation.traced_model import TracedModel
from vlmplan.models import find_model
from vlmplan.proposals import trainable as module
from vlmplan.proposals.trainable import trainable, with_known_host
from vlmplan.recipe.choices import Method
from vlmplan.request import parse, requested_cluster
from vlmplan.search import recommendation
from vlmplan.search.shared_traces import RecentTraces

GPU = ("--gpu", "rtx-4060")


def test_ways_are_the_plans_of_recommend():
    found = call("models", "smollm2-135m", *GPU, "--host-ram", "64", "--json")
    (model,) = found.document["models"]
    assert (found.code, found.document["schema"]) == (DONE, "vlmplan.trainable/1")
    assert set(model["ways"]) == {"full", "lora", "qlora"}
    assert (model["best"], model["reason"]) == ("full", None)
    words = ("--gpu", "rtx-4060:1", "--host-ram", "64", "--objective", "time", "--json")
    plans = call("recommend", "--model", "smollm2-135m", *words).document["plans"]
    for plan in plans:
        way = model["ways"][plan["recipe"]["method"]]
        assert way["device_bytes"] == plan["estimate"]["peak_device_bytes"]
        assert way["hours"] == pytest.approx(plan["hours"])


def test_what_does_not_fit_has_a_reason_and_only_asked_methods_are_looked_at():
    found = call("models", "llama-3.1-8b", *GPU, "--method", "full", "--json")
    assert found.code == DOES_NOT_FIT
    (model,) = found.document["models"]
    assert (model["best"], model["ways"]) == (None, {})
    assert model["reason"]
    (model,) = call("models", "qwen2.5-3b", *GPU, "--method", "qlora", "--json").document["models"]
    assert set(model["ways"]) == {"qlora"}


@pytest.mark.sweep
def test_table_keeps_to_80_columns_and_says_what_is_assumed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = call("models", "smollm2", *GPU)
    assert shown.code == DONE
    assert max(map(len, shown.out.splitlines())) <= 80
    assert "--host-ram" in shown.out
    assert "smollm2-135m" in shown.out


def test_several_processes_say_the_same():
    cluster = with_known_host(requested_cluster(parse({"gpu": "rtx-4060"}).hardware, load_catalog())[0])
    models = [find_model("smollm2-135m"), find_model("gpt2")]
    asked = {"methods": [Method.LORA], "seq_len": 512, "today": date(2026, 11, 22)}
    alone = trainable(models, cluster, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MODELS_PER_PROCESS", 1)
        patch.setattr(module, "MODELS_AT_ONCE", 1)
        told: list[str] = []
        assert trainable(models, cluster, **asked, say=told.append) == alone
        assert told == [row.model_id for row in alone]


def test_a_process_keeps_nothing_of_the_models_that_it_has_searched(monkeypatch: pytest.MonkeyPatch):
    def left() -> int:
        return sum(isinstance(one, TracedModel) for one in gc.get_objects())

    monkeypatch.setattr(recommendation, "RECENT", RecentTraces(0))
    cluster = with_known_host(requested_cluster(parse({"gpu": "rtx-4060"}).hardware, load_catalog())[0])
    asked = {"cluster": cluster, "methods": [Method.LORA], "seq_len": 256, "today": date(2026, 11, 22)}
    gc.collect()
    before = left()
    gc.disable()  # as every command does
    try:
        module._rows([find_model("smollm2-135m")], one=partial(module.trainable_model, **asked))
    finally:
        gc.enable()
    assert left() == before


def test_a_terminal_sees_which_models_are_done_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch):
    words = ("models", "smollm2-135m", *GPU, "--method", "lora")
    assert call(*words).err == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()):
        assert run(words) == DONE
    assert "searching: smollm2-135m" in shown.getvalue()


def test_options_of_a_card_need_one():
    assert call("models", "--method", "lora").code == USAGE
    assert call("models", "smollm2", "--seq-len", "64").code == USAGE


@pytest.mark.parametrize(
    ("length", "allowed"), [("0", "1 or more is needed"), ("-5", "1 or more is needed"), (str(10**10), "is allowed")]
)
def test_a_length_that_no_sample_has_is_refused_rather_than_that_nothing_can_be_trained(length: str, allowed: str):
    says(refusal("models", "smollm2-135m", *GPU, "--seq-len", length), f"--seq-len is {length}", allowed)


@pytest.mark.parametrize("names", [("qwen2-vl-2b",), ("qwen2-vl",)])
def test_what_no_memory_would_help_is_wrong_input_as_it_is_to_recommend(names: tuple[str, ...]):
    short = ("--gpu", "t4", "--seq-len", "64")
    sentence = refusal("models", *names, *short)
    says(sentence, "--seq-len is 64, but 1 image(s) of 448x448 take 256 tokens")
    if len(names) == 1 and names[0] == "qwen2-vl-2b":
        assert sentence == refusal("recommend", "--model", *names, *short)


def test_a_method_that_is_named_twice_is_looked_at_once():
    words = ("models", "llama-3.1-8b", *GPU, "--method", "full", "--json")
    assert call(*words, "--method", "full").document == call(*words).document
