"""What is known of prices by provider and by GPU, and which lists are too old to be shipped."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_cases import TODAY, card, offer
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.catalog.plausibility import BAND_FACTOR, bands, implausible
from vlmplan.catalog.price_lists import known_prices, price_lists, spread, too_old_to_ship
from vlmplan.hardware import Pricing

GPU = card("a100-sxm4-80gb")


def seen(days_ago: int, provider: str = "somebody"):
    return offer(GPU, 2.0, provider=provider, as_of=TODAY - timedelta(days=days_ago))


def test_list_is_as_old_as_its_newest_price_and_the_newest_list_comes_first():
    lists = price_lists(
        [seen(9, "slow"), seen(90, "slow"), seen(3, "quick"), offer(GPU, 1.0, provider="z", as_of=None)]
    )
    assert [(each.provider, each.newest.age_days(TODAY)) for each in lists] == [("quick", 3), ("slow", 9), ("z", None)]


def test_a_price_without_a_day_is_not_the_newest_of_its_list():
    (found,) = price_lists([offer(GPU, 1.0, as_of=None), offer(GPU, 2.0, as_of=TODAY), offer(GPU, 3.0, as_of=None)])
    assert found.newest.as_of == TODAY


def test_lists_and_spreads_are_of_the_gpus_and_providers_that_were_named():
    catalog = Catalog(shipped_catalog())
    lists, spreads = known_prices(catalog, ["h100", "sxm"], ["runpod"])
    assert [each.provider for each in lists] == ["runpod"]
    assert [each.gpu_id for each in spreads] == ["h100-sxm"]
    assert {gpu_id for each in lists for gpu_id in each.gpu_ids} == {"h100-sxm"}


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 8)), min_size=1, max_size=9))
def test_spread_holds_every_price_of_a_gpu(machines: list[tuple[float, int]]):
    found = spread(GPU.id, [offer(GPU, usd, count) for usd, count in machines])
    assert found is not None
    assert found.least_usd <= found.median_usd <= found.most_usd
    each = [usd / count for usd, count in machines]
    assert (found.least_usd, found.most_usd, found.num_offers) == (min(each), max(each), len(machines))


def test_own_machine_is_no_part_of_a_spread_and_no_list_to_ship():
    own = offer(GPU, 0.1, pricing=Pricing.OWN, as_of=None)
    assert spread(GPU.id, [own]) is None
    assert too_old_to_ship([own], TODAY) == []


@pytest.mark.parametrize(("days_ago", "is_too_old"), [(0, False), (30, False), (31, True)])
def test_release_fails_on_a_list_older_than_30_days(days_ago: int, is_too_old: bool):
    sentences = too_old_to_ship([seen(days_ago), seen(1, "another")], TODAY)
    assert len(sentences) == is_too_old
    if is_too_old:
        assert sentences[0].startswith("the list of somebody is of ")


def test_list_without_a_day_is_not_shipped():
    assert too_old_to_ship([offer(GPU, 1.0, as_of=None)], TODAY) == ["the list of somebody has no day"]


def test_shipped_lists_pass_on_their_own_day_and_fail_when_they_are_31_days_older():
    offers = Catalog(shipped_catalog()).offers
    lists = price_lists(offers)
    newest = max(each.newest.as_of or date.min for each in lists)
    oldest = min(each.newest.as_of or date.min for each in lists)
    assert too_old_to_ship(offers, oldest + timedelta(days=30)) == []
    assert len(too_old_to_ship(offers, newest + timedelta(days=31))) == len(lists)


@given(st.floats(0.01, 100), st.floats(1, 10), st.integers(1, 8))
def test_every_price_of_the_lists_is_plausible_and_none_far_outside_is(usd: float, factor: float, count: int):
    known = bands([offer(GPU, usd), offer(GPU, usd * factor)])

    def why(price: float) -> str | None:
        return implausible({"gpu": GPU.id, "num_gpus": count, "usd_per_hour": price * count}, known)

    assert why(usd) is None
    assert why(usd * factor) is None
    assert why(usd / BAND_FACTOR / 1.01) is not None
    assert why(usd * factor * BAND_FACTOR * 1.01) is not None
