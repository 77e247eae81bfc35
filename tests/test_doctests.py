"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import vlmplan

MODULES = [module.name for module in pkgutil.walk_packages(vlmplan.__path__, "vlmplan.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) > 5
