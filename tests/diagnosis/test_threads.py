"""Published threads asked again: what is kept of the answers is what is answered now."""

import json
from typing import Any

import pytest

from diagnosis.threads import KEPT, kept, quoted, replayed, threads

pytestmark = pytest.mark.usefixtures("isolated")
ALL = {thread["name"]: thread for thread in threads()}
QUICK = ("other-processes",)


def assert_answered_as_kept(name: str) -> None:
    assert kept(replayed(ALL[name])) == json.loads(KEPT.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones_are_answered_as_kept(name: str):
    assert_answered_as_kept(name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(set(ALL) - set(QUICK)))
def test_others_are_answered_as_kept(name: str):
    assert_answered_as_kept(name)


def test_every_thread_has_an_answer_with_the_sentences_that_its_row_quotes():
    answers: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    assert set(answers) == set(ALL)
    for name, thread in ALL.items():
        assert len(quoted(thread, answers[name])) == len(thread["says"])
        assert thread["is_verbatim"] is ("log_is" not in thread)
