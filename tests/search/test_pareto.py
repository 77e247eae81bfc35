"""The front of cost against time: nothing on it is beaten, everything else is, and its members are computed exactly."""

from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws import law
from search_cases import bounded_setups, card, cluster, offer, owned, rented, search, space
from vlmplan.memory.device import Verdict
from vlmplan.recipe.choices import Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.search import Compared, Limits, Objective, Recommendation
from vlmplan.search.pareto import front, front_of, settled
from vlmplan.units import GIB

FAST, SLOW = card("a100-sxm4-80gb"), card("rtx-3060-12gb", memory_bytes=int(1.75 * GIB))
SAMPLE = {"seq_len": 256, "num_samples": 5000}
NUMBERS = st.one_of(st.integers(1, 6).map(float), st.floats(1e-6, 1e6))
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


# The function


@given(POINTS)
def test_no_member_is_beaten_and_whatever_is_no_member_is_beaten_or_stands_for_an_equal(points):
    members = [points[place] for place in front(points)]
    assert not [one for one in members if any(beats(other, one) for other in points)]
    assert all(one in members or any(beats(other, one) for other in members) for one in points)


@given(POINTS)
def test_members_come_fastest_first_each_cheaper_than_the_one_before(points):
    members = [points[place] for place in front(points)]
    assert members == sorted(members)
    assert [usd for _, usd in members] == sorted((usd for _, usd in members), reverse=True)
    assert len({hours for hours, _ in members}) == len({usd for _, usd in members}) == len(members)


@given(POINTS.filter(bool))
def test_the_fastest_and_the_cheapest_are_the_ends(points):
    places = front(points)
    assert points[places[0]][0] == min(hours for hours, _ in points)
    assert points[places[-1]][1] == min(usd for _, usd in points)


@given(POINTS)
def test_of_equal_points_the_first_is_the_member(points):
    assert all(points.index(points[place]) == place for place in front(points))


@given(POINTS, st.randoms(use_true_random=False))
def test_the_order_of_points_changes_nothing(points, random):
    shuffled = list(points)
    random.shuffle(shuffled)
    assert [points[place] for place in front(points)] == [shuffled[place] for place in front(shuffled)]


@given(POINTS)
def test_a_front_is_its_own_front(points):
    members = [points[place] for place in front(points)]
    assert front(members) == list(range(len(members)))


# Computed exactly before it is believed


@dataclass
class Case:
    """A setup that takes ``real`` hours and dollars when it is computed exactly; None: it does not fit then."""

    hours: float | None
    usd: float | None
    real: tuple[float, float] | None
    smaller: "Case | None" = None
    is_exact: bool = False


def exactly(case: Case) -> Case | None:
    if case.real is None:
        return case.smaller
    case.hours, case.usd = case.real
    case.is_exact = True
    return case


REAL = st.one_of(st.none(), st.tuples(NUMBERS, NUMBERS))
CASES = st.lists(
    st.builds(Case, NUMBERS, NUMBERS, REAL, st.one_of(st.none(), st.builds(Case, NUMBERS, NUMBERS, REAL))), max_size=20
)


@law(CASES, quick=25)
def test_members_are_exact_and_nothing_that_is_left_beats_them(cases: list[Case]):
    members, left = settled(cases, exactly)
    assert all(one.is_exact for one in members)
    points = [(one.hours, one.usd) for one in left]
    assert [(one.hours, one.usd) for one in members] == [points[place] for place in front(points)]


@given(CASES)
def test_only_what_did_not_fit_is_gone(cases: list[Case]):
    fitting = {id(one) for one in cases if one.real is not None}
    _, left = settled(cases, exactly)
    assert fitting <= {id(one) for one in left}


def test_the_next_takes_the_place_of_one_that_does_not_fit():
    gone, next_one, beaten = Case(1, 1, None), Case(2, 2, (2, 2)), Case(3, 3, (3, 3))
    members, left = settled([gone, next_one, beaten], exactly)
    assert members == [next_one]
    assert left == [next_one, beaten] or left == [beaten, next_one]
    assert not beaten.is_exact  # nobody asked for it


def test_a_smaller_one_comes_in_the_place_of_one_that_does_not_fit():
    smaller = Case(2, 1, (2, 1))
    members, _ = settled([Case(1, 1, None, smaller), Case(3, 3, (3, 3))], exactly)
    assert members == [smaller]


def test_beyond_the_most_members_are_not_exact_and_are_still_the_front():
    cases = [Case(hours, 10 - hours, (hours, 10 - hours)) for hours in range(1, 6)]
    members, _ = settled(cases, exactly, most=2)
    assert members == cases
    assert [one.is_exact for one in members] == [True, True, False, False, False]


def test_what_has_no_price_or_no_speed_is_on_no_front():
    unpriced, timeless, known = Case(1, None, None), Case(None, 1, None), Case(5, 5, (5, 5))
    assert front_of([unpriced, timeless, known]) == [known]


# Of a search


def machines(num_gpus: tuple[int, ...] = (1, 2, 4)):
    rates = ((FAST, 2.0), (SLOW, 0.25))
    return [rented(gpu, offer(gpu, usd * count, count)) for gpu, usd in rates for count in num_gpus]


