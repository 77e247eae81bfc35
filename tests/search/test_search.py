"""The recommendation: the best of everything there is, within the limits, and a reason for all that is left out."""

import dataclasses
from functools import cache
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import of_few_layers
from search_cases import TODAY, all_estimates, bounded_setups, card, cluster, offer, owned, rented, search, space
from vlmplan.answers.recommendation import rejection_json
from vlmplan.cost.run import DAYS_PER_MONTH, USD_PER_GIB_MONTH
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate
from vlmplan.hardware import Gpu
from vlmplan.memory.device import Verdict
from vlmplan.recipe.choices import SEARCHED_METHODS, Method, Offload
from vlmplan.search import Limits, Objective, RankedPlan, Recommendation
from vlmplan.search.clusters import Candidate
from vlmplan.search.entries import OverLimits, UnexploredMethod
from vlmplan.search.ranking import MAX_PLANS
from vlmplan.units import GIB
from vlmplan.workload import ModelFiles

FAST, SLOW = card("a100-sxm4-80gb"), card("rtx-3060-12gb", memory_bytes=int(1.75 * GIB))
TEXT = "smollm2-135m"
USD = {FAST.id: 2.0, SLOW.id: 0.3}
SAMPLE = {"seq_len": 256, "num_samples": 500_000}
"""Hours of training, so that it is what the money goes into."""


def offers(num_gpus: tuple[int, ...] = (1, 4)) -> list[Candidate]:
    return [rented(gpu, offer(gpu, USD[gpu.id] * count, count)) for gpu in (FAST, SLOW) for count in num_gpus]


@cache
def answer(objective: Objective = Objective.COST, num_gpus: tuple[int, ...] = (1, 4)) -> Recommendation:
    return search(offers(num_gpus), objective=objective, **SAMPLE)


def usd_of(estimate: Estimate, candidate: Candidate) -> float:
    """What the run costs on the cheapest machine of the candidate."""
    usd = RankedPlan(estimate=estimate, offer=candidate.offers[0]).usd
    assert usd is not None
    return usd


class Everything(NamedTuple):
    """A search so small that everything there is to find is computed: (estimate, usd) of what fits."""

    candidates: list[Candidate]
    model: str | ModelFiles
    fitting: list[tuple[Estimate, float]]

    def answer(self, objective: Objective = Objective.COST) -> Recommendation:
        return search(self.candidates, self.model, objective=objective, **SAMPLE)


def everything(candidates: list[Candidate], model: str | ModelFiles) -> Everything:
    where = space(model, **SAMPLE)
    found = [(one, candidate) for candidate in candidates for one in all_estimates(where, candidate.cluster)]
    fitting = [(one, usd_of(one, candidate)) for one, candidate in found if one.verdict is Verdict.FITS]
    assert 0 < len(fitting) < len(found)  # memory decides
    return Everything(candidates, model, fitting)


def with_memory(gpu: Gpu, memory_gib: float) -> Gpu:
    num_bytes = int(memory_gib * GIB)
    return dataclasses.replace(gpu, memory_bytes=num_bytes, cuda_visible_bytes=num_bytes)


FEW_LAYERS = of_few_layers("smollm2-135m", 5)


@pytest.fixture(scope="module", params=[(FEW_LAYERS, 0.9), pytest.param((TEXT, 1.75), marks=pytest.mark.sweep)])
def brute_force(request: pytest.FixtureRequest) -> Everything:
    model, slow_gib = request.param
    cards = (FAST, with_memory(SLOW, slow_gib))
    return everything([rented(gpu, offer(gpu, USD[gpu.id])) for gpu in cards], model)


# The winner against everything


def test_cheapest_plan_is_the_cheapest_of_everything(brute_force: Everything):
    cheapest = min(usd for _, usd in brute_force.fitting)
    assert brute_force.answer().plans[0].usd <= cheapest * 1.005


def test_fastest_plan_is_the_fastest_of_everything(brute_force: Everything):
    fastest = min(estimate.run_seconds for estimate, _ in brute_force.fitting)
    assert brute_force.answer(Objective.TIME).plans[0].estimate.run_seconds <= fastest * 1.005


