"""Fetched prices: which card an item has, what is kept of many items, and how the file takes its place."""

import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuhunt_items import Item
from vlmplan.catalog import Catalog, load_catalog, shipped_catalog
from vlmplan.catalog.card_names import CardNames
from vlmplan.catalog.places import refreshed_catalog_path, user_catalog_path
from vlmplan.catalog.price_listing import Listing, ProviderAnswer
from vlmplan.catalog.price_source import listing_of
from vlmplan.catalog.refresh import Refreshed, offers_before, refreshed, write_refreshed
from vlmplan.errors import InputError
from vlmplan.hardware import Pricing
from vlmplan.units import GIB

TODAY = date(2026, 11, 21)
SHIPPED = Catalog(shipped_catalog())


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CONFIG_HOME", "APPDATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)


def fetched(*items: Item, provider: str = "aws", as_of: date | None = None) -> Refreshed:
    return listed(*(listing_of(replace(item, provider=provider), "gpuhunt") for item in items), as_of=as_of)


def listed(*listings: Listing, as_of: date | None = None) -> Refreshed:
    answer = ProviderAnswer(provider=listings[0].provider, listings=listings, as_of=as_of)
    return refreshed([answer], SHIPPED, today=TODAY, before=offers_before())


def l40s(usd: float, provider: str = "aws", **changes: Any) -> Listing:
    """One L40S, which shipped lists have for $0.50 to $3.50 an hour."""
    known: dict[str, Any] = {"product": "m", "source": "https://p.example", "card": "L40S", "card_memory_gib": 48.0}
    return Listing(provider=provider, usd_per_hour=usd, **(known | {"num_gpus": 1} | changes))


