"""Which machines a search looks at: offers that are admitted, named cards, this machine."""

from dataclasses import replace
from datetime import date, timedelta

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planned import shipped_gpus
from search_cases import TODAY, card, cluster, offer
from vlmplan.catalog import Catalog, load_catalog, shipped_catalog
from vlmplan.errors import DoesNotFitError, InputError, UnknownNameError
from vlmplan.gpu_choice import GpuChoice, parse_gpu_choice
from vlmplan.hardware import PRICE_CURRENT_DAYS, Offer, Pricing, cheapest
from vlmplan.request import parse, requested_cluster
from vlmplan.search.clusters import Candidate, OfferFilter, candidates, offer_ladder, taken_host_bytes
from vlmplan.units import GIB

SHIPPED = Catalog(shipped_catalog())
GPU = card("rtx-4090")


def found(*names: str, offers: OfferFilter | None = None, num_nodes: int = 1, host_bytes=None) -> list[Candidate]:
    choices = [parse_gpu_choice(name) for name in names]
    terms = {"offers": offers, "num_nodes": num_nodes, "host_bytes": host_bytes}
    return candidates(SHIPPED, choices=choices, today=TODAY, **terms)[0]


def counts(candidates_found: list[Candidate]) -> list[int]:
    return [candidate.cluster.node.num_gpus for candidate in candidates_found]


# The whole catalog


def test_every_card_and_count_on_offer_is_looked_at_once():
    offered = {(one.gpu_id, one.num_gpus) for one in SHIPPED.offers if one.pricing in (Pricing.ON_DEMAND, Pricing.OWN)}
    places = [(one.cluster.node.gpu.id, one.cluster.node.num_gpus) for one in found()]
    assert len(set(places)) == len(places)
    assert set(places) == {place for place in offered if SHIPPED.gpu_by_id(place[0]).has_known_memory}


def test_each_machine_comes_with_offers_of_it_and_the_hosts_memory_of_the_first():
    for candidate in found():
        node = candidate.cluster.node
        assert all((one.gpu_id, one.num_gpus) == (node.gpu.id, node.num_gpus) for one in candidate.offers)
        assert node.host_ram_bytes == candidate.offers[0].host_ram_bytes


def test_interruptible_and_marketplace_offers_count_only_where_they_are_asked_for():
    assert {one.pricing for candidate in found() for one in candidate.offers} <= {Pricing.ON_DEMAND, Pricing.OWN}
    spot = found(offers=OfferFilter(pricing=(Pricing.INTERRUPTIBLE,)))
    assert {one.pricing for candidate in spot for one in candidate.offers} == {Pricing.INTERRUPTIBLE}


def test_spot_price_is_that_of_a_machine_that_may_be_taken_away():
    spot = {
        (one.gpu_id, one.num_gpus, one.provider, one.spot_usd_per_hour)
        for one in SHIPPED.offers
        if one.spot_usd_per_hour is not None
    }
    found_prices = {
        (one.gpu_id, one.num_gpus, one.provider, one.usd_per_hour)
        for candidate in found(offers=OfferFilter(pricing=(Pricing.INTERRUPTIBLE,)))
        for one in candidate.offers
    }
    assert len(found_prices & spot) > 40


def test_machine_that_stays_and_one_that_may_be_taken_away_are_two():
    both = found("v100-sxm2-16gb:8", offers=OfferFilter(pricing=(Pricing.INTERRUPTIBLE, Pricing.ON_DEMAND)))
    assert [{one.pricing for one in candidate.offers} for candidate in both] == [
        {Pricing.ON_DEMAND},
        {Pricing.INTERRUPTIBLE},
    ]
    assert both[1].offers[0].usd_per_hour == both[0].offers[0].spot_usd_per_hour


def test_limit_on_the_price_of_spot_machines_is_on_the_spot_price():
    wanted = OfferFilter(pricing=(Pricing.INTERRUPTIBLE,), max_usd_per_hour=1.0)
    (machine,) = found("v100-sxm2-16gb:8", offers=wanted)
    assert machine.offers[0].usd_per_hour <= 1.0


