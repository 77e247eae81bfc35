"""What a rehearsal refuses is neither a plan nor on the front any more; plans are shown as they were rehearsed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planned import decided, workload
from search_cases import TODAY, card, offer, rented, search
from vlmplan.estimation import Estimate
from vlmplan.memory.device import Verdict
from vlmplan.proposals.confirmation import _without, searched_until_one_fits, with_corrected_plans
from vlmplan.recipe.choices import Method
from vlmplan.search import Recommendation, SearchQuery, recommend
from vlmplan.search.long_samples import rank_of, rank_of_first
from vlmplan.search.pareto import front_of
from vlmplan.units import GIB


def search_of(model: str, *, global_batch: int, card_gib: int) -> SearchQuery:
    """A search for a model on one card of this much memory."""
    gpu = card("rtx-4090", memory_bytes=card_gib * GIB)
    return SearchQuery(
        workload=workload(model, seq_len=1024, global_batch=global_batch),
        candidates=[rented(gpu, offer(gpu, 0.4, 1))],
        fixed=decided(),
        today=TODAY,
    )


def test_a_refused_winner_leaves_the_front_to_what_it_beat():
    gpu = card("rtx-4090")
    found = search([rented(gpu, offer(gpu, 0.4 * count, count)) for count in (1, 2)], seq_len=256)
    winner = found.plans[0]
    refused = (winner.estimate.cluster, winner.estimate.recipe)
    assert refused == (found.pareto[-1].cluster, found.pareto[-1].recipe)
    left = _without(found, [(winner, "rehearsed, it takes 30 GiB")], found.plans[1:])
    assert refused not in [(point.cluster, point.recipe) for point in left.scored]
    assert len(left.scored) == len(found.scored) - 1
    assert list(left.pareto) == front_of(left.scored)
    assert left.pareto[-1].usd >= winner.usd


def heavier(found: Estimate, more: int) -> Estimate:
    """The estimate with so many more bytes on the device, and said to be rehearsed."""
    device = found.device._replace(allocated_bytes=found.device.allocated_bytes + more)
    device = device._replace(reserved_bytes=found.device.reserved_bytes + more)
    model = replace(found.workload.model, notes=("its memory is rehearsed",))
    return replace(found, device=device, workload=replace(found.workload, model=model))


def test_every_plan_is_shown_as_it_is_corrected():
    found = search([rented(card("rtx-4090"), offer(card("rtx-4090"), 0.4, 1))], seq_len=256)
    assert len(found.plans) > 1
    corrected = with_corrected_plans(found, lambda all_of: [heavier(one, 1000) for one in all_of])
    for before, after in zip(found.plans, corrected.plans, strict=True):
        assert after.estimate.device.device_bytes == before.estimate.device.device_bytes + 1000
    assert corrected.notes == ("its memory is rehearsed", *found.notes)


def test_a_later_plan_that_does_not_fit_as_it_is_corrected_is_left_out():
    found = search([rented(card("rtx-4090"), offer(card("rtx-4090"), 0.4, 1))], seq_len=256)
    first, second, *others = found.plans
    left = with_corrected_plans(
        found, lambda all_of: [heavier(one, 2**40 * (one is second.estimate)) for one in all_of]
    )
    assert [plan.estimate.recipe for plan in left.plans] == [plan.estimate.recipe for plan in (first, *others)]
    assert any("was ranked higher: rehearsed, it takes" in note for note in left.notes)


def test_a_winner_that_does_not_fit_as_it_is_corrected_makes_way():
    found = search([rented(card("rtx-4090"), offer(card("rtx-4090"), 0.4, 1))], seq_len=256)
    winner, second = found.plans[:2]
    left = with_corrected_plans(
        found, lambda all_of: [heavier(one, 2**40 if one is winner.estimate else 1000) for one in all_of]
    )
    assert left.plans[0].estimate.recipe == second.estimate.recipe
    assert any("was ranked higher: rehearsed, it takes" in note for note in left.notes)
    none = with_corrected_plans(found, lambda all_of: [heavier(one, 2**40) for one in all_of])
    assert none.plans == ()
    assert none.rejected


@pytest.mark.sweep
def test_where_the_best_plan_does_not_fit_a_like_one_is_looked_for_before_another_method_is_taken():
    """Adapters take twice as much as estimated, so that full training alone is left, which costs more than adapters
    with smaller micro batches."""
    query = search_of("qwen2.5-0.5b", global_batch=16, card_gib=24)

    def heavy_adapters(all_of: Sequence[Estimate]) -> list[Estimate]:
        return [heavier(one, one.peak_allocated_bytes * one.recipe.trains_adapters) for one in all_of]

    once = with_corrected_plans(recommend(query), heavy_adapters)
    assert {plan.estimate.recipe.method for plan in once.plans} == {Method.FULL}
    found = searched_until_one_fits(query, recommend, heavy_adapters)
    assert found.plans[0].estimate.recipe.trains_adapters
    assert rank_of_first(found) < rank_of_first(once)
    assert all(plan.estimate.verdict is Verdict.FITS for plan in found.plans)
    assert any("was ranked higher: rehearsed, it takes" in note for note in found.notes)


def test_a_method_whose_plan_does_not_fit_beside_others_that_do_is_searched_anew():
    """Its row has another plan then, in its place by rank, as it is on the whole card."""
    query = search_of("qwen2.5-0.5b", global_batch=16, card_gib=24)
    first, second = (plan.estimate.recipe.method for plan in recommend(query).plans[:2])

    def heavy_second(all_of: Sequence[Estimate]) -> list[Estimate]:
        return [heavier(one, one.peak_allocated_bytes * (one.recipe.method is second)) for one in all_of]

    once = with_corrected_plans(recommend(query), heavy_second)
    assert once.best_of(second) is None
    found = searched_until_one_fits(query, recommend, heavy_second)
    again = found.best_of(second)
    assert again is not None
    assert again.estimate.verdict is Verdict.FITS
    assert again.estimate.cluster.node.gpu == query.candidates[0].cluster.node.gpu
    assert found.plans[0].estimate.recipe.method is first
    ranks = [rank_of(plan, found.objective) for plan in found.plans]
    assert ranks == sorted(ranks)
    assert list(found.pareto) == front_of(found.scored)
    assert any(f"{second.value} on" in note and "was ranked higher" in note for note in found.notes)


def test_where_the_best_plan_fits_there_is_one_search():
    query = search_of("qwen2.5-0.5b", global_batch=16, card_gib=24)
    searches: list[SearchQuery] = []

    def counted(asked: SearchQuery) -> Recommendation:
        searches.append(asked)
        return recommend(asked)

    found = searched_until_one_fits(query, counted, lambda all_of: [heavier(one, 0) for one in all_of])
    assert (len(searches), len(found.plans)) == (1, 3)


@pytest.mark.sweep
def test_what_takes_twice_as_much_as_estimated_is_searched_on_cards_of_half_the_memory():
    """Until something fits; what is shown is on the whole card, and no machine is both possible and not."""
    query = search_of("smollm2-360m", global_batch=8, card_gib=4)

    def twice(all_of: Sequence[Estimate]) -> list[Estimate]:
        return [heavier(one, one.peak_allocated_bytes) for one in all_of]

    once = with_corrected_plans(recommend(query), twice)
    assert not once.plans
    found = searched_until_one_fits(query, recommend, twice)
    assert found.plans
    assert all(plan.estimate.verdict is Verdict.FITS for plan in found.plans)
    assert {plan.estimate.cluster.node.gpu for plan in found.plans} == {query.candidates[0].cluster.node.gpu}
    assert found.rejected == ()
    assert any("was ranked higher: rehearsed, it takes" in note for note in found.notes)
    never = searched_until_one_fits(query, recommend, lambda all_of: [heavier(one, 2**50) for one in all_of])
    assert never.plans == ()
    assert {one.label for one in never.rejected} == {"1 x rtx-4090"}