@pytest.mark.parametrize(
    ("gpu_name", "gpu_memory", "product", "gpu_id"),
    [
        ("L40S", 48, "any", "l40s"),  # the driver says 45.0: error correction
        ("l40s", 44.99, "any", "l40s"),
        ("RTX4090", 24, "any", "rtx-4090"),
        ("RTX4090", 48, "any", None),  # a modified card
        ("RTX4060Ti", 16, "any", "rtx-4060-ti-16gb"),
        ("B300", 270, "any", "b300"),
        ("A100", 80, "any", None),  # SXM or PCIe
        ("A100", 80, "gpu_8x_a100_80gb_sxm4", "a100-sxm4-80gb"),
        ("A100", 40, "gpu_8x_a100", None),
        ("A100", 80, "NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),  # the driver's name
        ("H100", 80, "NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100", 80, "p5.48xlarge", "h100-sxm"),  # a product of the shipped catalog
        ("A100", 40, "p4d.24xlarge", "a100-sxm4-40gb"),
        ("MI250X", 128, "any", None),  # whole cards, of which the catalog has halves
        ("Gaudi3", 128, "any", None),
        ("L40S", None, "any", None),
    ],
)
def test_card_is_told_by_name_memory_and_product_or_not_at_all(
    gpu_name: str, gpu_memory: float | None, product: str, gpu_id: str | None
):
    item = Item(instance_name=product, gpu_name=gpu_name, gpu_memory=gpu_memory)
    machine = CardNames(SHIPPED).machine(listing_of(item, "gpuhunt"))
    assert (None if machine is None else machine.gpu_id) == gpu_id


def test_offer_has_the_items_numbers_and_says_when_and_where_from():
    found = fetched(Item(gpu_count=4, price=7.5, memory=384.0, cpu=48))
    assert found.offers == (
        {
            "gpu": "l40s",
            "num_gpus": 4,
            "provider": "aws",
            "sku": "some.machine",
            "region": "us-east-1",
            "pricing": "on_demand",
            "usd_per_hour": 7.5,
            "vcpus": 48,
            "host_ram_gib": 384.0,
            "as_of": "2026-11-21",
            "as_of_basis": "exact",
            "source": "gpuhunt",
            "currency": "USD",
            "exchange_rate": 1.0,
        },
    )
    assert fetched(Item(), as_of=date(2026, 11, 3)).offers[0]["as_of"] == "2026-11-03"


@pytest.mark.parametrize(
    ("item", "provider", "pricing"),
    [
        (Item(), "aws", Pricing.ON_DEMAND),
        (Item(spot=True), "aws", Pricing.INTERRUPTIBLE),
        (Item(), "lium", Pricing.MARKETPLACE),
    ],
)
def test_terms_follow_from_provider_and_item(item: Item, provider: str, pricing: Pricing):
    assert fetched(item, provider=provider).offers[0]["pricing"] == pricing.value


def test_of_equal_machines_the_cheapest_stay_and_dearer_ones_with_more_memory():
    items = [
        Item(price=3.0, memory=64),
        Item(price=2.0, memory=32),
        Item(price=2.5, memory=32),
        Item(price=9.0, memory=64),
        Item(price=1.0, memory=16, spot=True),
    ]
    kept = {(offer["usd_per_hour"], offer["host_ram_gib"]) for offer in fetched(*items).offers}
    assert kept == {(2.0, 32), (3.0, 64), (1.0, 16)}


def test_unknown_cards_are_counted_and_named():
    found = fetched(Item(), Item(gpu_name="Gaudi3", gpu_memory=128.0), Item(gpu_name="A100", gpu_memory=80.0))
    assert len(found.offers) == 1
    assert found.lines[-1].endswith(": A100 80 GB (1), Gaudi3 128 GB (1)")


@pytest.mark.parametrize("change", [{"gpu_count": 0}, {"price": 0.0}, {"price": float("nan")}])
def test_machines_without_gpus_or_price_are_no_offers(change: dict[str, Any]):
    found = fetched(Item(**change))
    assert found.offers == ()
    assert found.lines == ("aws: nothing; its old prices stay",)


def test_what_fails_is_said_and_the_rest_counts():
    answers = [
        ProviderAnswer(provider="vast", failure="is on fire"),
        ProviderAnswer(provider="lambda", listings=[l40s(1.5, "lambda")]),
    ]
    found = refreshed(answers, SHIPPED, today=TODAY, before=())
    assert found.lines[:2] == ("vast: is on fire; its old prices stay", "lambda: 1 offer")
    assert found.failure == "is on fire"
    assert len(found.offers) == 1


def test_names_from_elsewhere_do_nothing_to_a_terminal():
    found = fetched(Item(instance_name="\x1b[31mred\n"), Item(gpu_name="\x1b[2Jx", gpu_memory=1.0))
    assert found.offers[0]["sku"] == "[31mred"
    assert "\x1b" not in found.lines[-1]


def test_newer_list_of_a_provider_takes_the_place_of_its_shipped_one_and_of_no_other():
    write_refreshed(fetched(Item(gpu_count=4, price=7.5, memory=384.0)).offers)
    catalog = load_catalog()
    (offer,) = [offer for offer in catalog.offers if offer.provider == "aws"]
    assert (offer.num_gpus, offer.usd_per_hour, offer.host_ram_bytes) == (4, 7.5, 384 * GIB)
    assert offer.age_days(TODAY) == 0

    def others(catalog: Catalog) -> set[object]:
        return {offer for offer in catalog.offers if offer.provider != "aws"}

    assert others(catalog) == others(SHIPPED)


def test_shipped_list_that_is_newer_than_the_fetched_one_counts():
    shipped = [offer for offer in SHIPPED.offers if offer.provider == "aws"]
    newest = max(offer.as_of for offer in shipped if offer.as_of is not None)
    write_refreshed(fetched(Item(price=7.5), as_of=newest - timedelta(days=1)).offers)
    assert [offer for offer in load_catalog().offers if offer.provider == "aws"] == shipped
    write_refreshed(fetched(Item(price=2.5), as_of=newest).offers)
    assert [offer.usd_per_hour for offer in load_catalog().offers if offer.provider == "aws"] == [2.5]


# What cannot be, and what is worth a look


def test_list_with_a_price_that_cannot_be_is_left_out_as_a_whole():
    found = listed(l40s(1.5), l40s(900.0, product="per month", num_gpus=2))
    assert found.offers == ()
    (line,) = found.lines
    assert line.startswith("aws: $450.00 an hour for one l40s is not between $")
    assert line.endswith("; its old prices stay")
    assert listed(l40s(0.001)).offers == ()


def test_host_that_asks_what_nobody_pays_is_left_out_alone():
    terms = {"pricing": Pricing.MARKETPLACE, "provider": "vast"}
    found = listed(l40s(1.5, **terms), l40s(4000.0, product="dream", host_ram_gib=9000.0, **terms))
    assert [offer["usd_per_hour"] for offer in found.offers] == [1.5]
    assert found.lines[0] == "vast: 1 offer"
    assert found.lines[1].startswith("vast: 1 offer left out: $4,000 an hour for one l40s is not between $")


@pytest.mark.parametrize(("usd", "is_said"), [(2.0, False), (2.01, True), (0.99, True), (1.0, False)])
def test_price_that_moved_by_more_than_two_is_kept_and_said(usd: float, is_said: bool):
    write_refreshed(listed(l40s(1.0 if usd > 1 else 2.0)).offers)
    found = listed(l40s(usd))
    assert len(found.offers) == 1
    assert any("l40s on demand from" in line for line in found.lines) is is_said


def test_gpus_that_a_provider_no_longer_lists_are_named():
    lines = listed(l40s(1.5, "vultr", product="p")).lines
    assert lines[1] == "vultr: no longer listed: a100-pcie-80gb, a16, a40, gh200-96gb"


def test_list_without_end_is_no_price_list():
    hosts = [
        l40s(1.0 + i / 10_000, "vast", product=str(i), host_ram_gib=1.0 + i, pricing=Pricing.MARKETPLACE)
        for i in range(2001)
    ]
    assert listed(*hosts).lines == ("vast: it lists 2,001 offers, and at most 2,000 are kept; its old prices stay",)


# The file


def test_users_own_catalog_comes_on_top():
    write_refreshed(fetched(Item()).offers)
    path = refreshed_catalog_path()
    assert path is not None
    own = user_catalog_path()
    assert own is not None
    own.parent.mkdir(exist_ok=True)
    own.write_text("discounts:\n- {provider: aws, fraction: 0.5}\n")
    (offer,) = [offer for offer in load_catalog().offers_for("l40s") if offer.provider == "aws"]
    assert offer.usd_per_hour == 1.5


def test_what_was_fetched_of_a_provider_stays_until_it_answers_again():
    write_refreshed(fetched(Item(price=3.0)).offers)
    write_refreshed(fetched(Item(price=5.0), provider="verda").offers)
    write_refreshed(fetched(Item(price=4.0), provider="verda").offers)
    usd = {offer.provider: offer.usd_per_hour for offer in load_catalog().offers_for("l40s") if offer.as_of == TODAY}
    assert usd == {"aws": 3.0, "verda": 4.0}


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, '{"offers": [{"gpu": "l40s"}]}', '{"offers": 7}'])
def test_broken_file_is_one_sentence_and_can_be_fetched_again(text: str):
    path = refreshed_catalog_path()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(InputError, match=r"refreshed_prices\.json"):
        _ = load_catalog().offers
    write_refreshed(fetched(Item()).offers)
    assert json.loads(path.read_text())["schema"] == "vlmplan.catalog/1"
    assert load_catalog().offers
