"""Offers as a search takes them: spot prices as offers of their own, and what to say of prices that are old."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date

from vlmplan.hardware import PRICE_CURRENT_DAYS, Offer, Pricing
from vlmplan.notes import Caveat
from vlmplan.units import counted


def with_spot(offers: Iterable[Offer]) -> Iterator[Offer]:
    """``offers``, and after each that has a spot price the same machine as one that may be taken away."""
    for offer in offers:
        yield offer
        spot = offer.spot_usd_per_hour
        if spot is not None and offer.pricing is not Pricing.INTERRUPTIBLE:
            yield replace(offer, usd_per_hour=spot, pricing=Pricing.INTERRUPTIBLE)


def is_recent(offer: Offer, on: date, max_age_days: int | None) -> bool:
    """Whether the price was seen within ``max_age_days`` before that day; None: any will do.

    A price of unknown age is not recent, unless it is the user's own word.
    """
    age = offer.age_days(on)
    if max_age_days is None or offer.pricing is Pricing.OWN:
        return True
    return offer.stated_in is not None if age is None else age <= max_age_days


def price_note(offer: Offer | None, on: date) -> str | None:
    """What the user should know of the winner's price; None where it may stand for that day's."""
    if offer is None or offer.is_current(on):
        return None
    age = offer.age_days(on)
    seen = "nobody says when" if age is None else f"{counted(age, 'day')} ago, which is more than {PRICE_CURRENT_DAYS}"
    return Caveat(
        f"the first plan's price was seen {seen}: ask {offer.provider} before you believe it, "
        f"or leave such prices out with --max-price-age-days {PRICE_CURRENT_DAYS}"
    )
