"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

import vlmplan
import vlmplan_trainer

ROOTS = [Path(package.__file__).parent for package in (vlmplan, vlmplan_trainer)]


def modules_with_examples() -> list[str]:
    """Names of the modules that have a line that begins with Python's prompt."""
    found = []
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            if any(line.lstrip().startswith(">>> ") for line in path.read_text().splitlines()):
                parts = path.relative_to(root.parent).with_suffix("").parts
                found.append(".".join(parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_are_true(name: str):
    if name.startswith(vlmplan_trainer.__name__):
        pytest.importorskip("transformers")
        pytest.importorskip("torch")
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_there_are_examples():
    assert len(modules_with_examples()) > 10
