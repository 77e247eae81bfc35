"""Least combinations, by a judge whose memory and time are plain sums: what is given fits, nothing of it can be left
out, and results are changed only where nothing else is enough."""

from dataclasses import dataclass
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from laws import law
from vlmplan.changes.change import Change
from vlmplan.changes.kinds import Space
from vlmplan.changes.least import least_combination
from vlmplan.request import Request, parse

NAMES = {"a": "num_samples", "b": "global_batch", "c": "lora_rank", "e": "hpz", "m": "lora_alpha", "s": "seq_len"}
"""Options that take a number; which ones is all the same."""


@dataclass
class Sums:
    """Levels of options, by the letters of ``NAMES``, each with bytes that it saves and seconds that it costs."""

    needed: int
    saved: dict[str, int]
    cost: dict[str, int]

    def is_possible(self, request: Request) -> bool:
        return True

    def chosen(self, request: Request) -> list[str]:
        levels = {letter: request.option(name) for letter, name in NAMES.items()}
        return [f"{letter}{level}" for letter, level in levels.items() if level is not None]

    def fits(self, request: Request) -> bool:
        return sum(self.saved[name] for name in self.chosen(request)) >= self.needed

    def seconds(self, request: Request) -> float | None:
        return 100.0 + sum(self.cost[name] for name in self.chosen(request))

    def are_same(self, request: Request, other: Request) -> bool:
        return request == other


def change(letter: str, level: int, *, keeps_results: bool = True) -> Change:
    return Change(name=f"{letter}{level}", options={NAMES[letter]: level}, keeps_results=keeps_results)


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


def all_requests(judge: Sums, letters: str) -> list[Request]:
    """Every combination of levels of these options that fits."""
    levels = [[None, *range(1, LEVELS[letter] + 1)] for letter in letters]
    names = [NAMES[letter] for letter in letters]
    chosen = (parse(dict(zip(names, values, strict=True))) for values in product(*levels))
    return [request for request in chosen if judge.fits(request)]


@law(judge=sums(), quick=10, thorough=150)
def test_the_least_combination_fits_and_nothing_of_it_can_be_left_out(judge: Sums):
    found = least_combination(SPACE, Request(), judge)
    if found is None:
        assert not all_requests(judge, "abcems")
        return
    assert judge.fits(found.request)
    assert found.request == parse(found.changed)
    for one in found.changes:
        assert not judge.fits(found.request.with_options(dict.fromkeys(one.options)))


@law(judge=sums(), quick=10, thorough=150)
def test_results_change_only_where_they_must_and_samples_last(judge: Sums):
    found = least_combination(SPACE, Request(), judge)
    if found is None:
        return
    if all_requests(judge, "abce"):
        assert found.keeps_results
    elif all_requests(judge, "abcem"):
        assert NAMES["s"] not in found.changed
        assert found.request.recipe.lora_alpha == min(one.recipe.lora_alpha for one in all_requests(judge, "abcem"))
    else:
        assert found.request.workload.seq_len == min(one.workload.seq_len for one in all_requests(judge, "abcems"))


@given(judge=sums())
def test_what_fits_as_it_is_needs_no_change(judge: Sums):
    judge.needed = 0
    found = least_combination(SPACE, Request(), judge)
    assert found is not None
    assert found.changes == ()
