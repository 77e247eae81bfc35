"""Cost against time as SVG: everything in it, escaped, within its frame, the front a falling line."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise

import pytest

from picture_checks import SVG, brings_everything
from search_cases import card, cluster, owned, search
from search_cases import found_on_two_cards as found
from vlmplan.answers.front_picture import WINNER, svg_text
from vlmplan.render.picture import HEIGHT, LEFT, PLOT_HEIGHT, PLOT_WIDTH, TOP, WIDTH
from vlmplan.search import Objective, Recommendation


def circles(answer: Recommendation) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg_text(answer)).findall(f"{SVG}circle")


@pytest.mark.parametrize("objective", Objective)
def test_pictures_bring_everything_with_them(objective: Objective):
    brings_everything(svg_text(found(objective)))


def test_names_are_escaped():
    answer = found()
    model = replace(answer.workload.model, id="<script>alert('1')</script>&\"x")
    page = svg_text(replace(answer, workload=replace(answer.workload, model=model)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_every_point_is_within_the_plot():
    for circle in circles(found()):
        x, y = float(circle.attrib["cx"]), float(circle.attrib["cy"])
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
        if circle.find(f"{SVG}title") is not None:  # else of the legend
            assert LEFT <= x <= LEFT + PLOT_WIDTH
            assert TOP <= y <= TOP + PLOT_HEIGHT


def test_the_winner_is_marked_once_and_says_what_it_is():
    marked = [one for one in circles(found()) if one.attrib["class"] == WINNER and one.find(f"{SVG}title") is not None]
    (winner,) = marked
    assert "first plan: $" in winner.findtext(f"{SVG}title")


def test_the_line_goes_right_and_down_through_every_member_of_the_front():
    answer = found()
    path = ElementTree.fromstring(svg_text(answer)).find(f"{SVG}path").attrib["d"]
    start, steps = re.match(r"M([\d.]+) ([\d.]+)", path), re.findall(r" H([\d.]+) V([\d.]+)", path)
    places = [start.groups(), *steps]
    assert len(places) == len(answer.pareto)
    for (x, y), (next_x, next_y) in pairwise([(float(x), float(y)) for x, y in places]):
        assert next_x >= x
        assert next_y >= y


def test_without_prices_the_picture_says_so():
    bare = search(owned(cluster(card("rtx-4090"))), seq_len=256)
    assert "no price or no speed is known" in svg_text(bare)
    assert "<path" not in svg_text(bare)
