"""Which rank has the highest peak, where ranks keep different shares of gradients.

One rank's walk says what all others hold too, and an engine says of any rank what it has of its own
(``Engine.own_bytes``): so all ranks are compared without a walk of each.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vlmplan.engines.engine import Engine
from vlmplan.memory.peaks import Stretch


class WalkedStep(NamedTuple):
    """Bytes of one rank's step: at most in the phases before backward; ``stretches`` of backward, and what is there
    beside them; at most in the optimizer's step, and in phases after it."""

    before: int
    stretches: Sequence[Stretch]
    beside_backward: int
    step: int
    after: int


def highest_rank(engine: Engine, walked: WalkedStep, *, accumulates: bool) -> int:
    """The rank with the highest peak of all; of equals that with most gradients, then that of ``engine``, whose
    optimizer step takes most. ``accumulates``: the step has other micro batches before."""
    marks = [stretch.marked for stretch in walked.stretches]
    own, own_resident = list(engine.own_bytes(marks, accumulates=accumulates)), engine.own_resident_bytes
    shared = [
        (stretch.most_bytes if stretch.marked is None else stretch.start_bytes) - each.at_start
        for stretch, each in zip(walked.stretches, own, strict=False)  # after the updates nothing is made
    ]
    backward = max([stretch.most_bytes for stretch in walked.stretches]) + walked.beside_backward
    highest, best = engine.rank, (max(walked.before, backward, walked.step, walked.after), engine.own_gradient_bytes)
    places = {ordinal: place for place, marked in enumerate(marks) for ordinal in marked or ()}
    compared: list[tuple[int, int]] = []
    for rank in (engine.rank, *range(engine.num_ranks)):
        other = type(engine)(engine.table, engine.recipe, num_ranks=engine.num_ranks, rank=rank)
        begins, share = other.share_begins(places), other.own_gradient_bytes
        if begins is not None:
            if any(earlier <= begins and larger >= share for earlier, larger in compared):
                continue  # at no moment has it more than that rank
            compared.append((begins, share))
        others = list(other.own_bytes(marks, accumulates=accumulates))
        peak = max(
            walked.before + others[0].at_start - own[0].at_start,
            walked.after + other.own_resident_bytes - own_resident,
            max([num_bytes + each.most for num_bytes, each in zip(shared, others, strict=True)])
            + walked.beside_backward,
        )
        if (peak, share) > best:
            highest, best = rank, (peak, share)
    return highest
