"""Fetched prices: which card an item has, what is kept of many items, and how the file takes its place."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gpuhunt_items import Item
from vlmplan.catalog import Catalog, load_catalog, refreshed_catalog_path, shipped_catalog
from vlmplan.catalog.refresh import CardNames, ProviderAnswer, Refreshed, refreshed, write_refreshed
from vlmplan.errors import InputError
from vlmplan.hardware import Pricing
from vlmplan.units import GIB

TODAY = date(2026, 11, 21)
SHIPPED = Catalog(shipped_catalog())


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("APPDATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def fetched(*items: Item, provider: str = "aws", as_of: date | None = None) -> Refreshed:
    answer = ProviderAnswer(provider=provider, items=[replace(item, provider=provider) for item in items], as_of=as_of)
    return refreshed([answer], SHIPPED, source="gpuhunt", today=TODAY)


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
    assert CardNames(SHIPPED).gpu_id(item) == gpu_id


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
        },
    )
    assert fetched(Item(), as_of=date(2026, 11, 3)).offers[0]["as_of"] == "2026-11-03"


@pytest.mark.parametrize(
    ("item", "provider", "pricing"),
    [
        (Item(), "aws", Pricing.ON_DEMAND),
        (Item(spot=True), "aws", Pricing.INTERRUPTIBLE),
        (Item(), "vastai", Pricing.MARKETPLACE),
        (Item(location="CA"), "runpod", Pricing.COMMUNITY),
        (Item(location="CA-MTL-1"), "runpod", Pricing.ON_DEMAND),
    ],
)
def test_terms_follow_from_provider_and_place(item: Item, provider: str, pricing: Pricing):
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


@pytest.mark.parametrize("change", [{"gpu_count": 0}, {"gpu_name": None}, {"price": 0.0}, {"price": float("nan")}])
def test_machines_without_gpus_or_price_are_no_offers(change: dict[str, Any]):
    found = fetched(Item(**change))
    assert found.offers == ()
    assert found.lines == ("aws: nothing; its old prices stay",)


def test_what_fails_is_said_and_the_rest_counts():
    answers = [ProviderAnswer(provider="vastai", failure="is on fire"), ProviderAnswer(provider="aws", items=[Item()])]
    found = refreshed(answers, SHIPPED, source="gpuhunt", today=TODAY)
    assert found.lines == ("vast: is on fire; its old prices stay", "aws: 1 offers")
    assert found.failure == "is on fire"
    assert len(found.offers) == 1


def test_names_from_elsewhere_do_nothing_to_a_terminal():
    found = fetched(Item(instance_name="\x1b[31mred\n"), Item(gpu_name="\x1b[2Jx", gpu_memory=1.0))
    assert found.offers[0]["sku"] == "[31mred"
    assert "\x1b" not in found.lines[-1]


# The file


def test_fetched_prices_replace_the_shipped_ones_of_their_provider_and_gpu_alone():
    write_refreshed(fetched(Item(gpu_count=4, price=7.5, memory=384.0)).offers)
    catalog = load_catalog()
    (offer,) = [offer for offer in catalog.offers_for("l40s") if offer.provider == "aws"]
    assert (offer.num_gpus, offer.usd_per_hour, offer.host_ram_bytes) == (4, 7.5, 384 * GIB)
    assert offer.age_days(TODAY) == 0

    def others(catalog: Catalog) -> set[object]:
        return {offer for offer in catalog.offers if (offer.gpu_id, offer.provider) != ("l40s", "aws")}

    assert others(catalog) == others(SHIPPED)


def test_users_own_catalog_comes_on_top():
    write_refreshed(fetched(Item()).offers)
    path = refreshed_catalog_path()
    assert path is not None
    (path.parent / "gpu_catalog.yaml").write_text("discounts:\n- {provider: aws, fraction: 0.5}\n")
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
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(InputError, match=r"refreshed_prices\.json"):
        _ = load_catalog().offers
    write_refreshed(fetched(Item()).offers)
    assert json.loads(path.read_text())["schema"] == "vlmplan.catalog/1"
    assert load_catalog().offers