def test_prices_older_than_the_limit_are_left_out_and_so_are_undated_ones():
    ages = [one.age_days(TODAY) for candidate in found() for one in candidate.offers]
    limit = sorted(ages)[len(ages) // 2]
    recent = [one for candidate in found(offers=OfferFilter(max_price_age_days=limit)) for one in candidate.offers]
    assert 0 < len(recent) < len(ages)
    assert max(one.age_days(TODAY) for one in recent) == limit
    with pytest.raises(DoesNotFitError, match="age"):
        found(offers=OfferFilter(max_price_age_days=0))
    with pytest.raises(InputError, match="--max-price-age-days is -1"):
        OfferFilter(max_price_age_days=-1)


def test_only_named_providers_count():
    some = found(offers=OfferFilter(providers=("runpod", "lambda")))
    assert {one.provider for candidate in some for one in candidate.offers} <= {"runpod", "lambda"}


def test_unknown_provider_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown provider 'runpot'; did you mean 'runpod'"):
        found(offers=OfferFilter(providers=("runpot",)))


def test_only_named_regions_count_and_machines_of_ones_own():
    some = found(offers=OfferFilter(regions=("us-east-1", "eastus")))
    assert {one.region for candidate in some for one in candidate.offers} == {"us-east-1", "eastus"}
    own, rented = offer(GPU, 0.1, pricing=Pricing.OWN), offer(GPU, 0.1)
    wanted = OfferFilter(regions=("eastus",))
    assert (wanted.admits(own, 1), wanted.admits(rented, 1)) == (True, False)


def test_a_named_card_that_nobody_offers_in_a_region_is_no_answer():
    assert found("rtx-4090:7")  # without a price
    with pytest.raises(DoesNotFitError, match="region"):
        found("rtx-4090:7", offers=OfferFilter(regions=("francecentral",)))


def test_unknown_region_is_named_with_the_nearest_and_all_there_are():
    with pytest.raises(UnknownNameError, match=r"unknown region 'us-east'; did you mean .*'us-east-1'.*westeurope"):
        found(offers=OfferFilter(regions=("us-east",)))


@given(st.floats(0.2, 40), st.integers(1, 5))
def test_hourly_limit_is_for_all_machines_together(usd: float, num_nodes: int):
    within = found(offers=OfferFilter(max_usd_per_hour=usd * num_nodes), num_nodes=num_nodes)
    assert all(one.usd_per_hour <= usd * (1 + 1e-9) for candidate in within for one in candidate.offers)
    assert all(candidate.cluster.num_nodes == num_nodes for candidate in within)


def test_nothing_left_is_said_and_not_searched():
    with pytest.raises(DoesNotFitError, match="no offer"):
        found(offers=OfferFilter(max_usd_per_hour=0.0))


@pytest.mark.parametrize("usd", [-0.01, float("nan")])
def test_hourly_limits_below_nothing_are_refused(usd: float):
    with pytest.raises(InputError, match="--max-usd-per-hour"):
        OfferFilter(max_usd_per_hour=usd)


# Named cards


def test_card_without_a_count_is_the_one_card_that_estimate_takes_it_for():
    for name in (gpu_id for gpu_id, gpu in shipped_gpus().items() if gpu.has_known_memory):
        cluster_of_estimate, _ = requested_cluster(parse({"gpu": name}).hardware, SHIPPED)
        nodes = {(one.cluster.node.gpu.id, one.cluster.node.num_gpus) for one in found(name)}
        assert nodes == {(cluster_of_estimate.node.gpu.id, cluster_of_estimate.node.num_gpus)} == {(name, 1)}


def test_card_with_a_count_is_looked_at_in_that():
    assert counts(found("rtx-4090:3")) == [3]
    assert counts(found("rtx-4090:2", "t4:1")) == [2, 1]


def test_what_a_name_without_a_count_stands_for_is_said():
    for names, said in ((["rtx-4090", "t4:2"], True), (["rtx-4090:1"], False), (["cpu"], False)):
        choices = [parse_gpu_choice(name) for name in names]
        _, notes = candidates(SHIPPED, choices=choices, today=TODAY)
        assert any("--gpu rtx-4090 is one card" in note for note in notes) is said


def test_named_card_that_no_offer_is_left_of_is_said_beside_those_that_have_one():
    choices = [parse_gpu_choice("l4:1"), parse_gpu_choice("rtx-4090:7")]
    left, notes = candidates(SHIPPED, choices=choices, offers=OfferFilter(providers=("gcp",)), today=TODAY)
    assert {one.cluster.node.gpu.id for one in left} == {"l4"}
    assert any("no offer of the catalog is left under --gpu rtx-4090:7" in note for note in notes)


# A machine of the user's own


def test_stated_host_memory_is_that_of_a_machine_of_the_users_own():
    (machine,) = found("rtx-4090:2", host_bytes=48 * GIB)
    assert machine.offers == ()
    assert machine.with_host_bytes(48 * GIB) == (machine.cluster, None)
    assert machine.with_host_bytes(48 * GIB + 1) is None
    assert machine.host_text == "--host-ram says 48.00 GiB"
    (rented,) = found("rtx-4090:2")
    assert rented.offers


def test_stated_host_memory_takes_the_place_of_this_machines():
    (machine,) = found("cpu:2", host_bytes=6 * GIB)
    assert machine.cluster.node.host_ram_bytes == 6 * GIB
    assert machine.cluster.node.gpu.memory_bytes == 3 * GIB


def test_a_machine_of_ones_own_with_a_price_keeps_it(tmp_path):
    own = {"gpu": "rtx-4090", "num_gpus": 1, "provider": "desk", "usd_per_hour": 0.07, "pricing": "own"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"offers": [own]}))
    terms = {"choices": [parse_gpu_choice("rtx-4090:1")], "today": TODAY, "host_bytes": 96 * GIB}
    (machine,), _ = candidates(load_catalog([tmp_path / "own.yaml"], project_dir=tmp_path), **terms)
    assert [(one.provider, one.usd_per_hour, one.host_ram_bytes) for one in machine.offers] == [
        ("desk", 0.07, 96 * GIB)
    ]


