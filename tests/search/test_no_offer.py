"""Where no offer is left: what is said has offers, and nothing that takes fewer changes has."""

from datetime import date
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from laws import law
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.hardware import Offer, Pricing
from vlmplan.search.no_offer import OfferQuery, no_offer_sentence, relaxations
from vlmplan.search.offers import DEFAULT_PRICING, GpuCount, OfferFilter, place_of
from vlmplan.search.prices import with_spot

TODAY = date(2026, 11, 21)
CATALOG = Catalog(shipped_catalog())
KNOWN = [one for one in with_spot(CATALOG.offers) if CATALOG.gpu_by_id(one.gpu_id).has_known_memory]
PROVIDERS = sorted({one.provider for one in KNOWN})
REGIONS = sorted({one.region for one in KNOWN if one.region is not None})
PLACES = [*sorted({place_of(one) for one in KNOWN}, key=str), GpuCount(gpu_id="t4", num_gpus=7)]


def few(values: list) -> st.SearchStrategy[tuple]:
    return st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)


FILTERS = st.builds(
    OfferFilter,
    pricing=few(list(Pricing)),
    providers=few(PROVIDERS),
    regions=few(REGIONS),
    max_usd_per_hour=st.none() | st.floats(0, 3),
    max_price_age_days=st.none() | st.integers(0, 250),
)
QUERIES = st.builds(OfferQuery, places=few(PLACES), offers=FILTERS, num_nodes=st.integers(1, 3), today=st.just(TODAY))


def refusals(offer: Offer, query: OfferQuery) -> set[str]:
    """The options that leave ``offer`` out, each looked at by itself."""
    limits, age = query.offers, offer.age_days(TODAY)
    is_own = offer.pricing is Pricing.OWN
    most_usd, most_days = limits.max_usd_per_hour, limits.max_price_age_days
    left_out = {
        "gpu": bool(query.places) and place_of(offer) not in query.places,
        "pricing": offer.pricing not in (limits.pricing or DEFAULT_PRICING),
        "provider": bool(limits.providers) and offer.provider not in limits.providers,
        "region": bool(limits.regions) and offer.region not in limits.regions and not is_own,
        "max_usd_per_hour": most_usd is not None and offer.usd_per_hour * query.num_nodes > most_usd,
        "max_price_age_days": most_days is not None and not is_own and (age is None or age > most_days),
    }
    return {name for name, is_out in left_out.items() if is_out}


def fewest(query: OfferQuery) -> int:
    """The least number of options that have to change for an offer to be left."""
    return min(len(refusals(one, query)) for one in KNOWN)


@law(QUERIES, quick=20, thorough=150)
def test_what_is_named_has_offers_and_takes_the_fewest_changes(query: OfferQuery):
    assume(not query.admitted(CATALOG.offers))
    ways = relaxations(CATALOG, query)
    assert ways
    assert {len(way.options) for way in ways} == {fewest(query)}
    for way in ways:
        changed = query
        for name, word in way.options.items():
            changed = changed.with_option(name, parsed(name, word))
        assert tuple(changed.admitted(CATALOG.offers)) == way.offers
        assert way.offers


@law(QUERIES, quick=20, thorough=100)
def test_every_set_of_so_few_changes_that_helps_is_found(query: OfferQuery):
    assume(not query.admitted(CATALOG.offers))
    found = {frozenset(way.options) for way in relaxations(CATALOG, query)}
    count = fewest(query)
    assert found == {frozenset(out) for one in KNOWN if len(out := refusals(one, query)) == count}


@law(QUERIES, quick=20, thorough=100)
def test_limits_are_raised_no_further_than_to_the_nearest_offer(query: OfferQuery):
    assume(not query.admitted(CATALOG.offers))
    for name, unit in (("max_usd_per_hour", 0.011), ("max_price_age_days", 1)):
        for way in relaxations(CATALOG, query):
            if list(way.options) == [name] and way.options[name] is not None:
                less = parsed(name, way.options[name]) - unit
                assert less < 0 or not query.with_option(name, less).admitted(CATALOG.offers)


def parsed(name: str, word):
    """The value of an option as the command line reads it."""
    if word is None:
        return None
    return {"pricing": Pricing, "max_usd_per_hour": float}.get(name, lambda value: value)(word)


@pytest.mark.parametrize("count", [1, 2])
def test_vasts_offers_are_found_by_their_pricing(count: int):
    query = OfferQuery(offers=OfferFilter(providers=("vast",)), num_nodes=count, today=TODAY)
    ways = relaxations(CATALOG, query)
    assert [dict(way.options) for way in ways[:2]] == [{"pricing": "marketplace"}, {"pricing": "interruptible"}]
    assert {one.provider for way in ways[:2] for one in way.offers} == {"vast"}
    number = sum(one.provider == "vast" and one.pricing is Pricing.MARKETPLACE for one in KNOWN)
    assert f"with --pricing marketplace there are {number} offers" in no_offer_sentence(CATALOG, query)


def test_where_no_offer_is_known_at_all_it_is_said_how_to_add_one():
    empty: Any = SimpleNamespace(offers=[])
    query = OfferQuery(places=(), offers=OfferFilter(), num_nodes=1, today=TODAY)
    assert relaxations(empty, query) == []
    assert "--catalog" in no_offer_sentence(empty, query)


def test_what_leaves_no_offer_is_named():
    limits = OfferFilter(providers=("vast",), regions=("eastus",), max_usd_per_hour=0.5, max_price_age_days=9)
    query = OfferQuery(places=(GpuCount(gpu_id="t4", num_gpus=7),), offers=limits, num_nodes=1, today=TODAY)
    sentence = no_offer_sentence(CATALOG, query)
    for words in ("--gpu t4:7", "--provider vast", "--region eastus", "--max-usd-per-hour 0.5"):
        assert words in sentence.partition(";")[0]
    assert "--max-price-age-days 9" in sentence
    assert "--pricing on_demand or own (the default)" in sentence


def test_an_option_that_cannot_be_set_to_admit_an_offer_is_left_out():
    """Most offers name no region."""
    query = OfferQuery(offers=OfferFilter(providers=("runpod",), regions=("us-east-1",)), num_nodes=1, today=TODAY)
    ways = relaxations(CATALOG, query)
    assert dict(ways[0].options) == {"region": None}
    assert "without --region there are" in no_offer_sentence(CATALOG, query)


def test_sizes_of_sets_are_tried_one_after_the_other():
    query = OfferQuery(offers=OfferFilter(max_usd_per_hour=0.0, max_price_age_days=0), num_nodes=1, today=TODAY)
    assert fewest(query) == 2
    assert all(set(way.options) in map(set, combinations(query.limits, 2)) for way in relaxations(CATALOG, query))
