"""What a rehearsal refuses is neither a plan nor on the front any more."""

from types import SimpleNamespace

from search_cases import card, offer, rented, search
from vlmplan.search.confirmation import _without
from vlmplan.search.pareto import front_of
from vlmplan.units import GIB


def test_a_refused_winner_leaves_the_front_to_what_it_beat():
    gpu = card("rtx-4090")
    found = search([rented(gpu, offer(gpu, 0.4 * count, count)) for count in (1, 2)], seq_len=256)
    winner = found.plans[0]
    refused = (winner.estimate.cluster, winner.estimate.recipe)
    assert refused == (found.pareto[-1].cluster, found.pareto[-1].recipe)
    rehearsed = SimpleNamespace(
        device=SimpleNamespace(device_bytes=30 * GIB, usable_bytes=24 * GIB), estimate=winner.estimate
    )
    left = _without(found, [(winner, rehearsed)], found.plans[1:])
    assert refused not in [(point.cluster, point.recipe) for point in left.scored]
    assert len(left.scored) == len(found.scored) - 1
    assert list(left.pareto) == front_of(left.scored)
    assert left.pareto[-1].usd >= winner.usd
