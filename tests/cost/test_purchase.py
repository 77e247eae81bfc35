"""Which offers a machine of one's own is compared with, and what is advised."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_cases import TODAY, card, offer
from vlmplan.cost.owning import WEEKS_PER_MONTH, OwnMachine
from vlmplan.cost.purchase import Purchase, comparable_offers, equivalent_offers
from vlmplan.errors import InputError
from vlmplan.hardware import Pricing

GPU, OTHER, LARGE = card("rtx-5090"), card("rtx-4090"), card("a100-sxm4-80gb")
BOX = OwnMachine(cards_usd=4000, host_usd=2000, watts=1500, usd_per_kwh=0.2, lifetime_months=30)


def purchase(rent_usd_per_hour: float = 1.3, hours_per_week: float = 20.0) -> Purchase:
    rents = (offer(GPU, rent_usd_per_hour, 2),)
    return Purchase(gpu=GPU, num_gpus=2, machine=BOX, hours_per_week=hours_per_week, rents=rents)


def test_equivalent_is_the_same_count_on_terms_that_last_the_cheapest_of_each():
    on_demand, dear = offer(GPU, 2.0, 2), offer(GPU, 3.0, 2)
    community = offer(GPU, 1.5, 2, pricing=Pricing.COMMUNITY)
    others = [
        offer(GPU, 0.1, 1),
        offer(GPU, 0.1, 2, pricing=Pricing.INTERRUPTIBLE),
        offer(GPU, 0.1, 2, pricing=Pricing.OWN),
    ]
    assert equivalent_offers([dear, *others, on_demand, community], 2, TODAY) == [community, on_demand]


def test_old_price_comes_after_current_ones():
    old = offer(GPU, 0.1, 2, pricing=Pricing.COMMUNITY, as_of=TODAY - timedelta(days=1000))
    assert equivalent_offers([old, offer(GPU, 9.0, 2)], 2, TODAY)[1] == old


def test_comparable_is_as_much_memory_in_all_and_not_much_more():
    gpus = {gpu.id: gpu for gpu in (GPU, OTHER, LARGE)}
    three, too_small, too_large = offer(OTHER, 1.0, 3), offer(OTHER, 0.1, 2), offer(LARGE, 0.1, 2)
    enough = offer(LARGE, 2.0, 1)
    assert GPU.memory_bytes is not None
    wanted = 2 * GPU.memory_bytes
    found = comparable_offers(
        [too_small, too_large, enough, replace(three, usd_per_hour=5.0), three], gpus, wanted, TODAY
    )
    assert found == [three, enough]


@given(st.floats(0.31, 20), st.floats(0.1, 168))
def test_advice_follows_the_cheaper_month(rent: float, hours: float):
    found = purchase(rent, hours)
    buys = BOX.usd_per_month(hours * WEEKS_PER_MONTH) < rent * hours * WEEKS_PER_MONTH
    assert found.advice.startswith("buy:" if buys else "rent:")
    assert found.pays is buys


def test_advice_names_the_hours_at_which_it_turns():
    found = purchase()
    turn = found.break_even(found.rents[0]).hours_per_week
    assert f"from {turn:.0f} hours a week on" in found.advice
    assert purchase(hours_per_week=turn + 1).pays
    assert not purchase(hours_per_week=turn - 1).pays
    assert "at no use" in purchase(0.25).advice


@pytest.mark.parametrize("hours", [0.0, -1.0, 168.1, float("nan")])
def test_a_week_has_168_hours(hours: float):
    with pytest.raises(InputError, match="--hours-per-week"):
        purchase(hours_per_week=hours)


@pytest.mark.parametrize(
    ("rent", "hours", "earned"), [(19.6, 168, "9.1 days"), (4.4, 84, "3 months"), (3.2, 84, "4 months")]
)
def test_advice_says_when_the_price_is_earned(rent: float, hours: float, earned: str):
    """The resale brings back 1,800 of 6,000 usd, an hour of use saves the rent less 0.30 usd of electricity."""
    days = 4200 / (rent - 0.3) / (hours / 7)
    assert earned == (f"{days:.1f} days" if days < 60 else f"{days / (365.25 / 12):.0f} months")
    assert purchase(rent, hours).advice.endswith(f"the price is earned in {earned}")
