"""Laws: properties that every run of the tests tries with a few examples and the sweep with many."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NUM_EXAMPLES = 60
"""Of the sweep where a law says nothing else."""


def law(
    *strategies: st.SearchStrategy[Any], quick: int, thorough: int = NUM_EXAMPLES, **named: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """``given`` with ``quick`` examples in every run and ``thorough`` ones in the sweep; the test has no fixtures."""

    def decorated(claim: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("num_examples", [quick, pytest.param(thorough, marks=pytest.mark.sweep)])
        def test(num_examples: int) -> None:
            settings(max_examples=num_examples)(given(*strategies, **named)(claim))()

        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(test, name, getattr(claim, name))
        return test

    return decorated
