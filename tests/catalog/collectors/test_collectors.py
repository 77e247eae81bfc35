"""Each endpoint's recorded answer becomes offers of known GPUs; what answers something else is left out in a sentence.

The recordings are described beside them. Nothing here opens a connection.
"""

import json
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.catalog.collectors import azure, collected, exchange_rate, vast
from vlmplan.catalog.collectors.asking import COLLECTORS
from vlmplan.catalog.collectors.response import Fetch
from vlmplan.catalog.price_listing import ProviderAnswer
from vlmplan.catalog.refresh import Refreshed, refreshed

RECORDED = Path(__file__).parent / "recorded"
NOW = datetime(2026, 11, 24, 6, 15, 0, tzinfo=timezone.utc)
SHIPPED = Catalog(shipped_catalog())


def recorded(url: str, body: dict[str, Any] | None = None) -> bytes:
    """The recorded answer of an endpoint."""
    if url.startswith(azure.URL):
        return (RECORDED / ("azure_2.json" if "$skip" in url else "azure_1.json")).read_bytes()
    if url.startswith("https://prices.azure.com:443"):
        return (RECORDED / "azure_2.json").read_bytes()
    if url.startswith(vast.URL) and "RTX 4090" not in unquote(url) and "A100 SXM4" not in unquote(url):
        return b'{"offers": []}'
    hosts = {"vast": "vast", "runpod": "runpod", "datacrunch": "verda", "scaleway": "scaleway", "linode": "linode"}
    if url == exchange_rate.URL:
        return (RECORDED / "ecb.csv").read_bytes()
    name = next((name for word, name in hosts.items() if word in url.split("/")[2]), "vultr")
    return (RECORDED / f"{name}.json").read_bytes()


def answer_of(provider: str, fetch: Fetch = recorded) -> ProviderAnswer:
    only = {provider: COLLECTORS[provider]}
    (answer,) = collected(fetch, lambda: NOW, only)
    return answer


def of_provider(provider: str, fetch: Fetch = recorded) -> Refreshed:
    return refreshed([answer_of(provider, fetch)], SHIPPED, today=date(2026, 11, 24))


def machines(found: Refreshed) -> set[tuple[str, int, str, float]]:
    return {(one["gpu"], one["num_gpus"], one["pricing"], round(one["usd_per_hour"], 6)) for one in found.offers}


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        (
            "vast",  # the 4090 with 48 GB is a modified card, which the catalog does not have
            {
                ("rtx-4090", 1, "marketplace", 0.3125),
                ("rtx-4090", 4, "marketplace", 1.4),
                ("a100-sxm4-80gb", 8, "marketplace", 6.6),
            },
        ),
        (
            "runpod",
            {
                *(("a100-pcie-80gb", count, "on_demand", round(count * 1.64, 6)) for count in (1, 2, 4, 8)),
                *(("a100-pcie-80gb", count, "community", round(count * 1.19, 6)) for count in (1, 2, 4, 8)),
                *(("a100-pcie-80gb", count, "interruptible", round(count * 0.6, 6)) for count in (1, 2, 4, 8)),
                *(("rtx-4090", count, "on_demand", round(count * 0.69, 6)) for count in (1, 2)),
                *(("rtx-4090", count, "community", round(count * 0.34, 6)) for count in (1, 2)),
            },
        ),
        (
            "verda",
            {
                ("h100-sxm", 1, "on_demand", 2.19),
                ("h100-sxm", 1, "interruptible", 0.77),
                ("rtx-a6000", 2, "on_demand", 0.98),
                ("rtx-a6000", 2, "interruptible", 0.35),
            },
        ),
        ("scaleway", {("l4", 2, "on_demand", 1.575 * 1.25), ("h100-sxm", 8, "on_demand", 23 * 1.25)}),
        ("linode", {("rtx-4000-ada", 2, "on_demand", 1.05)}),
        ("vultr", {("l40s", 2, "on_demand", 3.342)}),
        ("azure", {("a100-pcie-80gb", 1, "on_demand", 3.673), ("a100-pcie-80gb", 1, "interruptible", 1.47)}),
    ],
)
def test_recorded_answer_becomes_offers_of_known_gpus(provider: str, expected: set[tuple[str, int, str, float]]):
    found = of_provider(provider)
    assert found.failure is None
    assert machines(found) == expected


@pytest.mark.parametrize("provider", list(COLLECTORS))
def test_every_row_says_who_when_where_from_and_in_which_currency(provider: str):
    for offer in of_provider(provider).offers:
        assert (offer["provider"], offer["as_of"], offer["seen_at"]) == (provider, "2026-11-24", "2026-11-24T06:15:00Z")
        assert offer["source"].startswith("https://")
        rate = 1.25 if provider == "scaleway" else 1.0
        assert (offer["currency"], offer["exchange_rate"]) == ("EUR" if provider == "scaleway" else "USD", rate)


def test_host_memory_is_the_share_that_is_rented():
    (one,) = [offer for offer in of_provider("vast").offers if offer["usd_per_hour"] == 0.3125]
    assert (one["host_ram_gib"], one["vcpus"]) == (256 * 16 / 64, 16)
    (azure_machine, _) = of_provider("azure").offers
    assert azure_machine["host_ram_gib"] == 220  # which the catalog knows of that product


