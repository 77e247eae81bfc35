"""Where no offer of the catalog is left under what the user asks for: the fewest options to change so that one is.

Every subset of the limits is lifted, the smallest first. Of those that leave offers, each is said as options that admit
the cheapest of them, so what is named can be typed as it stands.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_UP, Decimal
from itertools import combinations
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.hardware import Offer, Pricing
from vlmplan.request import Options
from vlmplan.search.offers import DEFAULT_PRICING, GpuCount, OfferFilter, place_of
from vlmplan.units import counted, is_or_are, usd_text

NUM_SHOWN = 3
"""Changes that a sentence names at most. A choice."""
LIMITS = ("pricing", "max_price_age_days", "max_usd_per_hour", "region", "provider", "gpu")
"""Options that leave offers out, what is easiest to give up first. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedLimits:
    """Options that admit offers; None takes one away. ``offers`` are those, the cheapest first."""

    options: Options = field(hash=False)
    offers: tuple[Offer, ...]

    @property
    def text(self) -> str:
        """``with --pricing marketplace there are 22 offers, from $0.03 an hour``."""
        given = {name: value for name, value in self.options.items() if value is not None}
        words = [f"--{name.replace('_', '-')} {value}" for name, value in given.items()]
        dropped = ["--" + name.replace("_", "-") for name in self.options if name not in given]
        parts = ["with " + " ".join(words)] if words else []
        parts += ["without " + " ".join(dropped)] if dropped else []
        count = counted(len(self.offers), "offer")
        verb = is_or_are(len(self.offers))
        return f"{' and '.join(parts)} there {verb} {count}, from {usd_text(self.offers[0].usd_per_hour)} an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferQuery:
    """What an offer has to be: ``places`` are the GPUs and counts that may be rented, all of them where there are
    none."""

    places: tuple[GpuCount, ...] = ()
    offers: OfferFilter
    num_nodes: int
    today: date

    def without(self, names: Iterable[str]) -> "OfferQuery":
        """The query with these limits lifted."""
        query = self
        for name in names:
            query = query.with_option(name, None)
        return query

    def with_option(self, name: str, value: Any) -> "OfferQuery":
        """The query with another value of an option; None lifts the limit."""
        if name == "gpu":
            return replace(self, places=() if value is None else (value,))
        if name == "pricing":
            return replace(self, offers=replace(self.offers, pricing=tuple(Pricing) if value is None else (value,)))
        if name in ("provider", "region"):
            return replace(self, offers=replace(self.offers, **{name + "s": () if value is None else (value,)}))
        return replace(self, offers=replace(self.offers, **{name: value}))

    def admitted(self, known: Iterable[Offer]) -> list[Offer]:
        """The offers of ``known`` that are left, the cheapest first."""
        of_place = [offer for offer in known if not self.places or place_of(offer) in self.places]
        left = self.offers.admitted(of_place, self.num_nodes, self.today)
        return sorted(left, key=lambda offer: (offer.usd_per_hour, offer.provider, offer.sku or ""))

    @property
    def limits(self) -> list[str]:
        """The limits that there are. Pricing is one even where the user says nothing."""
        offers = self.offers
        values = {
            "pricing": True,
            "max_price_age_days": offers.max_price_age_days is not None,
            "max_usd_per_hour": offers.max_usd_per_hour is not None,
            "region": offers.regions,
            "provider": offers.providers,
            "gpu": self.places,
        }
        return [name for name in LIMITS if values[name]]


NO_OFFER_AT_ALL = (
    "no catalog has an offer of a GPU whose memory is known; add one under offers: in a file that --catalog names, or "
    "name the machine that you have with --gpu NAME:NUMBER"
)


def relaxations(catalog: Catalog, query: OfferQuery) -> list[RelaxedLimits]:
    """The changes of fewest options under which an offer is left, the easiest first; none where no offer is known."""
    known = [offer for offer in catalog.offers if catalog.gpu_by_id(offer.gpu_id).has_known_memory]
    for count in range(1, len(query.limits) + 1):
        found = [one for names in combinations(query.limits, count) for one in _lifted(known, query, names)]
        if found:
            return found
    return []


def _lifted(known: Sequence[Offer], query: OfferQuery, names: Sequence[str]) -> Iterator[RelaxedLimits]:
    """What lifts the limits of these names, no more than it has to: one answer for each pricing, if that is lifted."""
    lifted = query.without(names)
    done: set[Hashable] = set()
    for offer in sorted(lifted.admitted(known), key=lambda one: _distance(one, query, names)):
        kind = offer.pricing if "pricing" in names else None
        if kind in done:
            continue
        done.add(kind)
        options = {name: _admitting(name, offer, query) for name in names}
        changed = query
        for name, value in options.items():
            changed = changed.with_option(name, value)
        words = {name: _word(value) for name, value in options.items()}
        yield RelaxedLimits(options=words, offers=tuple(changed.admitted(known)))


def _distance(offer: Offer, query: OfferQuery, names: Sequence[str]) -> tuple[bool, float]:
    """How far it is from what was asked for: of another GPU than those named, then by price, or age if only that is
    lifted."""
    is_other = bool(query.places) and all(place.gpu_id != offer.gpu_id for place in query.places)
    if "max_price_age_days" in names and "max_usd_per_hour" not in names:
        age = offer.age_days(query.today)
        return is_other, float("inf") if age is None else age
    return is_other, offer.usd_per_hour


def _admitting(name: str, offer: Offer, query: OfferQuery) -> Any:
    """The value of an option that admits ``offer``."""
    if name == "gpu":
        return place_of(offer)
    if name == "pricing":
        return offer.pricing
    if name == "max_price_age_days":
        return offer.age_days(query.today)
    if name == "max_usd_per_hour":
        usd = Decimal(repr(offer.usd_per_hour * query.num_nodes))
        return float(usd.quantize(Decimal("0.01"), rounding=ROUND_UP))
    return getattr(offer, name)


def _word(value: Any) -> Any:
    if isinstance(value, Pricing):
        return value.value
    return f"{value:g}" if isinstance(value, float) else value


def no_offer_sentence(catalog: Catalog, query: OfferQuery) -> str:
    """The sentence that no offer is left: under what, and with which change of it one is."""
    ways = relaxations(catalog, query)
    if not ways:
        return NO_OFFER_AT_ALL
    shown = "; ".join(way.text for way in ways[:NUM_SHOWN])
    return f"no offer of the catalog is left under {', '.join(_limit_texts(query))}; {shown}"


def _limit_texts(query: OfferQuery) -> Iterator[str]:
    offers = query.offers
    if query.places:
        yield "--gpu " + " or ".join(str(place) for place in query.places)
    for provider in offers.providers:
        yield f"--provider {provider}"
    for region in offers.regions:
        yield f"--region {region}"
    if offers.max_usd_per_hour is not None:
        yield f"--max-usd-per-hour {offers.max_usd_per_hour:g}"
    if offers.max_price_age_days is not None:
        yield f"--max-price-age-days {offers.max_price_age_days}"
    names = " or ".join(pricing.value for pricing in offers.pricing or DEFAULT_PRICING)
    yield f"--pricing {names}" + ("" if offers.pricing else " (the default)")