@cache
def found_for(objective: Objective) -> Recommendation:
    return search(machines(), objective=objective, **SAMPLE)


@pytest.mark.sweep
def test_evaluations_are_in_the_hours_and_dollars_that_a_search_ranks_by():
    evaluation = Evaluation(batch=4, samples=5000, every=50)
    found = search(machines((1, 2)), objective=Objective.TIME, fixed={"evaluation": evaluation}, **SAMPLE)
    plain = search(machines((1, 2)), objective=Objective.TIME, **SAMPLE)
    for plan in found.plans:
        estimate = plan.estimate
        assert estimate.evaluation_seconds > 0
        steps = estimate.num_steps * estimate.step_seconds
        assert plan.hours * 3600 == pytest.approx(steps + estimate.evaluation_seconds)
        assert plan.cost.training_usd == pytest.approx(plan.hours * plan.usd_per_hour)
    assert found.plans[0].hours > plain.plans[0].hours
    assert [plan.hours for plan in found.plans] == sorted(plan.hours for plan in found.plans)


@pytest.mark.parametrize("objective", Objective)
def test_front_of_a_search_is_exact_and_fits(objective: Objective):
    found = found_for(objective)
    where = space(**SAMPLE)
    assert found.pareto
    for point in found.pareto:
        estimate = where.models.estimator(point.recipe)[0].estimate(point.recipe, point.cluster)
        assert point.is_exact
        assert estimate.verdict is Verdict.FITS
        assert point.hours == pytest.approx(estimate.run_seconds / 3600)
        assert point.usd > point.hours * point.offer.usd_per_hour * point.cluster.num_nodes


@pytest.mark.parametrize("objective", Objective)
def test_front_is_that_of_everything_scored_and_no_plan_beats_it(objective: Objective):
    found = found_for(objective)
    assert list(found.pareto) == front_of(found.scored)
    plans = [(plan.hours, plan.usd) for plan in found.plans]
    assert not [one for one in found.pareto if any(beats(plan, (one.hours, one.usd)) for plan in plans)]


@pytest.mark.parametrize("compares", [Compared.MACHINES, Compared.METHODS])
@pytest.mark.parametrize("objective", Objective)
def test_plans_and_front_are_those_of_a_search_that_looks_at_everything(objective: Objective, compares: Compared):
    found = found_for(objective)
    everything = search(machines(), objective=objective, compares=compares, **SAMPLE)
    assert found.pareto == everything.pareto
    assert [(plan.estimate.recipe, plan.usd) for plan in found.plans] == [
        (plan.estimate.recipe, plan.usd) for plan in everything.plans
    ]
    assert len(everything.scored) >= len(found.scored)
    # By memory all of this small model's setups are close: NCCL takes more than they differ by.
    is_more = compares is Compared.METHODS and objective is not Objective.VRAM
    assert not is_more or len(everything.scored) > len(found.scored)


def least_usd(found: Recommendation) -> dict[tuple[str, int, int], float]:
    """By machine, of all that was scored there."""
    least: dict[tuple[str, int, int], float] = {}
    for one in found.scored:
        machine = (one.cluster.node.gpu.id, one.cluster.num_gpus, one.cluster.num_nodes)
        least[machine] = min(one.usd, least.get(machine, one.usd))
    return least


@pytest.mark.parametrize("objective", Objective)
def test_a_plot_of_machines_has_the_cheapest_setup_of_each(objective: Objective):
    by_machine, by_method = (
        search(machines(), objective=objective, compares=compares, **SAMPLE)
        for compares in (Compared.MACHINES, Compared.METHODS)
    )
    assert least_usd(by_machine) == least_usd(by_method)


def test_front_has_more_than_the_plans_and_both_winners():
    cheap, fast = map(found_for, (Objective.COST, Objective.TIME))
    assert len(cheap.scored) > len(cheap.plans)
    assert cheap.pareto[-1].usd == pytest.approx(cheap.plans[0].usd)
    assert cheap.pareto[0].hours == pytest.approx(fast.plans[0].hours)


def test_front_stays_within_the_limits():
    limit = found_for(Objective.COST).pareto[0].usd * 0.9
    found = search(machines(), limits=Limits(max_usd=limit), **SAMPLE)
    assert all(point.usd <= limit for point in found.scored)
    assert found.pareto


def test_without_prices_there_is_no_front():
    found = search(owned(cluster(FAST)), **SAMPLE)
    assert found.plans
    assert (found.pareto, found.scored) == ((), ())


@pytest.mark.sweep
def test_what_the_allocator_cannot_place_is_on_no_front():
    # Without expandable segments blocks stay as they were cut, so more memory is reserved than tensors take.
    gpu, fixed = SLOW, {"expandable_segments": False, "method": Method.LORA}
    bare = space(fixed=fixed, **SAMPLE)
    fitting = {setup.recipe for setup in bounded_setups(bare, cluster(gpu))}
    failing = {
        recipe
        for recipe in fitting
        if bare.models.estimator(recipe)[0].estimate(recipe, cluster(gpu)).verdict is not Verdict.FITS
    }
    found = search([rented(gpu, offer(gpu, 1.0))], fixed=fixed, **SAMPLE)
    assert failing
    assert not failing & {point.recipe for point in found.pareto}
    assert all(point.is_exact for point in found.pareto)