def test_a_host_that_is_too_small_is_said_to_be_whose():
    assert found("cpu")[0].host_text.startswith("this machine has ")
    rented = Candidate(cluster=cluster(GPU), offers=(offer(GPU, 1.0, host_ram_bytes=24 * GIB, sku="box"),))
    assert rented.host_text == f"{rented.offers[0].provider}'s box has 24.00 GiB"
    larger = offer(GPU, 2.0, host_ram_bytes=31 * GIB, sku="large")
    ladder = rented._replace(offers=(*rented.offers, larger))
    assert ladder.host_text == f"{larger.provider}'s large has 31.00 GiB, the most that is offered"
    silent = Candidate(cluster=cluster(GPU), offers=(offer(GPU, 1.0),))
    assert silent.host_text.endswith("1 x rtx-4090 is taken to have 23.99 GiB, since nobody says what it has")


def test_card_that_nobody_offers_is_looked_at_without_a_price():
    (candidate,) = found("rtx-4090:7")
    assert candidate.offers == ()
    assert candidate.cluster.node.host_ram_bytes is None


def test_named_card_has_the_prices_of_its_count():
    (candidate,) = found("h100-sxm:8")
    assert candidate.offers
    assert {(one.gpu_id, one.num_gpus) for one in candidate.offers} == {("h100-sxm", 8)}


@pytest.mark.parametrize(
    "offers",
    [
        OfferFilter(max_usd_per_hour=0.01),
        OfferFilter(providers=("vultr",)),
        OfferFilter(pricing=(Pricing.OWN,)),
    ],
)
def test_named_card_that_no_admitted_offer_has_is_no_answer_to_who_asks_for_offers(offers: OfferFilter):
    with pytest.raises(DoesNotFitError, match="no offer"):
        found("h100-sxm:8", offers=offers)


def test_several_nodes_are_equal():
    (candidate,) = found("a100-sxm4-80gb:8", num_nodes=3)
    assert candidate.cluster.num_gpus == 3 * 8


def test_cpu_is_this_machine_as_often_as_asked_and_stands_for_no_offer():
    (candidate,) = found("cpu:4", offers=OfferFilter(max_usd_per_hour=1.0))
    assert candidate.cluster.node.gpu.id == "cpu"
    assert candidate.cluster.num_gpus == 4
    assert candidate.offers == ()
    _, notes = candidates(SHIPPED, choices=[GpuChoice(name="cpu")], today=TODAY)
    assert any("whose speed is not known" in note for note in notes)


def test_unknown_card_is_an_error_and_not_left_out():
    with pytest.raises(UnknownNameError, match="rtx-4091"):
        found("rtx-4090", "rtx-4091")


# Ladders of host memory

CARD = GPU


def taken(one: Offer) -> int:
    return taken_host_bytes(one.node(CARD))


