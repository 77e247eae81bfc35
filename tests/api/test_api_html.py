"""What a notebook shows: HTML that is whole, brings everything with it, and takes no text for markup."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import vlmplan

VOID = {"br", "hr", "img", "input", "link", "meta"}
ALLOWED = {"div", "style", "h4", "p", "span", "table", "tr", "th", "td", "pre"}
FIXED: dict[str, Any] = {"method": "lora", "micro_batch": 1, "zero_stage": "none", "activation_checkpointing": False}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e"


class Whole(HTMLParser):
    """Fails where elements are not closed in the order in which they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in VOID
        self.open.append(tag)
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def whole(text: str) -> str:
    """The text of HTML that has only what is known to do nothing."""
    page = Whole(text)
    assert page.names <= ALLOWED
    assert page.attributes <= {"class", "style", "title"}
    assert not re.search(r"url\(|@import|://", text)
    return page.text


@pytest.mark.sweep
def test_an_estimate_has_its_verdict_its_phases_and_what_to_change():
    found = vlmplan.estimate("gpt2", "rtx-4060", micro_batch=32, loss="full", scaling=True)
    text = whole(found._repr_html_())
    assert "does not fit" in text
    assert all(phase.name in text for phase in found.phases)
    assert found.to_fit is not None
    assert found.to_fit.command in text
    assert "weak scaling" in text


def test_every_sentence_of_an_estimate_is_shown():
    found = vlmplan.estimate("qwen2-vl-2b", "rtx-4090:2", num_nodes=2)
    text = whole(found._repr_html_())
    sentences = [line.strip() for line in str(found).splitlines() if re.match(r"\w[\w ,]*: ", line)]
    assert len(sentences) > 8
    assert [line for line in sentences if line.partition(": ")[2] not in text] == []


def test_a_recommendation_has_its_plans_or_why_there_is_none():
    text = whole(vlmplan.recommend("gpt2", "t4", **FIXED)._repr_html_())
    assert "Cheapest: " in text
    assert "1 x t4" in text
    rejected = vlmplan.recommend("gpt2", "t4", **{**FIXED, "micro_batch": 4096})
    assert rejected.rejected[0].reason in whole(rejected._repr_html_())


def test_advice_has_its_changes():
    found = vlmplan.advise("gpt2", "t4", **FIXED)
    text = whole(found._repr_html_())
    assert all(change.name in text for change in found.changes)
    assert found.advice in text


@pytest.mark.parametrize("command", [vlmplan.recommend, vlmplan.advise])
def test_every_sentence_of_a_search_is_shown(command: Any):
    found = command("gpt2", "rtx-4090", num_nodes=2, **FIXED)
    text = whole(found._repr_html_())
    sentences = [line.strip() for line in str(found).splitlines() if re.match(r" *\w[\w ]*: ", line)]
    shown = [line.partition(": ")[2] for line in sentences if not line.startswith(("faster", "gpt2"))]
    assert len(shown) > 3
    assert [line for line in shown if line not in text] == []


def test_a_check_has_what_was_read():
    Path("sft.yaml").write_text("model_name_or_path: gpt2\nlora_r: 8\nuse_peft: true\nmax_length: 77\n")
    text = whole(vlmplan.check("sft.yaml", "rtx-4090")._repr_html_())
    assert "sft.yaml" in text
    assert "77" in text
    assert "does not fit" not in text


@pytest.mark.parametrize("name", [HOSTILE, "a" * 500])
def test_names_are_text(name):
    config = {"model_type": "gpt2", "_name_or_path": name}
    for found in (vlmplan.estimate(config, "rtx-4090"), vlmplan.recommend(config, "t4", **FIXED)):
        shown = found._repr_html_()
        whole(shown)
        assert not {"\x1b", "\u202e"} & set(shown + str(found))


def test_it_is_drawn_in_the_colours_of_the_page_around_it():
    style = re.search(r"<style>(.*?)</style>", vlmplan.estimate("gpt2", "t4")._repr_html_(), re.DOTALL)
    assert style is not None
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", style[1])
    assert all(selector.strip().startswith(".vlmplan") for rule, _ in rules for selector in rule.split(","))
    assert [rule for rule, body in rules if re.search(r"background:(?!none)", body)] == []
    coloured = [rule for rule, body in rules if re.search(r"(?<!-)color:(?!inherit)", body)]
    assert coloured == [".vlmplan .badge"]