@pytest.mark.parametrize("method", SEARCHED_METHODS)
def test_best_plan_of_each_method_is_the_cheapest_of_that_method(brute_force: Everything, method: Method):
    cheapest = min(usd for estimate, usd in brute_force.fitting if estimate.recipe.method is method)
    assert brute_force.answer().best_of(method).usd <= cheapest * 1.005


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "memory_gib"),
    [
        (FEW_LAYERS, 1.9),
        pytest.param(FEW_LAYERS, 1.3, marks=pytest.mark.sweep),
        pytest.param(TEXT, 1.4, marks=pytest.mark.sweep),
        pytest.param(TEXT, 2.2, marks=pytest.mark.sweep),
    ],
)
def test_cheapest_plan_is_the_cheapest_where_memory_is_short(model: str | ModelFiles, memory_gib: float):
    gpu = with_memory(card("rtx-4090"), memory_gib)
    found = everything([rented(gpu, offer(gpu, 0.5))], model)
    assert found.answer().plans[0].usd <= min(usd for _, usd in found.fitting) * 1.005


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("model", "memory_gib"),
    [(of_few_layers("qwen2-vl-2b"), 2.5), ("qwen2-vl-2b", 12)],
)
def test_images_are_searched_as_well_as_text(model: str | ModelFiles, memory_gib: float):
    gpu = with_memory(card("rtx-4090"), memory_gib)
    candidates = [rented(gpu, offer(gpu, 0.5 * count, count)) for count in (1, 2)]
    where = space(model, global_batch=4)
    estimates = [
        (estimate, candidate)
        for candidate in candidates
        for estimate in all_estimates(where, candidate.cluster, (Method.LORA, Method.QLORA))
    ]
    fitting = [usd_of(*found) for found in estimates if found[0].verdict is Verdict.FITS]
    assert 0 < len(fitting) < len(estimates)
    assert search(candidates, model, global_batch=4).plans[0].usd <= min(fitting) * 1.005


# Order and shape


def download_seconds(plan: RankedPlan) -> float:
    return plan.estimate.disk.download_bytes * 8 / 2e9


def save_seconds(plan: RankedPlan) -> float:
    return 5 + plan.estimate.disk.checkpoint_bytes / plan.estimate.cluster.num_nodes / 1e9


def key(plan: RankedPlan, objective: Objective) -> float:
    values = {Objective.COST: plan.usd, Objective.TIME: plan.hours, Objective.VRAM: plan.estimate.device.device_bytes}
    return values[objective]


@pytest.mark.parametrize("objective", Objective)
def test_plans_come_best_first(objective: Objective):
    plans = answer(objective, (1, 2, 4, 8)).plans
    keys = [key(plan, objective) for plan in plans]
    assert keys == sorted(keys)
    assert len(plans) >= MAX_PLANS


@pytest.mark.parametrize("objective", Objective)
def test_each_machine_and_method_is_shown_once_and_every_method_is(objective: Objective):
    plans = answer(objective, (1, 2, 4, 8)).plans
    places = [(plan.offer.gpu_id, plan.offer.num_gpus, plan.estimate.recipe.method) for plan in plans]
    assert len(set(places)) == len(places)
    assert {method for *_, method in places} == set(SEARCHED_METHODS)


@pytest.mark.parametrize("objective", Objective)
def test_every_plan_fits_its_machine_and_holds_the_global_batch(objective: Objective):
    for plan in search(offers(), objective=objective, global_batch=24, **SAMPLE).plans:
        recipe = plan.estimate.recipe
        assert plan.estimate.verdict is Verdict.FITS
        assert recipe.micro_batch * recipe.grad_accum * plan.estimate.cluster.num_gpus == 24
        assert plan.estimate.cluster.node.gpu.id == plan.offer.gpu_id


