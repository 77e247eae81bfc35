"""Why the winner is the winner: the sentence is computed from the numbers, in the order in which plans are ranked."""

import re
from types import SimpleNamespace

import pytest

from search_cases import card, offer, rented, search
from vlmplan.recipe.choices import Method
from vlmplan.search import Objective
from vlmplan.search.explanation import explanation, label, runner_up
from vlmplan.units import GIB

COST, TIME, VRAM = Objective.COST, Objective.TIME, Objective.VRAM


def plan(gpu: str, usd: float | None, hours: float | None, gib: float = 20.0, num_gpus: int = 1, method: str = "lora"):
    """What the sentence asks of a plan."""
    node = SimpleNamespace(gpu=SimpleNamespace(id=gpu), num_gpus=num_gpus)
    estimate = SimpleNamespace(
        cluster=SimpleNamespace(node=node, num_nodes=1, num_gpus=num_gpus),
        recipe=SimpleNamespace(method=Method(method)),
        device=SimpleNamespace(device_bytes=gib * GIB),
    )
    return SimpleNamespace(usd=usd, hours=hours, estimate=estimate)


CASES = [
    # what was saved, paid with what
    (COST, plan("t4", 2.1, 6.2), plan("l4", 6.2, 3.0), "t4 (lora): $4.10 less than 1 x l4 (lora), for 3.2 h more"),
    (TIME, plan("l4", 6.2, 3.0), plan("t4", 2.1, 6.2), "l4 (lora): 3.2 h less than 1 x t4 (lora), for $4.10 more"),
    (COST, plan("t4", 2.1, 3.0), plan("l4", 6.2, 6.2), "t4 (lora): $4.10 less and 3.2 h less than 1 x l4 (lora)"),
    (
        VRAM,
        plan("t4", 6.2, 6.2, gib=8.0),
        plan("l4", 2.1, 3.0, gib=20.0),
        "t4 (lora): 12.00 GiB less on each GPU than 1 x l4 (lora), for $4.10 more and 3.2 h more",
    ),
    # the same in what decides
    (COST, plan("t4", 5.0, 3.0), plan("l4", 5.0, 6.2), "t4 (lora): the same price as 1 x l4 (lora), and 3.2 h less"),
    (COST, plan("t4", 5.0, 6.2), plan("l4", 5.0, 3.0), "t4 (lora): the same price as 1 x l4 (lora), for 3.2 h more"),
    (
        COST,
        plan("t4", 5.0, 3.0, gib=8.0),
        plan("l4", 5.001, 3.0, gib=20.0),
        "t4 (lora): the same price as 1 x l4 (lora), and 12.00 GiB less on each GPU",
    ),
    # what is not known
    (
        COST,
        plan("t4", None, 4.0, num_gpus=2),
        plan("l4", None, 10.0),
        "t4 (lora): 2.0 h of GPU time less and 6.0 h less than",
    ),
    (
        COST,
        plan("t4", 1.0, 4.0),
        plan("l4", None, 10.0),
        "6.0 h less than 1 x l4 (lora); no price is known of that one",
    ),
    (COST, plan("t4", None, None), plan("l4", None, None, gib=32.0), "12.00 GiB less on each GPU than 1 x l4 (lora)"),
]


@pytest.mark.parametrize(("objective", "winner", "rival", "text"), CASES)
def test_sentence_says_what_was_saved_and_what_that_was_paid_with(objective, winner, rival, text: str):
    assert text in explanation([winner, rival], objective)


def test_runner_up_differs_in_hardware_or_method():
    first, same, other = plan("t4", 1.0, 1.0), plan("t4", 1.1, 1.0), plan("t4", 1.2, 1.0, method="qlora")
    assert runner_up([first, same, other]) is other
    assert runner_up([first, same]) is None
    assert explanation([first, same], COST) is None
    assert explanation([first], COST) is None


@pytest.mark.parametrize("objective", Objective)
def test_a_searchs_winner_is_told_from_its_second_by_what_the_objective_ranks(objective: Objective):
    gpus = card("a100-sxm4-80gb"), card("rtx-4090")
    candidates = [rented(gpu, offer(gpu, usd)) for gpu, usd in zip(gpus, (2.0, 0.4), strict=True)]
    plans = search(candidates, objective=objective, seq_len=256).plans
    sentence = explanation(plans, objective)
    assert sentence.startswith(f"{label(plans[0])}: ")
    assert f" {label(runner_up(plans))}" in sentence
    first = re.split(r" less| as ", sentence.partition(": ")[2])[0]
    assert re.search({COST: r"\$|price", TIME: r" (h|min|s|ms)$|time", VRAM: "iB|memory"}[objective], first)


def test_differences_too_small_to_print_read_well():
    cheaper, dearer = plan("t4", 0.0100, 1.0), plan("l4", 0.0109, 2.0)
    assert "t4 (lora): under $0.001 less and 60 min less than" in explanation([cheaper, dearer], COST)
