"""What has no plan by model states, hosts and the smallest micro batch alone: a search has none of it either."""

from dataclasses import replace

import pytest

from planned import decided, workload
from search_cases import TODAY, card, cluster, owned
from vlmplan.recipe.choices import Method
from vlmplan.search import Objective, SearchQuery, recommend
from vlmplan.search.recommendation import may_have_plans, possible_methods
from vlmplan.units import GIB

TECHNIQUES = {"tiled_mlp": True, "offload_activations": True}
"""What makes room for samples, all of it that one GPU can do."""


def query(memory_gib: float, host_gib: float, num_gpus: int, **fixed: object) -> SearchQuery:
    """One of a small model, whose methods take about 1 to 2.5 GiB of a GPU or 0.3 to 3 of a host."""
    gpu = card("rtx-4090", memory_bytes=int(memory_gib * GIB))
    host = {"host_ram_bytes": int(host_gib * GIB), "host_ram_source": "--host-ram"}
    return SearchQuery(
        workload=workload("smollm2-135m", seq_len=256),
        candidates=owned(cluster(gpu, num_gpus, **host)),
        fixed=decided(**fixed),
        objective=Objective.TIME,
        today=TODAY,
    )


def planned(asked: SearchQuery) -> set[Method]:
    return {plan.estimate.recipe.method for plan in recommend(asked).plans}


MACHINES = [(memory, host, num_gpus) for num_gpus in (1, 2) for memory in (1.6, 6.0) for host in (2, 4, 7)]


@pytest.mark.parametrize(("memory_gib", "host_gib", "num_gpus"), MACHINES)
def test_others_have_no_plan_with_what_makes_room_for_samples_either(memory_gib: float, host_gib: float, num_gpus: int):
    possible = possible_methods(query(memory_gib, host_gib, num_gpus))
    for fixed in ({}, TECHNIQUES, *([{"sequence_parallel": 2, "zero_stage": 3}] if num_gpus > 1 else [])):
        assert planned(query(memory_gib, host_gib, num_gpus, **fixed)) <= set(possible)


def test_some_machines_have_all_methods_some_have_a_few_and_some_have_none():
    assert [len(possible_methods(query(*machine))) for machine in MACHINES[:3]] == [0, 2, 3]


def test_of_several_methods_the_one_that_is_decided_is_looked_at():
    asked = query(2.2, 4, 1, method=Method.LORA)
    assert recommend(replace(asked, methods=(Method.LORA, Method.QLORA))) == recommend(asked)


@pytest.mark.parametrize(("memory_gib", "host_gib"), [(2.2, 4), (6.0, 64)])
def test_a_search_of_these_alone_finds_what_a_search_of_all_does(memory_gib: float, host_gib: float):
    asked = query(memory_gib, host_gib, 1)
    some = recommend(replace(asked, methods=possible_methods(asked)))
    assert some.plans
    assert some.plans == recommend(asked).plans


ROOMS = [(memory, num_gpus, seq_len) for seq_len in (256, 4096) for num_gpus in (1, 2) for memory in (1.5, 2, 3, 6)]


@pytest.mark.sweep
@pytest.mark.parametrize(("memory_gib", "num_gpus", "seq_len"), ROOMS)
@pytest.mark.parametrize("fixed", [{}, {"method": Method.FULL}, {"expandable_segments": False}])
def test_what_has_no_room_for_the_smallest_micro_batch_has_no_plan(
    memory_gib: float, num_gpus: int, seq_len: int, fixed: dict[str, object]
):
    asked = query(memory_gib, 64, num_gpus, **fixed)
    asked = replace(asked, workload=workload("smollm2-135m", seq_len=seq_len))
    if recommend(asked).plans:
        assert may_have_plans(asked)


def test_of_some_machines_it_is_known_without_a_search_that_nothing_fits():
    long = workload("smollm2-135m", seq_len=8192)
    asked = [replace(query(memory, 64, 1), workload=long) for memory in (1.2, 6)]
    assert [possible_methods(one) != () for one in asked] == [True, True]
    assert [may_have_plans(one) for one in asked] == [False, True]