def test_all_machines_are_paid_for_training_and_what_a_run_takes_besides():
    two = Candidate(
        cluster=dataclasses.replace(rented(FAST, offer(FAST, 7.0, 2)).cluster, num_nodes=3),
        offers=(offer(FAST, 7.0, 2),),
    )
    plan = search([two], **SAMPLE).plans[0]
    assert plan.usd_per_hour == 3 * 7.0
    cost = plan.cost
    assert cost.training_usd == pytest.approx(plan.estimate.run_seconds / 3600 * 3 * 7.0)
    assert plan.usd - cost.storage_usd == pytest.approx(plan.billed_hours * 3 * 7.0)
    assert plan.billed_hours - plan.hours == pytest.approx((300 + download_seconds(plan) + save_seconds(plan)) / 3600)
    assert plan.hours == pytest.approx(plan.estimate.num_steps * plan.estimate.step_seconds / 3600)


def test_the_range_of_hours_is_carried_to_money_with_what_does_not_depend_on_them():
    """Start-up, download and what is stored when the run is over cost the same however long training takes."""
    plan = search([rented(FAST, offer(FAST, 7.0))], **SAMPLE).plans[0]
    (least_hours, most_hours), (least_usd, most_usd) = plan.hours_range, plan.usd_range
    assert least_hours < plan.hours < most_hours
    disk = plan.estimate.disk
    stored_gib = (disk.download_bytes + disk.checkpoint_bytes + disk.export_bytes) / 2**30
    usd_per_hour = 7.0 + stored_gib * USD_PER_GIB_MONTH / DAYS_PER_MONTH / 24
    for hours, usd in ((least_hours, least_usd), (most_hours, most_usd)):
        assert usd - plan.usd == pytest.approx((hours - plan.hours) * usd_per_hour)
    timeless = dataclasses.replace(plan, estimate=dataclasses.replace(plan.estimate, timed=None))
    assert timeless.hours_range is timeless.usd_range is None
    assert dataclasses.replace(plan, offer=None).usd_range is None


def test_recommendation_says_what_was_looked_at():
    found = answer()
    assert found.num_clusters == len(offers())
    assert found.num_considered > len(found.plans)
    assert found.as_of == TODAY


# Prices and speeds that are not known


def test_without_prices_the_fewest_gpu_hours_win():
    found = search(owned(*(cluster(FAST, count) for count in (1, 2, 8))), **SAMPLE)
    gpu_hours = [plan.hours * plan.estimate.cluster.num_gpus for plan in found.plans]
    assert gpu_hours == sorted(gpu_hours)
    assert found.plans[0].usd is None


def test_machine_without_a_price_comes_after_those_with_one():
    found = search([*owned(cluster(FAST, 8)), rented(SLOW, offer(SLOW, 100.0))], **SAMPLE)
    priced = [plan.usd is not None for plan in found.plans]
    assert priced == sorted(priced, reverse=True)
    assert not all(priced)


def test_card_of_unknown_speed_is_found_comes_last_and_has_no_hours():
    unknown = card("rtx-4090", id="unknown", memory_bandwidth_bytes_per_second=None)
    found = search([rented(unknown, offer(unknown, 0.01)), rented(SLOW, offer(SLOW, 100.0))], **SAMPLE)
    last = found.plans[-1]
    assert last.estimate.cluster.node.gpu.id == "unknown"
    assert (last.hours, last.usd) == (None, None)
    assert found.plans[0].offer.gpu_id == SLOW.id


@pytest.mark.sweep
def test_card_of_unknown_speed_is_within_no_limit_on_time():
    unknown = card("rtx-4090", memory_bandwidth_bytes_per_second=None)
    found = search(owned(cluster(unknown)), limits=Limits(max_hours=1e9), **SAMPLE)
    assert not found.plans
    assert "no speed is known" in found.rejected[0].reason


# Limits


