"""``--refresh-prices`` with a stand-in for gpuhunt: one provider's failure, no network, no package."""

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cli_calls import DONE, call
from gpuhunt_items import Item
from vlmplan.catalog import refreshed_catalog_path


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
    for name, class_name in (("vastai", "VastAIProvider"), ("vultr", "VultrProvider"), ("lium", "LiumProvider")):
        module = types.ModuleType(f"gpuhunt.providers.{name}")
        setattr(module, class_name, type(class_name, (), {"from_env": classmethod(lambda cls: cls())}))
        monkeypatch.setitem(sys.modules, f"gpuhunt.providers.{name}", module)


def l40s_offers() -> Iterator[dict[str, Any]]:
    document = call("gpus", "l40s", "--offers", "--json").document
    return (offer for offer in document["offers"] if offer["provider"] == "aws")


def test_prices_come_provider_by_provider_and_one_failure_blocks_none(monkeypatch: pytest.MonkeyPatch):
    answers: Answers = {
        "aws": [Item("aws", "g6e.new", "us-east-1", 1.25)],
        "azure": ValueError("two\nlines"),
        "vastai": RuntimeError("no answer"),
        "runpod": [Item("runpod", "many", "US-KS-2", 80.0, flags=["runpod-cluster"])],
        "verda": [Item("verda", "1L40S.20V", "FIN-01", 0.95)],
    }
    install(monkeypatch, answers)
    found = call("gpus", "l40s", "--offers", "--refresh-prices", "--json")
    assert found.code == DONE
    (offer,) = [offer for offer in found.document["offers"] if offer["provider"] == "aws"]
    assert (offer["usd_per_hour"], offer["as_of"], offer["sku"]) == (1.25, "2026-11-19", "g6e.new")
    lines = found.err.splitlines()
    assert "aws: 1 offers" in lines
    assert "verda: 1 offers" in lines
    assert "azure: two lines; its old prices stay" in lines
    assert "vast: no answer; its old prices stay" in lines
    assert "runpod: nothing; its old prices stay" in lines
    assert lines[-1] == f"2 prices are now in {refreshed_catalog_path()}"
    assert [one["usd_per_hour"] for one in l40s_offers()] == [1.25]  # and they stay


def test_recommend_takes_the_prices_that_it_fetched(monkeypatch: pytest.MonkeyPatch):
    install(monkeypatch, {"aws": [Item("aws", "g6e.new", "us-east-1", 0.011)]})
    found = call("recommend", "--model", "smollm2-135m", "--refresh-prices", "--provider", "aws", "--json")
    assert found.document["plans"][0]["offer"]["usd_per_hour"] == 0.011


@pytest.fixture(params=["no package", "no network", "nothing known"])
def without_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def missing() -> None:
        monkeypatch.setitem(sys.modules, "gpuhunt", None)

    cases: dict[str, tuple[Callable[[], None], str]] = {
        "no package": (missing, "gpuhunt is not installed: pip install 'vlmplan[prices]'"),
        "no network": (lambda: install(monkeypatch, {}, OSError("no route")), "gpuhunt has none (no route)"),
        "nothing known": (lambda: install(monkeypatch, {}), "gpuhunt has none (of a card that the catalog knows)"),
    }
    prepare, reason = cases[request.param]
    prepare()
    return reason


def test_without_new_prices_the_old_ones_answer_and_one_sentence_says_why(without_prices: str):
    old = call("gpus", "l40s", "--offers", "--json")
    found = call("gpus", "l40s", "--offers", "--refresh-prices", "--json")
    assert found.code == DONE
    assert found.document == old.document
    assert found.err == f"prices are not refreshed, the old ones stay: {without_prices}\n"
    path = refreshed_catalog_path()
    assert path is not None
    assert not path.exists()
