"""Cost against time: the setups than which no other is both faster and cheaper.

Setups are scored with bounds and secants, so those on the front are computed exactly before they are believed. One
that does not fit then makes way for the next; what takes its place is computed exactly in turn, until the front stands.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from vlmplan.hardware import Cluster, Offer
from vlmplan.recipe import Recipe

MAX_EXACT = 64
"""Setups of a front that are computed exactly; each takes about ten milliseconds. Fronts of the shipped catalog have 5
to 15 members, so this only bounds how long a catalog with thousands of offers may take."""


class Priced(Protocol):
    """What a front is made of; ``is_exact``: hours and price come from the whole estimate."""

    @property
    def hours(self) -> float | None: ...

    @property
    def usd(self) -> float | None: ...

    @property
    def is_exact(self) -> bool: ...


Entry = TypeVar("Entry", bound=Priced)


class Point(NamedTuple):
    """A setup that fits a machine, by what the whole run takes there; the bounds decide that where it is not exact."""

    cluster: Cluster
    offer: Offer | None
    recipe: Recipe
    hours: float
    usd: float
    is_exact: bool


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places in ``points`` (hours, usd) that no other beats, by rising hours and so by falling usd.

    A point beats another if it is worse in neither and better in one. Of equal points only the first is kept.

    >>> front([(1, 9), (3, 3), (2, 9), (4, 3), (3, 3)])
    [0, 1]
    """
    found: list[int] = []
    least_usd = float("inf")
    for place in sorted(range(len(points)), key=points.__getitem__):
        if points[place][1] < least_usd:
            least_usd = points[place][1]
            found.append(place)
    return found


def front_of(entries: Iterable[Entry]) -> list[Entry]:
    """The entries on the front; those without a price or a speed are not on it."""
    known = [entry for entry in entries if entry.hours is not None and entry.usd is not None]
    places = front([(entry.hours or 0.0, entry.usd or 0.0) for entry in known])
    return [known[place] for place in places]


def settled(
    entries: Sequence[Entry], exactly: Callable[[Entry], Entry | None], *, most: int = MAX_EXACT
) -> tuple[list[Entry], list[Entry]]:
    """The front after its members have been computed exactly, and all entries that are left.

    ``exactly`` gives what takes the place of an entry: the same in exact numbers; another that is not exact yet, where
    it does not fit; or None. It is asked ``most`` times at the most, the fastest first; members beyond are not exact.
    """
    left = list(entries)
    while True:
        members = front_of(left)
        asked = [entry for entry in members if not entry.is_exact][:most]
        if not asked:
            return members, left
        most -= len(asked)
        gone = {id(entry) for entry in asked}
        answers = [exactly(entry) for entry in asked]
        left = [entry for entry in left if id(entry) not in gone]
        left += [answer for answer in answers if answer is not None]
