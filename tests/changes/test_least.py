"""Least combinations, by a judge whose memory and time are plain sums: what is given fits, nothing of it can be left
out, and results are changed only where nothing else is enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vlmplan.changes.kinds import Change, Space
from vlmplan.changes.least import least_combination


@dataclass
class Sums:
    """Options are names of changes, each with bytes that it saves and seconds that it costs."""

    needed: int
    saved: dict[str, int]
    cost: dict[str, int]

    def is_possible(self, options: Mapping[str, Any]) -> bool:
        return True

    def chosen(self, options: Mapping[str, Any]) -> list[str]:
        return [str(value) for value in options.values() if value is not None]

    def fits(self, options: Mapping[str, Any]) -> bool:
        return sum(self.saved[name] for name in self.chosen(options)) >= self.needed

    def seconds(self, options: Mapping[str, Any]) -> float | None:
        return 100.0 + sum(self.cost[name] for name in self.chosen(options))

    def are_same(self, options: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
        return self.chosen(options) == self.chosen(others)


def change(option: str, level: int, *, keeps_results: bool = True) -> Change:
    return Change(name=f"{option}{level}", options={option: f"{option}{level}"}, keeps_results=keeps_results)


KINDS = tuple(tuple(change(option, level) for level in (1, 2, 3)) for option in "abc")
ENGINES = (change("e", 1), change("e", 2))
RESULTS = ((), (change("m", 1, keeps_results=False),), (change("m", 2, keeps_results=False),))
SAMPLES = tuple((change("s", level, keeps_results=False),) for level in (1, 2, 3))
SPACE = Space(kinds=KINDS, results=RESULTS, samples=SAMPLES, engines=ENGINES)
LEVELS = {"a": 3, "b": 3, "c": 3, "e": 2, "m": 2, "s": 3}


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    """Of every option the later level saves more and costs no less."""
    saved: dict[str, int] = {}
    cost: dict[str, int] = {}
    for option, count in LEVELS.items():
        for values, least in ((saved, 1), (cost, 0)):
            steps = draw(st.lists(st.integers(least, 7), min_size=count, max_size=count))
            values.update({f"{option}{level + 1}": sum(steps[: level + 1]) for level in range(count)})
    return Sums(needed=draw(st.integers(1, 110)), saved=saved, cost=cost)


def all_options(judge: Sums, names: str) -> list[dict[str, Any]]:
    """Every combination of levels of these options that fits."""
    levels = [[None, *(f"{name}{level + 1}" for level in range(LEVELS[name]))] for name in names]
    chosen = ({n: v for n, v in zip(names, values, strict=True) if v is not None} for values in product(*levels))
    return [options for options in chosen if judge.fits(options)]


@settings(max_examples=150, deadline=None)
@given(judge=sums())
def test_the_least_combination_fits_and_nothing_of_it_can_be_left_out(judge: Sums):
    found = least_combination(SPACE, {}, judge)
    if found is None:
        assert not all_options(judge, "abcems")
        return
    assert judge.fits(found.options)
    assert found.changed == {name: value for name, value in found.options.items() if value is not None}
    for one in found.changes:
        assert not judge.fits({name: value for name, value in found.options.items() if name not in one.options})


@settings(max_examples=150, deadline=None)
@given(judge=sums())
def test_results_change_only_where_they_must_and_samples_last(judge: Sums):
    found = least_combination(SPACE, {}, judge)
    if found is None:
        return
    if all_options(judge, "abce"):
        assert found.keeps_results
    elif all_options(judge, "abcem"):
        assert "s" not in found.changed
        assert found.changed["m"] == min(one["m"] for one in all_options(judge, "abcem"))
    else:
        assert found.changed["s"] == min(one["s"] for one in all_options(judge, "abcems"))


@given(judge=sums())
def test_what_fits_as_it_is_needs_no_change(judge: Sums):
    judge.needed = 0
    found = least_combination(SPACE, {}, judge)
    assert found is not None
    assert found.changes == ()
