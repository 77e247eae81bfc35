"""Pages that promise something name the test of each promise, and each of these tests exists."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


@pytest.mark.parametrize("page", ["checkpoints.md", "threat-model.md"])
def test_the_test_of_every_promise_exists(page: str):
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text()))
    written = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > 10
    assert named <= written
