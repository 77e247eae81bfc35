"""Offers as a search takes them: spot prices as offers of their own, and what to say of prices that are old."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date

from vlmplan.catalog.price_lists import Spread, spread
from vlmplan.hardware import PRICE_CURRENT_DAYS, Offer, Pricing
from vlmplan.notes import Caveat
from vlmplan.request import Objective
from vlmplan.units import counted, usd_text


def with_spot(offers: Iterable[Offer]) -> Iterator[Offer]:
    """``offers``, and after each that has a spot price the same machine as one that may be taken away,
    whose name does not say that it stays."""
    for offer in offers:
        yield offer
        spot = offer.spot_usd_per_hour
        if spot is not None and offer.pricing is not Pricing.INTERRUPTIBLE:
            yield replace(offer, usd_per_hour=spot, pricing=Pricing.INTERRUPTIBLE, sku=offer.product)


def is_recent(offer: Offer, on: date, max_age_days: int | None) -> bool:
    """Whether the price was seen within ``max_age_days`` before that day; None: any will do.

    A price of unknown age is not recent, unless it is the user's own word.
    """
    age = offer.age_days(on)
    if max_age_days is None or offer.pricing is Pricing.OWN:
        return True
    return offer.stated_in is not None if age is None else age <= max_age_days


def spread_beside(offer: Offer, offers: Iterable[Offer]) -> Spread | None:
    """What the GPU of ``offer`` costs elsewhere, on machines that may be taken away if this one may, else on others."""
    may_be_taken = offer.pricing is Pricing.INTERRUPTIBLE
    alike = [other for other in offers if (other.pricing is Pricing.INTERRUPTIBLE) is may_be_taken]
    return spread(offer.gpu_id, alike)


def spread_text(found: Spread) -> str:
    """The range of what one GPU costs, in words."""
    if found.num_offers == 1:
        return f"one offer of {found.gpu_id} is known"
    return (
        f"{found.num_offers:,} offers of {found.gpu_id} go from {usd_text(found.least_usd)} to "
        f"{usd_text(found.most_usd)} a GPU and hour, half of them below {usd_text(found.median_usd)}"
    )


def price_note(
    offer: Offer | None, on: date, *, objective: Objective = Objective.COST, offers: Sequence[Offer] = ()
) -> str | None:
    """What the user should know of the winner's price; None where it may stand for that day's. ``offers`` are those
    that were compared."""
    if offer is None or offer.is_current(on):
        return None
    age = offer.age_days(on)
    seen = "nobody says when the first plan's price was seen"
    if age is not None:
        seen = f"the first plan's price was seen {counted(age, 'day')} ago, which is more than {PRICE_CURRENT_DAYS}"
    changed = "the order of the plans" if objective is Objective.COST else "what a run costs"
    found = spread_beside(offer, offers)
    between = "" if found is None else f"; {spread_text(found)}"
    has_newer = any(other.pricing is not Pricing.OWN and other.is_current(on) for other in offers)
    remedy = (
        f"--max-price-age-days {PRICE_CURRENT_DAYS} leaves such prices out"
        if has_newer
        else "vlmplan prices --refresh fetches newer ones"
    )
    return Caveat(f"{seen}, so {changed} may have changed{between}; {remedy}")
