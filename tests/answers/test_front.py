"""The front as text: one line beside the winner, a plot and a table with --pareto."""

import re
from dataclasses import replace

import pytest

from search_cases import card, cluster, owned, search
from search_cases import found_on_two_cards as found
from vlmplan.answers.front import NOT_EXACT, WINNER, print_pareto, summary_line
from vlmplan.answers.recommendation import print_recommendation
from vlmplan.render.scatter import MARKS
from vlmplan.search import Objective, Recommendation
from vlmplan.search.explanation import explanation, machine_label
from vlmplan.units import duration_text, usd_text


def printed(answer: Recommendation, capsys: pytest.CaptureFixture[str], **options: bool) -> str:
    print_recommendation(answer, **options)
    return capsys.readouterr().out


def rows(text: str) -> list[list[str]]:
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if re.match(r" +time +usd ", line))
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    return [re.split(r"  +", line.strip()) for line in lines[start + 1 : end]]


@pytest.mark.parametrize("objective", Objective)
def test_the_winner_is_explained_under_what_it_wins_by(objective: Objective, capsys):
    answer = found(objective)
    assert f"\n  {explanation(answer.plans, objective)}\n" in printed(answer, capsys)


def test_without_pareto_one_line_names_what_is_faster_with_its_price(capsys):
    answer = found()
    text = printed(answer, capsys)
    (line,) = [line for line in text.splitlines() if "faster for more money: " in line]
    fastest = answer.pareto[0]
    assert f"{duration_text(fastest.hours * 3600)} for {usd_text(fastest.usd)}" in line
    assert machine_label(fastest.cluster, fastest.recipe.method) in line
    assert MARKS[0] not in text
    assert summary_line(answer) == line.strip()


def test_where_time_counts_the_line_names_what_is_cheaper():
    answer = found(Objective.TIME)
    cheapest = answer.pareto[-1]
    assert summary_line(answer).startswith("cheaper for more time: ")
    assert usd_text(cheapest.usd) in summary_line(answer)


def test_where_memory_counts_what_is_faster_may_cost_less():
    answer = found(Objective.VRAM)
    assert summary_line(answer).startswith("faster with more memory: ")
    nearest = next(point for point in reversed(answer.pareto) if point.hours < answer.plans[0].hours)
    assert f"{duration_text(nearest.hours * 3600)} for {usd_text(nearest.usd)}" in summary_line(answer)


def test_a_winner_that_is_both_fastest_and_cheapest_is_said_to_be():
    answer = found()
    alone = replace(answer, pareto=answer.pareto[-1:])
    assert summary_line(alone) == "nothing else that was tried is faster, whatever it costs"
    plan = answer.plans[0]
    several = replace(plan, estimate=replace(plan.estimate, cluster=cluster(card("l4"), num_gpus=2)))
    assert summary_line(replace(alone, plans=[several])) == f"{summary_line(alone)}; --fsdp tries FSDP2"
    both = replace(alone, objective=Objective.TIME)
    assert summary_line(both) == "nothing else that was tried is cheaper, however long it takes"


def test_with_pareto_the_table_has_every_member_and_its_numbers(capsys):
    answer = found()
    print_pareto(answer)
    table = rows(capsys.readouterr().out)
    assert len(table) == len(answer.pareto)
    for row, point in zip(table, answer.pareto, strict=True):
        cells = row[row[0] == WINNER :]
        assert cells[0] == duration_text(point.hours * 3600)
        assert float(cells[1]) == pytest.approx(point.usd, abs=0.005)
        assert cells[3] == f"{point.cluster.num_gpus} x {point.cluster.node.gpu.id}"
        assert cells[5] == point.recipe.method.value
    assert [row[0] == WINNER for row in table] == [False] * (len(table) - 1) + [True]


def test_with_pareto_the_plot_replaces_the_line(capsys):
    text = printed(found(), capsys, shows_pareto=True)
    assert "faster for more money" not in text
    assert text.count(MARKS[2]) == 2  # in the plot, and where the marks are explained
    assert all(len(line) <= 80 for line in text.splitlines() if re.match(r" *(\$[\d.,]+)? \|", line))


def test_members_by_their_bounds_alone_are_marked(capsys):
    answer = found()
    rough = tuple(point._replace(is_exact=False) for point in answer.pareto)
    print_pareto(replace(answer, pareto=rough))
    text = capsys.readouterr().out
    assert [row[0] for row in rows(text)[: len(rough)]] == [NOT_EXACT] * (len(rough) - 1) + [WINNER]
    assert "not computed exactly" in text


def test_without_prices_there_is_nothing_to_plot_and_that_is_said(capsys):
    bare = search(owned(cluster(card("rtx-4090"))), seq_len=256)
    assert summary_line(bare) is None
    print_pareto(bare)
    assert capsys.readouterr().out == "cost against time: no price or no speed is known of anything that fits\n"
