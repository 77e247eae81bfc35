"""Whether a price can be: a band for every GPU, and what moved more than prices do.

A list of which one number was read wrongly (a month's price, one in cents, one of eight cards) has numbers far from
what anybody asks for that card. Such a list is left out as a whole: what else in it is wrong cannot be seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vlmplan.catalog.rules import Fields
from vlmplan.hardware import Offer, Pricing
from vlmplan.units import usd_text

BAND_FACTOR = 4.0
"""By which a price may be below the least and above the most that shipped lists ask for the card. Assumed: the lists
hold spot and marketplace prices as well as those of the large clouds, which are up to ten times as high already."""
ANY_BAND = (0.005, 200.0)
"""US dollars an hour for a card that no shipped list has. Assumed: the oldest and the newest card are within it."""
MOVE_FACTOR = 2.0
"""A price that rose or fell by more since it was seen last is said. Assumed: list prices move rarely and by little."""
HOSTS_PRICES = frozenset((Pricing.MARKETPLACE.value, Pricing.COMMUNITY.value))
"""Terms under which every host states its own price: one that cannot be is that host's mistake, and left out alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The range of what an hour of one GPU can cost, in US dollars."""

    least_usd: float
    most_usd: float

    def __contains__(self, usd: float) -> bool:
        return self.least_usd <= usd <= self.most_usd


def bands(offers: Iterable[Offer]) -> Mapping[str, Band]:
    """The band of every GPU that ``offers`` have."""
    prices: dict[str, list[float]] = {}
    for offer in offers:
        spot = () if offer.spot_usd_per_hour is None else (offer.spot_usd_per_hour / offer.num_gpus,)
        prices.setdefault(offer.gpu_id, []).extend(usd for usd in (offer.usd_per_gpu_hour, *spot) if usd > 0)
    return {
        gpu_id: Band(least_usd=min(found) / BAND_FACTOR, most_usd=max(found) * BAND_FACTOR)
        for gpu_id, found in prices.items()
        if found
    }


def implausible(offer: Fields, known: Mapping[str, Band]) -> str | None:
    """Why the price of an offer cannot be; None where it can."""
    band = known.get(offer["gpu"], Band(least_usd=ANY_BAND[0], most_usd=ANY_BAND[1]))
    usd: float = offer["usd_per_hour"] / offer["num_gpus"]
    if usd in band:
        return None
    return (
        f"{usd_text(usd)} an hour for one {offer['gpu']} is not between "
        f"{usd_text(band.least_usd)} and {usd_text(band.most_usd)}"
    )


def moves(offers: Sequence[Fields], before: Iterable[Offer]) -> dict[str, str]:
    """How far the cheapest price of each of these terms moved, by GPU, where that is by more than ``MOVE_FACTOR``;
    ``before`` is what was known of the same provider."""
    then: dict[tuple[str, str], float] = {}
    for offer in before:
        key = (offer.gpu_id, offer.pricing.value)
        then[key] = min(then.get(key, offer.usd_per_gpu_hour), offer.usd_per_gpu_hour)
    now: dict[tuple[str, str], float] = {}
    for offer in offers:
        key, usd = (offer["gpu"], offer["pricing"]), offer["usd_per_hour"] / offer["num_gpus"]
        now[key] = min(now.get(key, usd), usd)
    return {
        gpu_id: f"{gpu_id} {terms.replace('_', ' ')} from {usd_text(then[gpu_id, terms])} to {usd_text(usd)}"
        for (gpu_id, terms), usd in now.items()
        if then.get((gpu_id, terms)) and not 1 / MOVE_FACTOR <= usd / then[gpu_id, terms] <= MOVE_FACTOR
    }