@pytest.mark.parametrize(("name", "of"), [("max_usd", "usd"), ("max_hours", "hours")])
def test_plans_stay_within_the_limit_and_the_rest_is_rejected_for_it(name: str, of: str):
    free = answer().plans
    limit = sorted(getattr(plan, of) for plan in free)[len(free) // 2]
    found = search(offers(), limits=Limits(**{name: limit}), **SAMPLE)
    assert found.plans
    assert all(getattr(plan, of) <= limit * (1 + 1e-6) for plan in found.plans)
    nothing = search(offers(), limits=Limits(**{name: limit / 1e6}), **SAMPLE)
    assert not nothing.plans
    assert len(nothing.rejected) == len(offers())
    assert any("over the limits" in rejection.reason for rejection in nothing.rejected)


def test_what_is_over_a_limit_at_the_least_is_not_said_to_fit():
    """Of a method whose least time is over the limit nothing else is looked at."""
    machine = owned(cluster(card("l4")))[0]
    least = UnexploredMethod(candidate=machine, method=Method.FULL, ways=None, hours=2.0, usd=None)
    reason = OverLimits.of([least], Limits(max_hours=1.0)).text
    assert reason == "over the limits, whether it fits or not: training takes at least 2.0 h, --max-hours is 1"
    told = search(offers(), limits=Limits(max_hours=1e-6), **SAMPLE).rejected
    assert not [one.reason for one in told if one.reason.startswith("fits, ")]


@pytest.mark.parametrize("name", ["max_usd", "max_hours"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_limits_that_nothing_can_meet_are_refused(name: str, value: float):
    with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is {value:g}"):
        Limits(**{name: value})


# Rejections


@pytest.mark.sweep
def test_every_machine_has_a_plan_or_a_rejection_with_a_reason():
    tiny = card("t4", id="tiny", memory_bytes=GIB)
    candidates = [*offers((1,)), rented(tiny, offer(tiny, 0.01))]
    found = search(candidates, **SAMPLE)
    planned = {plan.offer.gpu_id for plan in found.plans}
    rejected = {rejection.cluster.node.gpu.id: rejection for rejection in found.rejected}
    assert planned | set(rejected) == {candidate.cluster.node.gpu.id for candidate in candidates}
    assert set(rejected) == {"tiny"}
    assert "needs" in rejected["tiny"].reason
    assert rejected["tiny"].smallest_change
    assert rejected["tiny"].label == "1 x tiny"


@pytest.mark.parametrize(("alias", "seq_len", "helps"), [("llama-3.1-8b", 64, False), ("smollm2-135m", 65_536, True)])
def test_a_shorter_sample_is_proposed_where_the_states_of_the_model_leave_room(alias: str, seq_len: int, helps: bool):
    pinned = {"zero_stage": 1, "offload_optimizer": Offload.NONE, "method": Method.LORA, "micro_batch": 1}
    (rejection,) = search(owned(cluster(card("t4"))), alias, fixed=pinned, seq_len=seq_len).rejected
    assert rejection.smallest_change is not None
    assert rejection.smallest_change.endswith(", or a shorter --seq-len") is helps


@pytest.mark.parametrize(("alias", "is_said"), [("qwen3-30b-a3b", True), ("llama-3.1-70b", False)])
def test_experts_that_stay_unpacked_are_the_reason_where_4_bit_weights_do_not_fit(alias: str, is_said: bool):
    pinned = {"zero_stage": 0, "offload_optimizer": Offload.NONE, "method": Method.QLORA, "micro_batch": 1}
    (rejection,) = search(owned(cluster(card("rtx-4090"))), alias, fixed=pinned, seq_len=512).rejected
    assert ("of experts in 16 bits: they are no Linears, which alone are packed" in rejection.reason) is is_said


def test_the_document_of_a_rejection_names_machine_reason_and_change():
    tiny = card("t4", memory_bytes=GIB)
    (rejection,) = search(owned(cluster(tiny, 2, num_nodes=3)), **SAMPLE).rejected
    document = rejection_json(rejection)
    assert (document["gpu"], document["num_gpus"], document["num_nodes"]) == ("t4", 2, 3)
    assert document["reason"] == rejection.reason
    assert document["smallest_change"] == rejection.smallest_change


def test_host_that_is_too_small_is_the_reason_with_the_least_that_is_needed():
    gpu = card("t4", memory_bytes=2 * GIB)
    fixed = {"method": Method.FULL, "zero_stage": 3, "offload_optimizer": Offload.CPU, "offload_params": Offload.CPU}
    small, ample = offer(gpu, 0.1, host_ram_bytes=4 * GIB), offer(gpu, 0.4, host_ram_bytes=64 * GIB)
    short = search([rented(gpu, small)], fixed=fixed, **SAMPLE)
    assert not short.plans
    assert short.rejected[0].reason.startswith("the host needs")
    assert search([rented(gpu, small, ample)], fixed=fixed, **SAMPLE).plans[0].offer == ample


@pytest.mark.sweep
def test_smaller_micro_batch_is_taken_where_the_allocator_cannot_place_a_larger_one():
    # Without expandable segments blocks stay as they were cut, so more memory is reserved than tensors take.
    on, fixed = cluster(card("rtx-3060-12gb", memory_bytes=int(2.2 * GIB))), {"expandable_segments": False}
    where = space(fixed=fixed, **SAMPLE)
    largest = {setup.recipe.method: setup for setup in bounded_setups(where, on)}
    assert any(where.estimate(setup, on) is None for setup in largest.values())
    plans = search(owned(on), fixed=fixed, **SAMPLE).plans
    assert {plan.estimate.recipe.method for plan in plans} == set(largest)
    assert all(plan.estimate.verdict is Verdict.FITS for plan in plans)


def test_cheaper_offer_is_taken_where_its_host_is_large_enough():
    small, ample = offer(FAST, 1.0, host_ram_bytes=64 * GIB), offer(FAST, 2.0, host_ram_bytes=512 * GIB)
    assert {plan.offer for plan in search([rented(FAST, small, ample)], **SAMPLE).plans} == {small}


# Laws

ADAPTERS = {"method": Method.LORA}


@pytest.mark.sweep
@pytest.mark.parametrize("objective", [Objective.COST, Objective.TIME])
@settings(max_examples=4)
@given(one=st.integers(1, 10**6), other=st.integers(1, 10**6))
def test_more_samples_never_take_less_time_or_money(objective: Objective, one: int, other: int):
    less, more = (
        search(offers((1,)), objective=objective, fixed=ADAPTERS, seq_len=256, num_samples=count).plans[0]
        for count in sorted((one, other))
    )
    assert key(less, objective) <= key(more, objective)


@pytest.mark.sweep
@settings(max_examples=4)
@given(st.integers(64, 1024), st.integers(64, 1024))
def test_longer_samples_never_cost_less(one: int, other: int):
    short, long = (search(offers((1,)), fixed=ADAPTERS, seq_len=length).plans[0].usd for length in sorted((one, other)))
    assert short <= long * 1.0001


@settings(max_examples=3)
@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_higher_price_never_makes_the_best_plan_cheaper(one: float, other: float):
    low, high = (search([rented(FAST, offer(FAST, usd))], **SAMPLE).plans[0].usd for usd in sorted((one, other)))
    assert low <= high


def test_another_machine_never_makes_the_best_plan_worse():
    few, many = answer(num_gpus=(1,)), answer()
    assert many.plans[0].usd <= few.plans[0].usd


def test_same_search_gives_the_same_answer_twice():
    first, second = answer(), search(offers(), **SAMPLE)
    assert [plan.estimate.recipe for plan in first.plans] == [plan.estimate.recipe for plan in second.plans]
    assert first.rejected == second.rejected


def test_large_model_is_found_on_cards_that_hold_only_its_shards():
    # Llama 70B: 141 GB of weights on eight cards of 80 GB.
    found = search(owned(cluster(card("a100-sxm4-80gb"), 8)), "llama-3.1-70b", fixed={"method": Method.LORA})
    assert found.plans[0].estimate.recipe.zero_stage == 3


@pytest.mark.parametrize(("ram", "is_said"), [(None, True), (64 * GIB, False)])
def test_offers_that_do_not_say_what_their_hosts_have_are_said_to_be_so(ram, is_said):
    found = search([rented(FAST, offer(FAST, 1.0, host_ram_bytes=ram))], **SAMPLE)
    assert (
        any("host memory is not known for any of these plans, on somebody" in note for note in found.notes) is is_said
    )
