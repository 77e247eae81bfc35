"""Published threads asked of the command line: what is kept of the answers is what is answered now."""

import json

import pytest

from diagnosis.asked import ENDS, KEPT, answered, questions

pytestmark = pytest.mark.usefixtures("isolated")
ALL = {thread["name"]: thread for thread in questions()}
QUICK = ("utilization",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.sweep) for name in ALL])
def test_threads_are_answered_as_kept(name: str):
    assert answered(ALL[name]) == json.loads(KEPT.read_text(encoding="utf-8"))[name]


def test_every_thread_says_what_it_assumes_what_it_found_and_what_is_not_answered():
    assert set(json.loads(KEPT.read_text(encoding="utf-8"))) == set(ALL)
    for thread in ALL.values():
        assert all(thread[key] for key in ("setup", *ENDS))