@pytest.mark.parametrize("provider", list(COLLECTORS))
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>Just a moment...</html>", "JSON"),
        (b"", "empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"7", "object"),
        (b'{"data": NaN}', "NaN"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
    ],
)
def test_answer_of_another_kind_is_refused_in_one_sentence(provider: str, body: bytes, words: str):
    def fetch(url: str, posted: dict[str, Any] | None) -> bytes:
        return recorded(url) if url == exchange_rate.URL else body

    if (provider, body) == ("verda", b"7"):
        words = "types is 7; a list is needed"
    failure = answer_of(provider, fetch).failure
    assert failure is not None
    assert "\n" not in failure
    assert words in failure


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b"", b"KEY,OBS_VALUE\na,nan\n", b"OBS_VALUE\n-3\n"])
def test_euros_without_a_rate_are_no_prices(body: bytes):
    def fetch(url: str, posted: dict[str, Any] | None) -> bytes:
        return body if url == exchange_rate.URL else recorded(url)

    failure = answer_of("scaleway", fetch).failure
    assert failure is not None
    assert failure.startswith("the answer of data-api.ecb.europa.eu ")


def changed(old: bytes, new: bytes) -> Fetch:
    """The recordings with another text in them."""

    def fetch(url: str, posted: dict[str, Any] | None) -> bytes:
        return recorded(url).replace(old, new)

    return fetch


HOSTILE: list[tuple[str, bytes, bytes, str]] = [
    ("vast", b'"dph_total": 0.3125', b'"dph_total": -1', "offers[0].dph_total is -1; a number of 0 or more is needed"),
    ("vast", b'"dph_total": 0.3125', b'"dph_total": 1e999', "offers[0].dph_total is Infinity"),
    ("vast", b'"num_gpus": 8', b'"num_gpus": 0', "a whole number of 1 or more is needed"),
    ("runpod", b'"securePrice": 0.69', b'"securePrice": NaN', "holds NaN, which is no JSON number"),
    ("runpod", b'{"data"', b'{"errors": [{"message": "no"}], "data"', "refuses the question"),
    ("verda", b'"price_per_hour": "2.19"', b'"price_per_hour": "nan"', "price_per_hour"),
    ("verda", b'"price_per_hour": "2.19"', b'"price_per_hour": "-2.19"', "a number of 0 or more is needed"),
    ("verda", b'"currency": "usd"', b'"currency": "eur"', "usd is needed"),
    ("verda", b"H100 SXM5 80GB", b"\\u001b[2J", "it holds control characters"),
    ("scaleway", b"L4-2-24G", b"L4\\u001b[2J", "control characters"),
    ("scaleway", b",1.25,A", b",125,A", "125 dollars a euro, which cannot be"),
    ("linode", b'"pages": 1', b'"pages": 2', "holds the first of several pages"),
    ("vultr", b'"next": ""', b'"next": "abc"', "holds the first of several pages"),
    ("vultr", b"NVIDIA_L40S", b"x" * 500, "at most 200 characters"),
    ("azure", b"https://prices.azure.com:443", b"http://elsewhere.example", "a page of https://prices.azure.com"),
    ("azure", b'"unitOfMeasure": "1 Hour"', b'"unitOfMeasure": "1 Month"', "1 Hour is needed"),
    ("azure", b'"currencyCode": "USD"', b'"currencyCode": "INR"', "USD is needed"),
]


@pytest.mark.parametrize(("provider", "old", "new", "words"), HOSTILE)
def test_hostile_value_drops_its_provider_in_one_sentence(provider: str, old: bytes, new: bytes, words: str):
    found = of_provider(provider, changed(old, new))
    assert found.offers == ()
    assert found.failure is not None
    assert words in found.failure
    assert found.failure.isprintable()
    assert found.lines == (f"{provider}: {found.failure}; its old prices stay",)


def test_pages_without_end_are_not_followed():
    def fetch(url: str, posted: dict[str, Any] | None) -> bytes:
        return (RECORDED / "azure_1.json").read_bytes()

    assert answer_of("azure", fetch).failure == "prices.azure.com has more than 10 pages for eastus"


def test_one_provider_that_fails_takes_no_other_with_it():
    def fetch(url: str, posted: dict[str, Any] | None) -> bytes:
        return b"{" if "vultr" in url else recorded(url)

    answers = {answer.provider: answer for answer in collected(fetch, lambda: NOW)}
    assert [name for name, answer in answers.items() if answer.failure] == ["vultr"]
    assert all(answer.listings for name, answer in answers.items() if name != "vultr")


def test_provider_that_is_silent_for_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch):
    import threading

    from vlmplan.catalog.collectors import asking

    stop = threading.Event()
    monkeypatch.setattr(asking, "DEADLINE_SECONDS", 0.01)
    waits: Callable[[Fetch], Any] = lambda fetch: stop.wait(10)  # noqa: E731
    (answer,) = collected(recorded, lambda: NOW, {"slow": waits})
    stop.set()
    assert answer.failure == "it takes more than 0.01 s to answer"


def test_questions_to_vast_are_json_that_names_card_and_number():
    wanted = json.loads(unquote(vast.question_url("A100 SXM4", 2).partition("?q=")[2]))
    assert (wanted["gpu_name"], wanted["num_gpus"], wanted["verified"]) == (
        {"eq": "A100 SXM4"},
        {"gte": 2},
        {"eq": True},
    )
