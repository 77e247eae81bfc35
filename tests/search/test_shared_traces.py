"""Searches of one process share what they trace, and find what each would have found alone."""

import random
from dataclasses import replace
from typing import Any

import pytest

from planned import decided, workload
from search_cases import TODAY, card, cluster, owned
from vlmplan.architecture.model import Model
from vlmplan.architecture.trace import Trace
from vlmplan.errors import InputError
from vlmplan.recipe.choices import Method, OptimizerKind
from vlmplan.search import Compared, Objective, Recommendation, SearchQuery, recommend, recommendation
from vlmplan.search.clusters import Candidate
from vlmplan.search.shared_traces import MOST_KEPT, RecentTraces, SharedTraces
from vlmplan.units import GIB

LARGE, SMALL = card("a100-sxm4-80gb"), card("rtx-3060-12gb", memory_bytes=2 * GIB)
OLD = card("t4")
"""Without bfloat16: kernels of its own."""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> RecentTraces:
    return keep(monkeypatch, MOST_KEPT)


def keep(monkeypatch: pytest.MonkeyPatch, most: int) -> RecentTraces:
    kept = RecentTraces(most)
    monkeypatch.setattr(recommendation, "RECENT", kept)
    return kept


def query(alias: str = "smolvlm-256m", fixed: dict[str, Any] | None = None, **changes: Any) -> SearchQuery:
    candidates: list[Candidate] = changes.pop("candidates", owned(cluster(LARGE, 2), cluster(SMALL)))
    asked = workload(alias, seq_len=1280, images_per_sample=1, global_batch=8)
    return SearchQuery(
        workload=asked,
        candidates=candidates,
        fixed=decided(**(fixed or {})),
        objective=Objective.TIME,
        today=TODAY,
        **changes,
    )


def drawn_queries(seed: int, number: int) -> list[SearchQuery]:
    """Queries that share some of their traces and differ in everything that they may differ in."""
    draw = random.Random(seed)
    machines = [cluster(gpu, count) for gpu in (LARGE, SMALL, OLD) for count in (1, 4)]
    fixed: list[dict[str, Any]] = [{}, {"method": Method.LORA}, {"zero_stage": 3}, {"activation_checkpointing": False}]
    fixed += [{"optimizer": OptimizerKind.ADAMW_8BIT}, {"optimizer": OptimizerKind.ADAFACTOR, "zero_stage": 3}]
    found = []
    for _ in range(number):
        one = query(fixed=draw.choice(fixed), candidates=owned(*draw.sample(machines, 2)))
        found.append(replace(one, objective=draw.choice(list(Objective)), compares=draw.choice(list(Compared))))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(5))
def test_a_search_after_others_finds_what_it_finds_alone(monkeypatch: pytest.MonkeyPatch, seed: int):
    queries = drawn_queries(seed, number=3)
    keep(monkeypatch, MOST_KEPT)
    after_others = [recommend(one) for one in queries]
    keep(monkeypatch, 0)
    assert after_others == [recommend(one) for one in queries]


@pytest.mark.sweep
def test_a_second_search_traces_nothing_that_the_first_has(monkeypatch: pytest.MonkeyPatch, kept: RecentTraces):
    num_traced = [0]

    def counted(self: Model, *args: Any, **options: Any) -> Trace:
        num_traced[-1] += 1
        return run(self, *args, **options)

    run = Model.run
    monkeypatch.setattr(Model, "run", counted)
    eight_bit = {"optimizer": OptimizerKind.ADAMW_8BIT}
    for fixed in ({}, {}, eight_bit, {"method": Method.LORA}, {"lora_rank": 4}):
        num_traced.append(0)
        recommend(query(fixed=fixed))
    _, first, again, of_another_optimizer, of_one_method, other = num_traced
    assert again == 0
    assert of_another_optimizer < first / 4
    assert of_one_method < other  # plans that the first search did not compute exactly
    assert other > first / 2


def traces_of(kept: RecentTraces, one: SearchQuery) -> SharedTraces:
    with kept.of(one) as traces:
        return traces


def test_two_searches_at_once_share_nothing(kept: RecentTraces):
    with kept.of(query()) as first, kept.of(query()) as second:
        assert first is not second
    assert traces_of(kept, query()) in (first, second)


def test_what_an_error_leaves_behind_is_not_used_again(kept: RecentTraces):
    def failing() -> SharedTraces:
        with kept.of(query()) as traces:
            raise InputError(str(id(traces)))

    with kept.of(query()) as first:
        pass
    with pytest.raises(InputError, match=str(id(first))):
        failing()
    assert traces_of(kept, query()) is not first


def test_only_the_last_workloads_are_kept():
    kept = RecentTraces(2)
    first, *others = [query(fixed={"lora_rank": rank}) for rank in (4, 8, 16)]
    before = {id(one): traces_of(kept, one) for one in (first, *others)}
    assert [traces_of(kept, one) is before[id(one)] for one in others] == [True, True]
    assert traces_of(kept, first) is not before[id(first)]


def test_a_card_of_which_something_else_is_known_meanwhile_has_its_new_speed(kept: RecentTraces):
    slow = replace(LARGE, memory_bandwidth_bytes_per_second=1e11)
    hours = [hours_of(recommend(query(candidates=owned(cluster(gpu))))) for gpu in (LARGE, slow, LARGE)]
    assert hours[0] == hours[2] < hours[1]


def hours_of(found: Recommendation) -> float:
    hours = found.plans[0].hours
    assert hours is not None
    return hours
