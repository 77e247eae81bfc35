"""``vlmplan buy``: its document, its text, and what it asks for where the catalog does not know."""

from datetime import date
from pathlib import Path

import pytest

from cli_calls import DOES_NOT_FIT, DONE, MENDABLE, call, refusal
from vlmplan.cost.owning import HOST_USD, HOST_USD_PER_GPU, HOST_WATTS, POWER_SUPPLY_EFFICIENCY, WEEKS_PER_MONTH

WORDS = ("buy", "--gpu", "rtx-5090:2", "--hours-per-week", "20")


@pytest.fixture(autouse=True)
def _on_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmplan.cli.buy.today", lambda: date(2026, 11, 21))


def test_without_options_prices_are_those_of_the_catalog():
    found = call(*WORDS, "--json")
    assert (found.code, found.err) == (DONE, "")
    values = found.document
    assert (values["schema"], values["gpu"], values["num_gpus"]) == ("vlmplan.buy/1", "rtx-5090", 2)
    machine = values["machine"]
    assert machine["cards_usd"] == 2 * 2000
    assert machine["host_usd"] == HOST_USD + 2 * HOST_USD_PER_GPU
    assert machine["watts"] == pytest.approx((2 * 575 + HOST_WATTS) / POWER_SUPPLY_EFFICIENCY)
    (rent,) = values["rents"]
    assert (rent["offer"]["gpu_id"], rent["offer"]["num_gpus"]) == ("rtx-5090", 2)
    assert rent["usd_per_month"] == pytest.approx(rent["offer"]["usd_per_hour"] * 20 * WEEKS_PER_MONTH)
    assert any("launch" in note or "came" in note for note in values["notes"])


def test_what_the_user_knows_takes_the_place_of_what_is_assumed():
    options = ("--price", "2500", "--host-usd", "0", "--watts-host", "50", "--usd-per-kwh", "0.4", "--months", "24")
    machine = call(*WORDS, *options, "--resale-fraction", "0.5", "--json").document["machine"]
    assert machine["price_usd"] == 2 * 2500
    assert machine["fixed_usd_per_month"] == 5000 * 0.5 / 24
    assert machine["electricity_usd_per_hour"] == pytest.approx((2 * 575 + 50) / POWER_SUPPLY_EFFICIENCY / 1000 * 0.4)


def test_text_has_the_numbers_of_the_document_and_one_advice():
    values, text = call(*WORDS, "--json").document, call(*WORDS).out
    lines = text.splitlines()
    assert values["advice"][1:] in text
    for row in values["by_hours_per_week"]:
        (line,) = [line for line in lines if line.split()[:1] == [f"{row['hours_per_week']:g}"] and line[0] == " " * 1]
        assert f"{row['own_usd_per_month']:,.2f}" in line
        assert f"{row['rent_usd_per_month'][0]:,.2f}" in line
    assert text.isascii()


def test_hours_asked_for_are_a_row_of_the_table():
    text = call("buy", "--gpu", "rtx-5090:2", "--hours-per-week", "37.5").out
    assert any(line.split()[:1] == ["37.5"] for line in text.splitlines())


def test_card_without_a_price_needs_one():
    words = ("--gpu", "h100-sxm", "--hours-per-week", "20")
    assert refusal("buy", *words, code=MENDABLE) == (
        "vlmplan: the price of h100-sxm is not known; give --price USD, what one card costs you"
    )
    assert call("buy", *words, "--price", "30000", "--json").document["machine"]["cards_usd"] == 30000


def test_cards_that_nobody_rents_out_are_compared_by_memory_and_that_is_said():
    values = call("buy", "--gpu", "rtx-a5500:2", "--price", "2000", "--hours-per-week", "20", "--json").document
    assert {rent["offer"]["gpu_id"] for rent in values["rents"]}.isdisjoint({"rtx-a5500"})
    assert any("no offer has 2 x rtx-a5500" in note for note in values["notes"])
    assert any("hours are taken as equal" in note for note in values["notes"])


def test_another_machine_can_be_compared_with():
    values = call(*WORDS, "--against", "h100-sxm:1", "--json").document
    assert {(rent["offer"]["gpu_id"], rent["offer"]["num_gpus"]) for rent in values["rents"]} == {("h100-sxm", 1)}
    assert sum("as much an hour" in note for note in values["notes"]) == 1
    message = refusal("buy", *WORDS[1:], "--against", "h100-sxm:7", code=DOES_NOT_FIT)
    assert "no offer has 7 x h100-sxm (but 1, " in message


def test_offers_of_ones_own_catalog_count():
    Path("mine.yaml").write_text(
        "offers:\n  - {gpu: rtx-5090, num_gpus: 2, provider: next-door, pricing: on_demand, usd_per_hour: 0.5}\n"
    )
    values = call(*WORDS, "--catalog", "mine.yaml", "--json").document
    assert values["rents"][0]["offer"]["provider"] == "next-door"


def test_a_machine_that_is_sold_for_its_price_pays_from_the_first_hour_on():
    shown = call("buy", "--gpu", "rtx-4090:2", "--hours-per-week", "40", "--resale-fraction", "1").out
    assert "from the first hour on" in shown
    assert "0 ms" not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu", "local", "--hours-per-week", "1"), "is there already"),
        (("--gpu", "rtx-5090", "--hours-per-week", "0"), "--hours-per-week is 0"),
        (("--gpu", "rtx-5090", "--hours-per-week", "9", "--price", "-1"), "--price is -1"),
        (("--gpu", "rtx-5090", "--hours-per-week", "9", "--months", "0"), "--months is 0"),
        (("--gpu", "rtx-5090", "--hours-per-week", "9", "--resale-fraction", "2"), "--resale-fraction is 2"),
        (("--gpu", "rtx-5090", "--hours-per-week", "9", "--watts-host", "nan"), "--watts-host is nan"),
        (("--gpu", "rtx-5091", "--hours-per-week", "9"), "did you mean"),
    ],
)
def test_bad_input_is_one_sentence(options: tuple[str, ...], words: str):
    assert words in refusal("buy", *options, code=MENDABLE)


def test_one_month_is_no_plural():
    words = ("buy", "--gpu", "rtx-5090:1", "--hours-per-week", "1", "--price", "1")
    assert "kept 1 month, sold" in call(*words, "--months", "1").out
    assert "kept 2 months, sold" in call(*words, "--months", "2").out
