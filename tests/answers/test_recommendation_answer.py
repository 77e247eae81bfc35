"""A recommendation as text: the winner, every plan in the table, what is not possible, how old the prices are."""

import re
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

import pytest

from search_cases import TODAY, card, cluster, offer, owned, rented, search
from vlmplan.answers.front import WINS_BY
from vlmplan.answers.offers import money_line, offer_text, range_lines
from vlmplan.answers.recommendation import SHOWN_REJECTIONS, document, print_nothing_fits, print_recommendation
from vlmplan.hardware import PRICE_CURRENT_DAYS
from vlmplan.recipe.choices import SEARCHED_METHODS
from vlmplan.search import Objective, Recommendation
from vlmplan.units import GIB, duration_text, usd_text

GPU, OTHER = card("a100-sxm4-80gb"), card("rtx-4090")
SEEN = TODAY - timedelta(days=20)


@cache
def found(objective: Objective = Objective.COST) -> Recommendation:
    candidates = [
        *(rented(GPU, offer(GPU, 2.0 * count, count)) for count in (1, 2, 4)),
        rented(OTHER, offer(OTHER, 0.4, sku="1x RTX 4090 [secure]")),
        *owned(*(cluster(card("t4", id=f"tiny-{gib}", memory_bytes=gib * GIB // 8)) for gib in range(1, 9))),
    ]
    return search(candidates, objective=objective, seq_len=256)


def printed(found: Recommendation, capsys: pytest.CaptureFixture[str]) -> str:
    print_recommendation(found)
    return capsys.readouterr().out


def table(text: str) -> list[list[str]]:
    """Rows of the table of plans, cells apart by two blanks or more."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if re.match(r" +method ", line))
    end = lines.index("", start)
    return [re.split(r"  +", line.strip()) for line in lines[start + 1 : end]]


def test_piped_recommendation_has_no_colour(capsys):
    text = printed(found(), capsys)
    assert "\x1b" not in text
    assert text.isascii()


@pytest.mark.parametrize("objective", Objective)
def test_winner_comes_first_and_says_what_it_wins_by(objective: Objective, capsys):
    answer = found(objective)
    assert f"\n{WINS_BY[objective]}: {money_line(answer.plans[0], TODAY)}\n" in printed(answer, capsys)


def test_every_plan_is_a_row_and_the_best_of_each_method_is_marked(capsys):
    rows = table(printed(found(), capsys))
    assert len(rows) == len(found().plans)
    marked = [row[1] for row in rows if row[0] == "best"]
    assert sorted(marked) == sorted(method.value for method in SEARCHED_METHODS)
    assert [row[0] for row in rows[:3]] == ["best"] * 3


def test_rows_hold_the_numbers_of_their_plans(capsys):
    rows = {tuple(row[row[0] == "best" :][:2]): row[row[0] == "best" :] for row in table(printed(found(), capsys))}
    for plan in found().plans:
        gpus = f"{plan.estimate.cluster.num_gpus} x {plan.estimate.cluster.node.gpu.id}"
        row = rows[plan.estimate.recipe.method.value, gpus]
        assert row[2] == plan.offer.provider
        assert float(row[3]) == pytest.approx(plan.usd_per_hour, abs=0.005)
        assert row[5] == f"{plan.estimate.recipe.micro_batch} x {plan.estimate.recipe.grad_accum}"
        assert float(row[7]) == pytest.approx(plan.estimate.device.device_bytes / 2**30, abs=0.05)
        assert float(row[8]) == pytest.approx(plan.estimate.device.usable_bytes / 2**30, abs=0.05)
        assert row[9] == duration_text(plan.hours * 3600)
        assert float(row[10]) == pytest.approx(plan.usd, abs=0.005)


def test_rejections_come_largest_machine_first_and_the_rest_is_counted(capsys):
    text = printed(found(), capsys)
    named = re.findall(r"^  1 x tiny-(\d): .*needs.*$", text, re.MULTILINE)
    rejected = sorted((rejection.cluster.node.gpu.id[-1] for rejection in found().rejected), reverse=True)
    assert named == rejected[:SHOWN_REJECTIONS]
    assert f"and {len(rejected) - SHOWN_REJECTIONS} smaller machines" in text


def test_rejection_has_its_reason_and_the_change_that_would_help(capsys):
    text = printed(found(), capsys)
    shown = [rejection for rejection in found().rejected if f"{rejection.label}: " in text]
    assert len(shown) == SHOWN_REJECTIONS
    assert all(f"{rejection.reason}; try {rejection.smallest_change}\n" in text for rejection in shown)


def test_nothing_that_fits_is_said_with_the_reasons(capsys):
    tiny = search(owned(cluster(card("t4", memory_bytes=GIB))))
    print_nothing_fits(tiny)
    text = capsys.readouterr().out
    assert text.startswith("smollm2-135m: nothing fits on 1 machine\n")
    assert tiny.rejected[0].reason in text


def test_notes_and_the_age_of_prices_stand_below(capsys):
    answer = replace(found(), notes=("a note of the search",))
    text = printed(answer, capsys)
    assert "note: a note of the search" in text
    assert f"prices: 20 days old on {TODAY.isoformat()}" in text


# Money


def test_money_line_has_price_time_machine_and_offer():
    plan = next(plan for plan in found().plans if plan.offer.gpu_id == OTHER.id)
    line = money_line(plan, TODAY)
    assert line.startswith(f"{usd_text(plan.usd)} for the run, {duration_text(plan.hours * 3600)} on 1 x {OTHER.name}")
    assert "1x RTX 4090 [secure] on demand, price 20 days old, $0.40/h" in line


def test_the_range_of_hours_and_money_stands_below_the_first_plan(capsys):
    answer = found()
    plan = answer.plans[0]
    (fast, slow), (least, most) = plan.hours_range, plan.usd_range
    line = f"range: {duration_text(fast * 3600)} for {usd_text(least)} to {duration_text(slow * 3600)} for "
    assert line + usd_text(most) in printed(answer, capsys)
    assert range_lines(replace(plan, offer=None))[0].startswith(f"range: {duration_text(fast * 3600)} to ")
    assert range_lines(replace(plan, estimate=replace(plan.estimate, timed=None))) == []


OLD = TODAY - timedelta(days=PRICE_CURRENT_DAYS + 1)


def test_money_of_an_old_price_is_about_so_much_and_of_when():
    answer = search([rented(GPU, offer(GPU, 2.0, as_of=OLD), offer(GPU, 3.0, as_of=OLD))], seq_len=256)
    plan = answer.plans[0]
    assert money_line(plan, TODAY).startswith(f"about {usd_text(plan.usd)} (price of {OLD.isoformat()}) for the run, ")
    assert money_line(plan, OLD).startswith(f"{usd_text(plan.usd)} for the run, ")
    month = replace(plan, offer=replace(plan.offer, as_of=OLD.replace(day=1), as_of_is_month=True))
    assert f"(price of {OLD.isoformat()[:7]}) for the run" in money_line(month, TODAY)
    undated = replace(plan, offer=replace(plan.offer, as_of=None))
    assert "(price of unknown age) for the run" in money_line(undated, TODAY)


def test_document_says_of_every_plan_whether_its_price_is_old_and_what_the_gpu_costs_elsewhere():
    candidates = [rented(GPU, offer(GPU, 2.0, as_of=OLD), offer(GPU, 3.0, as_of=OLD)), rented(OTHER, offer(OTHER, 9.0))]
    made = document(search(candidates, seq_len=256))
    old, new = (next(one["price"] for one in made["plans"] if one["gpu"] == gpu.id) for gpu in (GPU, OTHER))
    assert (old["is_about"], old["price_of"]) == (True, OLD.isoformat())
    assert (old["spread"]["least_usd"], old["spread"]["median_usd"], old["spread"]["most_usd"]) == (2.0, 2.5, 3.0)
    assert new == {"is_about": False, "price_of": "2026-11-01", "spread": None}
    assert [text for text in made["caveats"] if "the order of the plans may have changed" in text]


def test_unknown_price_and_unknown_time_are_said():
    unpriced = search(owned(cluster(GPU)), seq_len=256).plans[0]
    assert money_line(unpriced, TODAY).endswith("; no price is known")
    unknown = card("rtx-4090", memory_bandwidth_bytes_per_second=None)
    timeless = search([rented(unknown, offer(unknown, 0.5))], seq_len=256).plans[0]
    assert money_line(timeless, TODAY).startswith("- for the run, an unknown time on")


def test_unknown_numbers_are_dashes_in_the_table(capsys):
    unknown = card("rtx-4090", memory_bandwidth_bytes_per_second=None)
    answer = search(owned(cluster(unknown)), seq_len=256)
    for row in table(printed(answer, capsys)):
        assert row[-1] == row[-2] == "-"


def test_offer_says_how_old_its_price_is():
    assert offer_text(offer(GPU, 1.0, as_of=SEEN), TODAY).endswith("price 20 days old")
    assert offer_text(offer(GPU, 1.0, as_of=None), TODAY).endswith("price of unknown age")
    assert offer_text(offer(GPU, 1.0, sku="big-1"), date(2026, 11, 2)) == "somebody big-1 on demand, price 1 day old"


def test_an_offer_says_its_terms_once():
    one = offer(GPU, 1.0, sku="big-1 [on-demand]")
    assert offer_text(one, date(2026, 11, 2)) == "somebody big-1 on demand, price 1 day old"
    assert one.label == "somebody's big-1"
