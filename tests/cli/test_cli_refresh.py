"""Prices fetched by the command line: recorded answers and a stand-in for gpuhunt, one's failure, no network."""

import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from cli_calls import DONE, MENDABLE, call
from gpuhunt_items import Item
from vlmplan.catalog.places import refreshed_catalog_path
from vlmplan.errors import UnavailableError


@dataclass
class Published:
    version: str


Answers = dict[str, list[Item] | Exception]


def install(monkeypatch: pytest.MonkeyPatch, answers: Answers, load_error: Exception | None = None) -> None:
    """Put a package named gpuhunt in the place of the real one; ``answers`` by provider."""

    class Catalog:
        def __init__(self, balance_resources: bool = True, auto_reload: bool = True) -> None:
            assert not balance_resources
            assert not auto_reload
            self.catalog = {"aws": Published("20261119-7")}
            self.providers: list[Any] = []

        def load(self, version: str | None = None) -> None:
            if load_error is not None:
                raise load_error

        def add_provider(self, provider: Any) -> None:
            self.providers.append(provider)

        def query(self, *, provider: str, min_gpu_count: int) -> list[Item]:
            assert min_gpu_count == 1
            answer = answers.get(provider, [])
            if isinstance(answer, Exception):
                raise answer
            return answer

    package = types.ModuleType("gpuhunt")
    package.Catalog = Catalog  # pyright: ignore
    monkeypatch.setitem(sys.modules, "gpuhunt", package)
    monkeypatch.setitem(sys.modules, "gpuhunt.providers", types.ModuleType("gpuhunt.providers"))
    module: Any = types.ModuleType("gpuhunt.providers.lium")
    module.LiumProvider = type("LiumProvider", (), {"from_env": classmethod(lambda cls: cls())})
    monkeypatch.setitem(sys.modules, "gpuhunt.providers.lium", module)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint answers, unless a test says so; no test opens a connection."""

    def refuse(url: str, body: object = None) -> bytes:
        raise UnavailableError(f"{url.split('/')[2]} cannot be reached (no route)")

    monkeypatch.setattr("vlmplan.catalog.collectors.network.fetched", refuse)


def l40s_offers() -> Iterator[dict[str, Any]]:
    document = call("gpus", "l40s", "--offers", "--json").document
    return (offer for offer in document["offers"] if offer["provider"] == "aws")


VERDA = """[{"instance_type": "1L40S.20V", "name": "L40S 48GB", "gpu": {"number_of_gpus": 1}, "price_per_hour": "0.95",
 "gpu_memory": {"size_in_gigabytes": 48}, "cpu": {}, "memory": {}, "spot_price": null}]"""


def test_prices_come_provider_by_provider_and_one_failure_blocks_none(monkeypatch: pytest.MonkeyPatch):
    def verda(url: str, body: object = None) -> bytes:
        if "datacrunch" in url:
            return VERDA.encode()
        raise UnavailableError(f"{url.split('/')[2]} cannot be reached (no route)")

    monkeypatch.setattr("vlmplan.catalog.collectors.network.fetched", verda)
    answers: Answers = {
        "aws": [Item("aws", "g6e.new", "us-east-1", 1.25)],
        "gcp": ValueError("two\nlines"),
        "oci": [Item("oci", "many", "US-KS-2", 80.0, flags=["runpod-cluster"])],
    }
    install(monkeypatch, answers)
    found = call("gpus", "l40s", "--offers", "--refresh-prices", "--json")
    assert found.code == DONE
    (offer,) = [offer for offer in found.document["offers"] if offer["provider"] == "aws"]
    assert (offer["usd_per_hour"], offer["as_of"], offer["sku"]) == (1.25, "2026-11-19", "g6e.new")
    lines = found.err.splitlines()
    assert "aws: 1 offer" in lines
    assert "verda: 1 offer" in lines
    assert "gcp: two lines; its old prices stay" in lines
    assert "vast: console.vast.ai cannot be reached (no route); its old prices stay" in lines
    assert "oci: nothing; its old prices stay" in lines
    assert lines[-1] == f"2 prices are now in {refreshed_catalog_path()}"
    assert [one["usd_per_hour"] for one in l40s_offers()] == [1.25]  # and they stay


def test_one_command_refreshes_and_shows_by_provider_what_is_newest(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, {"aws": [Item("aws", "g6e.new", "us-east-1", 1.25)]})
    monkeypatch.setattr("vlmplan.cli.prices.today", lambda: date(2026, 11, 21))
    found = call("prices", "l40s", "--refresh", "--json")
    aws = found.document["providers"][0]
    assert (aws["provider"], aws["newest"], aws["age_days"], aws["num_offers"]) == ("aws", "2026-11-19", 2, 1)
    assert (aws["source"], aws["currency"], aws["exchange_rate"]) == ("gpuhunt of unknown version", "USD", 1.0)
    assert all(one["newest"] < "2026-11" for one in found.document["providers"][1:])
    (gpu,) = found.document["gpus"]
    assert gpu["gpu_id"] == "l40s"
    assert gpu["least_usd"] <= gpu["median_usd"] <= gpu["most_usd"]
    assert gpu["num_offers"] == sum(one["num_offers"] for one in found.document["providers"])
    assert "aws: 1 offer" in found.err


def test_prices_are_shown_without_asking_anybody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("vlmplan.cli.prices.today", lambda: date(2026, 11, 21))
    found = call("prices", "h100", "--provider", "gcp", "--provider", "Azure")
    assert (found.code, found.err) == (DONE, "")
    first, second = found.out.split("\n\n")
    assert [line.split()[:2] for line in first.splitlines()[1:3]] == [["gcp", "10"], ["azure", "6"]]
    assert "2026-08-03" in first
    assert [line.split()[0] for line in second.splitlines()[1:3]] == ["h100-nvl", "h100-sxm"]


def test_unknown_provider_is_named_with_the_nearest():
    found = call("prices", "--provider", "gpc")
    assert found.err == "vlmplan: unknown provider 'gpc'; did you mean 'gcp'?\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("prices", "--refresh", "4909"), "unknown GPU '4909'"),
        (("prices", "--refresh", "--provider", "rnupod"), "unknown provider 'rnupod'"),
        (("prices", "--refresh", "--catalog", "none.yaml"), "none.yaml"),
        (("gpus", "--refresh-prices", "--min-memory", "9", "--max-memory", "8"), "nothing is between them"),
        (("recommend", "--refresh-prices", "--model", "gpt2", "--seq-len", "0"), "--seq-len is 0"),
        (("recommend", "--refresh-prices", "--model", "gpt2", "--provider", "rnupod"), "unknown provider 'rnupod'"),
    ],
)
def test_what_is_wrong_is_refused_before_anybody_is_asked(
    words: Sequence[str], sentence: str, monkeypatch: pytest.MonkeyPatch
):
    def ask(url: str, body: object = None) -> bytes:
        raise AssertionError(f"{url} is asked")

    monkeypatch.setattr("vlmplan.catalog.collectors.network.fetched", ask)
    found = call(*words)
    assert (found.code, sentence in found.err) == (MENDABLE, True)


def test_a_provider_whose_prices_may_come_is_asked():
    found = call("prices", "--refresh", "--provider", "oci")
    assert "prices are not refreshed" in found.err
    assert "unknown provider 'oci'" in found.err


def test_recommend_takes_the_prices_that_it_fetched(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, {"aws": [Item("aws", "g6e.new", "us-east-1", 0.25)]})
    found = call("recommend", "--model", "smollm2-135m", "--refresh-prices", "--provider", "aws", "--json")
    assert found.document["plans"][0]["offer"]["usd_per_hour"] == 0.25


@pytest.mark.parametrize("command", ["gpus", "prices"])
@pytest.mark.parametrize("has_gpuhunt", [False, True])
def test_without_new_prices_the_old_ones_answer_and_sentences_say_why(
    monkeypatch: pytest.MonkeyPatch, command: str, has_gpuhunt: bool
):
    if has_gpuhunt:
        install(monkeypatch, {}, OSError("no route"))
    else:
        monkeypatch.setitem(sys.modules, "gpuhunt", None)
    old = call(command, "l40s", "--json")
    found = call(command, "l40s", {"gpus": "--refresh-prices", "prices": "--refresh"}[command], "--json")
    assert found.code == DONE
    assert found.document == old.document
    lines = found.err.splitlines()
    missing = "aws, gcp, lambda, nebius and oci are not asked: gpuhunt is not installed: pip install 'vlmplan[prices]'"
    assert (missing in lines) is not has_gpuhunt
    assert ("aws: no route; its old prices stay" in lines) is has_gpuhunt
    assert lines[0] == "azure: prices.azure.com cannot be reached (no route); its old prices stay"
    assert lines[-1] == (
        "prices are not refreshed, the old ones stay: nobody lists a card that the catalog knows "
        "(prices.azure.com cannot be reached (no route))"
    )
    path = refreshed_catalog_path()
    assert path is not None
    assert not path.exists()
