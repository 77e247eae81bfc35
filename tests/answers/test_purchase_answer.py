"""The document of buying against renting."""

import pytest

from search_cases import TODAY, card, offer
from vlmplan.answers.purchase import document
from vlmplan.cost.owning import WEEKS_PER_MONTH, OwnMachine
from vlmplan.cost.purchase import Purchase

GPU = card("rtx-5090")
BOX = OwnMachine(cards_usd=4000, host_usd=2000, watts=1500, usd_per_kwh=0.2, lifetime_months=30)


def test_document_has_every_row_of_the_table_with_a_price_for_each_offer():
    rents = (offer(GPU, 1.3, 2),)
    found = document(Purchase(gpu=GPU, num_gpus=2, machine=BOX, hours_per_week=20.0, rents=rents), [], TODAY)
    assert [row["hours_per_week"] for row in found["by_hours_per_week"]] == [5, 10, 20, 40, 80, 168]
    for row in found["by_hours_per_week"]:
        hours = row["hours_per_week"] * WEEKS_PER_MONTH
        assert row["own_usd_per_month"] == pytest.approx(row["own_usd_per_hour"] * hours)
        assert row["rent_usd_per_month"] == [1.3 * hours]
    assert found["machine"]["usd_per_month"] == found["by_hours_per_week"][2]["own_usd_per_month"]
    assert [rent["offer"]["usd_per_hour"] for rent in found["rents"]] == [1.3]
