"""Which offers a search may rent: those that the user's limits on terms, price, age and place leave."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from vlmplan.catalog import Catalog
from vlmplan.errors import require_within
from vlmplan.hardware import Node, Offer, Pricing, cheapest
from vlmplan.search.prices import is_recent, with_spot
from vlmplan.units import MAX_AMOUNT, MAX_COUNT

DEFAULT_PRICING = (Pricing.ON_DEMAND, Pricing.OWN)


class GpuCount(NamedTuple):
    """So many cards of a kind in a machine, as ``--gpu`` calls them."""

    gpu_id: str
    num_gpus: int

    def __str__(self) -> str:
        return f"{self.gpu_id}:{self.num_gpus}"


def cheapest_of_node(node: Node, catalog: Catalog, on: date) -> Offer | None:
    """The cheapest offer of as many such GPUs as the node has, on demand or of one's own; None without a price."""
    offers = [
        offer
        for offer in catalog.offers_for(node.gpu.id)
        if offer.num_gpus == node.num_gpus and offer.pricing in DEFAULT_PRICING
    ]
    return cheapest(offers, on)


def place_of(offer: Offer) -> GpuCount:
    return GpuCount(gpu_id=offer.gpu_id, num_gpus=offer.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """The offers that count. ``pricing`` empty: on demand and own machines.

    ``regions`` leaves out offers of unknown region, but not machines of the user's own; ``max_price_age_days`` leaves
    out prices that are older or of unknown age.
    """

    pricing: tuple[Pricing, ...] = ()
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    max_usd_per_hour: float | None = None
    max_price_age_days: int | None = None

    def __post_init__(self) -> None:
        require_within("--max-price-age-days", self.max_price_age_days, least=0, most=MAX_COUNT)
        require_within("--max-usd-per-hour", self.max_usd_per_hour, least=0, most=MAX_AMOUNT)

    @property
    def is_narrowed(self) -> bool:
        """Whether the user named a price, places or terms, so that a machine without such an offer is no answer."""
        limits = (self.max_usd_per_hour, self.max_price_age_days)
        return bool(self.pricing or self.providers or self.regions) or limits != (None, None)

    def admits(self, offer: Offer, num_nodes: int) -> bool:
        if offer.pricing not in (self.pricing or DEFAULT_PRICING):
            return False
        if self.providers and offer.provider not in self.providers:
            return False
        if self.regions and offer.region not in self.regions and offer.pricing is not Pricing.OWN:
            return False
        return self.max_usd_per_hour is None or offer.usd_per_hour * num_nodes <= self.max_usd_per_hour

    def admitted(self, offers: Iterable[Offer], num_nodes: int, on: date) -> list[Offer]:
        """The offers that count, spot prices among them where the user takes such machines."""
        known = with_spot(offers) if Pricing.INTERRUPTIBLE in self.pricing else offers
        age = self.max_price_age_days
        return [offer for offer in known if self.admits(offer, num_nodes) and is_recent(offer, on, age)]
