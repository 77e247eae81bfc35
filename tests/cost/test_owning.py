"""Buying against renting: where two straight lines cross."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.cost.owning import (
    HOURS_PER_MONTH,
    POWER_SUPPLY_EFFICIENCY,
    WEEKS_PER_MONTH,
    OwnMachine,
    break_even,
    own_usd_per_hour,
    wall_watts,
)
from vlmplan.errors import InputError

BOX = OwnMachine(cards_usd=4000, host_usd=2000, watts=1500, usd_per_kwh=0.2, lifetime_months=30, resale_fraction=0.25)


def test_month_of_owning_is_what_is_lost_by_month_and_electricity_by_hour():
    assert BOX.usd_per_month(70) == (4000 + 2000) * 0.75 / 30 + 1.5 * 0.2 * 70


def test_hour_of_owning_is_the_month_over_its_hours():
    assert BOX.usd_per_hour(70) == pytest.approx(BOX.usd_per_month(70) / 70)
    assert BOX.usd_per_hour(0) == math.inf


def test_purchase_that_keeps_its_price_costs_only_electricity():
    found = own_usd_per_hour(
        watts=500, usd_per_kwh=0.3, price_usd=9999, resale_fraction=1, lifetime_months=1, hours_per_month=1
    )
    assert found == 0.5 * 0.3


def test_the_wall_gives_more_than_the_parts_draw():
    assert wall_watts(num_gpus=3, gpu_watts=450, host_watts=150) == (3 * 450 + 150) / POWER_SUPPLY_EFFICIENCY


def test_hours_until_the_price_is_earned():
    found = break_even(BOX, rent_usd_per_hour=1.3, hours_per_month=200)
    assert found.hours_in_all == pytest.approx((4000 + 2000) * 0.75 / (1.3 - 1.5 * 0.2))
    assert found.hours_per_month == pytest.approx(found.hours_in_all / 30)
    assert found.hours_per_week == pytest.approx(found.hours_in_all / 30 / WEEKS_PER_MONTH)
    assert found.months == pytest.approx(found.hours_in_all / 200)


@given(rent=st.floats(0.31, 50), hours=st.floats(0, HOURS_PER_MONTH))
def test_buying_is_cheaper_from_the_break_even_on_and_not_before(rent: float, hours: float):
    found = break_even(BOX, rent_usd_per_hour=rent, hours_per_month=hours)
    saves = BOX.usd_per_month(hours) < rent * hours
    assert saves is (found.hours_per_month is not None and hours > found.hours_per_month)


@given(rent=st.floats(0.5, 50))
def test_at_the_break_even_both_cost_the_same(rent: float):
    hours = break_even(BOX, rent_usd_per_hour=rent, hours_per_month=1).hours_in_all
    assert hours is not None
    assert BOX.usd_per_month(hours / 30) == pytest.approx(rent * hours / 30)


@pytest.mark.parametrize("rent", [0.0, 0.2, 0.3])
def test_renting_for_no_more_than_electricity_is_never_beaten(rent: float):
    found = break_even(BOX, rent_usd_per_hour=rent, hours_per_month=100)
    assert (found.hours_in_all, found.hours_per_month, found.months) == (None, None, None)


def test_break_even_after_the_last_month_is_none():
    found = break_even(BOX, rent_usd_per_hour=1.3, hours_per_month=10)
    assert found.hours_in_all is not None
    assert found.months is None


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"cards_usd": -1}, "--price"),
        ({"host_usd": math.nan}, "--host-usd"),
        ({"watts": -5}, "--watts-host"),
        ({"usd_per_kwh": math.inf}, "--usd-per-kwh"),
        ({"lifetime_months": 0}, "--months"),
        ({"resale_fraction": 1.5}, "--resale-fraction"),
    ],
)
def test_impossible_purchase_is_refused_by_the_name_of_its_option(change: dict[str, float], option: str):
    fields = {"cards_usd": 1.0, "host_usd": 1.0, "watts": 1.0} | change
    with pytest.raises(InputError, match=option):
        OwnMachine(**fields)