RAMS = st.one_of(st.none(), st.integers(1, 64).map(lambda size: size * 16 * GIB))
OFFERS = st.lists(
    st.builds(
        lambda usd, ram, age: offer(GPU, usd, host_ram_bytes=ram, as_of=TODAY - timedelta(days=age)),
        st.floats(0.1, 50),
        RAMS,
        st.sampled_from([3, PRICE_CURRENT_DAYS + 1]),
    ),
    max_size=12,
)


@given(OFFERS)
def test_each_rung_has_more_host_memory_than_the_one_before(offers: list):
    sizes = [taken(rung) for rung in offer_ladder(offers, CARD, TODAY)]
    assert sizes == sorted(set(sizes))


@given(OFFERS, st.integers(1, 1200))
def test_machine_taken_is_the_cheapest_offer_whose_host_is_large_enough(offers: list, needed_gib: int):
    needed = needed_gib * GIB
    ladder = offer_ladder(offers, CARD, TODAY)
    machine = Candidate(cluster=cluster(GPU), offers=ladder).with_host_bytes(needed) if ladder else None
    enough = [one for one in offers if taken(one) >= needed]
    assert (None if machine is None else machine[1]) == cheapest(enough, TODAY)


def test_machine_of_ones_own_needs_no_offer_but_enough_memory_where_that_is_known():
    unknown, known = Candidate(cluster=cluster(GPU)), Candidate(cluster=cluster(GPU, host_ram_bytes=32 * GIB))
    assert unknown.with_host_bytes(10**15) == (unknown.cluster, None)
    assert known.with_host_bytes(32 * GIB) == (known.cluster, None)
    assert known.with_host_bytes(32 * GIB + 1) is None
    assert known.largest.host_ram_bytes == 32 * GIB


def test_offer_that_says_no_host_memory_is_taken_to_have_as_much_as_its_gpus():
    silent = Candidate(cluster=cluster(GPU), offers=(offer(GPU, 1.0),))
    assert silent.with_host_bytes(CARD.memory_bytes) is not None
    assert silent.with_host_bytes(max(CARD.memory_bytes, 16 * GIB) + 1) is None


def test_most_offers_of_the_catalog_have_as_much_host_memory_as_that():
    catalog = Catalog(shipped_catalog(), [])
    known = [one for one in catalog.offers if one.host_ram_bytes is not None]
    enough = [one for one in known if one.host_ram_bytes >= one.num_gpus * catalog.gpu_by_id(one.gpu_id).memory_bytes]
    assert len(enough) / len(known) == pytest.approx(0.97, abs=0.005)


def test_rented_machine_takes_the_host_memory_of_its_offer():
    small, large = offer(GPU, 1.0, host_ram_bytes=32 * GIB), offer(GPU, 2.0, host_ram_bytes=64 * GIB)
    candidate = Candidate(cluster=cluster(GPU, num_nodes=2), offers=(small, large))
    machine, taken = candidate.with_host_bytes(48 * GIB)
    assert taken == large
    assert (machine.node.host_ram_bytes, machine.num_nodes) == (64 * GIB, 2)
    assert candidate.with_host_bytes(65 * GIB) is None


def test_old_price_does_not_lead_the_ladder():
    old = offer(GPU, 0.1, as_of=date(2020, 1, 1), host_ram_bytes=32 * GIB)
    current = offer(GPU, 1.0, host_ram_bytes=32 * GIB)
    assert offer_ladder([old, current], CARD, TODAY)[0] == current


# Going on from a checkpoint


def test_a_machine_that_may_be_taken_away_has_room_for_going_on():
    small, large = (offer(GPU, usd, host_ram_bytes=ram * GIB) for usd, ram in ((1.0, 60), (2.0, 240)))
    for pricing, taken in ((Pricing.ON_DEMAND, small), (Pricing.INTERRUPTIBLE, large)):
        ladder = tuple(replace(one, pricing=pricing) for one in (small, large))
        candidate = Candidate(cluster=cluster(GPU), offers=ladder)
        machine = candidate.with_host_bytes(50 * GIB, 100 * GIB)
        assert machine is not None
        assert machine[1] is not None
        assert machine[1].usd_per_hour == taken.usd_per_hour
        assert candidate.with_host_bytes(50 * GIB, 300 * GIB) is None or pricing is Pricing.ON_DEMAND
