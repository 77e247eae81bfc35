"""What is known of prices: the newest list of every provider, and what every GPU costs from the least to the most."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from vlmplan.catalog.catalog import Catalog
from vlmplan.catalog.listing import has_words, require_known, require_named
from vlmplan.hardware import Offer, Pricing


class PriceList(NamedTuple):
    """The offers of one provider. ``as_of`` is the newest day among them; None: undated."""

    provider: str
    offers: tuple[Offer, ...]

    @property
    def newest(self) -> Offer:
        """The offer that was seen last."""
        return max(self.offers, key=lambda offer: offer.as_of or date.min)

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """The GPUs that it has."""
        return tuple(sorted({offer.gpu_id for offer in self.offers}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What one GPU costs for an hour, in US dollars, from the least over the middle to the most."""

    gpu_id: str
    num_offers: int
    num_providers: int
    least_usd: float
    median_usd: float
    most_usd: float
    newest: date | None


def price_lists(offers: Iterable[Offer]) -> list[PriceList]:
    """The list of every provider, the newest first."""
    by_provider: dict[str, list[Offer]] = {}
    for offer in offers:
        by_provider.setdefault(offer.provider, []).append(offer)
    lists = [PriceList(provider=provider, offers=tuple(found)) for provider, found in by_provider.items()]
    return sorted(lists, key=lambda each: (-(each.newest.as_of or date.min).toordinal(), each.provider))


def spread(gpu_id: str, offers: Sequence[Offer]) -> Spread | None:
    """The spread of a GPU's offers for rent; None where nobody rents it out."""
    rented = [offer for offer in offers if offer.gpu_id == gpu_id and offer.pricing is not Pricing.OWN]
    prices = [offer.usd_per_gpu_hour for offer in rented]
    if not prices:
        return None
    days = [offer.as_of for offer in rented if offer.as_of is not None]
    return Spread(
        gpu_id=gpu_id,
        num_offers=len(prices),
        num_providers=len({offer.provider for offer in rented}),
        least_usd=min(prices),
        median_usd=_median(prices),
        most_usd=max(prices),
        newest=max(days, default=None),
    )


def known_prices(
    catalog: Catalog, words: Sequence[str] = (), providers: Sequence[str] = ()
) -> tuple[list[PriceList], list[Spread]]:
    """Lists and spreads of the GPUs that have all ``words`` in their names, of these providers (none: of all).

    Raises UnknownNameError for words that no GPU has, and for a provider that has no offer.
    """
    require_named(catalog, words)
    require_known("provider", providers, {offer.provider for offer in catalog.offers})
    wanted = {name.casefold() for name in providers}
    named = {gpu.id: None for gpu in catalog.gpus if has_words(gpu, words)}
    offers = [
        offer
        for offer in catalog.offers
        if offer.gpu_id in named and (not wanted or offer.provider.casefold() in wanted)
    ]
    spreads = [found for gpu_id in named if (found := spread(gpu_id, offers)) is not None]
    return price_lists(offers), sorted(spreads, key=lambda each: (each.median_usd, each.gpu_id))


def _median(values: Sequence[float]) -> float:
    """The same as ``statistics.median``, whose module takes as long to import as a command needs for all of its
    prices."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


MOST_DAYS_AT_RELEASE = 30
"""Age that a list may have in a release. A choice: half of the age from which an answer calls a price old."""


def too_old_to_ship(offers: Iterable[Offer], on: date) -> list[str]:
    """A sentence for every provider whose newest price is undated, or older on that day than a release allows.

    A user's own machines have no list, and are passed over.
    """
    sentences: list[str] = []
    for each in price_lists(offer for offer in offers if offer.pricing is not Pricing.OWN):
        age = each.newest.age_days(on)
        if age is None:
            sentences.append(f"the list of {each.provider} has no day")
        elif age > MOST_DAYS_AT_RELEASE:
            of = each.newest.as_of
            sentences.append(
                f"the list of {each.provider} is of {of}, {age} days before {on}; {MOST_DAYS_AT_RELEASE} are allowed"
            )
    return sentences
