"""Old prices may win, but not without a word; spot prices are offers of their own."""

from dataclasses import replace
from datetime import date, timedelta

import pytest

from search_cases import TODAY, card, offer, rented, search
from vlmplan.cost import CostAssumptions
from vlmplan.hardware import PRICE_CURRENT_DAYS, Pricing
from vlmplan.search import Objective, RankedPlan
from vlmplan.search.prices import is_recent, price_note, with_spot

GPU, OTHER = card("a100-sxm4-80gb"), card("rtx-4090")
OLD = TODAY - timedelta(days=PRICE_CURRENT_DAYS + 1)


def test_spot_price_makes_a_second_offer_that_may_be_taken_away():
    both = offer(GPU, 3.0, spot_usd_per_hour=1.0)
    assert list(with_spot([both])) == [both, replace(both, usd_per_hour=1.0, pricing=Pricing.INTERRUPTIBLE)]


def test_a_spot_offer_is_not_named_on_demand():
    staying, taken = with_spot([offer(GPU, 3.0, spot_usd_per_hour=1.0, sku="1x Tesla V100 [on-demand]")])
    assert (staying.sku, taken.sku) == ("1x Tesla V100 [on-demand]", "1x Tesla V100")


@pytest.mark.parametrize("changes", [{}, {"spot_usd_per_hour": 1.0, "pricing": Pricing.INTERRUPTIBLE}])
def test_offer_without_a_spot_price_of_its_own_stays_one(changes: dict[str, object]):
    one = offer(GPU, 3.0, **changes)
    assert list(with_spot([one])) == [one]


@pytest.mark.parametrize(
    ("changes", "limit", "recent"),
    [
        ({"as_of": TODAY - timedelta(days=7)}, 7, True),
        ({"as_of": TODAY - timedelta(days=8)}, 7, False),
        ({"as_of": None}, 7, False),
        ({"as_of": None}, None, True),
        ({"as_of": None, "stated_in": "mine.yaml"}, 7, True),
        ({"as_of": date(2000, 1, 1), "pricing": Pricing.OWN}, 7, True),
    ],
)
def test_recent_is_what_was_seen_lately_or_stated_by_the_user(changes: dict[str, object], limit: int, recent: bool):
    assert is_recent(offer(GPU, 1.0, **changes), TODAY, limit) is recent


@pytest.mark.parametrize(("as_of", "words"), [(OLD, "61 days ago"), (None, "nobody says when")])
def test_winner_by_an_old_price_is_noted(as_of: date | None, words: str):
    cheap, current = rented(OTHER, offer(OTHER, 0.01, as_of=as_of)), rented(GPU, offer(GPU, 9.0))
    found = search([cheap, current], seq_len=256)
    assert found.plans[0].offer == cheap.offers[0]
    (note,) = [note for note in found.notes if "price was seen" in note]
    assert words in note
    assert "so the order of the plans may have changed; one offer of rtx-4090 is known" in note
    assert note.endswith("--max-price-age-days 60 leaves such prices out")


@pytest.mark.parametrize(
    ("objective", "words"),
    [(Objective.COST, "the order of the plans"), (Objective.TIME, "what a run costs"), (Objective.VRAM, "what a run")],
)
def test_old_price_is_told_with_the_spread_of_its_gpu(objective: Objective, words: str):
    prices = [offer(GPU, usd, count, as_of=OLD) for usd, count in ((2.0, 1), (6.0, 2), (40.0, 8))]
    spot = offer(GPU, 0.1, as_of=OLD, pricing=Pricing.INTERRUPTIBLE)
    own = offer(GPU, 0.01, as_of=None, pricing=Pricing.OWN)
    note = price_note(prices[0], TODAY, objective=objective, offers=[*prices, spot, own, offer(OTHER, 9.0, as_of=OLD)])
    assert note is not None
    assert f"so {words}" in note
    assert "; 3 offers of a100-sxm4-80gb go from $2.00 to $5.00 a GPU and hour, half of them below $3.00; " in note
    assert note.endswith("vlmplan prices --refresh fetches newer ones")
    assert price_note(prices[0], OLD, objective=objective, offers=prices) is None


def test_winner_by_a_current_price_needs_no_word_even_where_another_is_old():
    old, current = rented(OTHER, offer(OTHER, 9.0, as_of=OLD)), rented(GPU, offer(GPU, 0.01))
    found = search([old, current], seq_len=256)
    assert found.plans[0].offer == current.offers[0]
    assert price_note(found.plans[0].offer, TODAY) is None
    assert not [note for note in found.notes if "price" in note]


def test_interruptible_machine_loses_where_redoing_costs_more_than_it_saves():
    stays = offer(GPU, 1.0)
    taken = replace(stays, usd_per_hour=0.9, pricing=Pricing.INTERRUPTIBLE)
    plan = search([rented(GPU, stays)], seq_len=256, num_samples=10**7).plans[0]
    rare, frequent = (
        RankedPlan(estimate=plan.estimate, offer=taken, assumed=CostAssumptions(interruptions_per_day=rate))
        for rate in (0.1, 24.0)
    )
    assert rare.usd < plan.usd < frequent.usd
    assert (rare.hours, rare.billed_hours) < (frequent.hours, frequent.billed_hours)
    assert frequent.save_every_steps < rare.save_every_steps < plan.save_every_steps == plan.estimate.num_steps
