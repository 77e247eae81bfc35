"""A machine that might be bought, beside the offers that it would take the place of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from vlmplan.cost.owning import HOURS_PER_WEEK, LEAST_USE, WEEKS_PER_MONTH, BreakEven, OwnMachine, break_even
from vlmplan.errors import require_within
from vlmplan.hardware import Gpu, Offer, Pricing, cheapest
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, usd_text

SHOWN_HOURS_PER_WEEK = (5.0, 10.0, 20.0, 40.0, 80.0, HOURS_PER_WEEK)
COMPARABLE_FACTOR = 1.5
"""A machine with as much GPU memory in all, and at most this much more, is comparable. A choice."""
MOST_RENTS = 3
NOT_RENTED = frozenset((Pricing.OWN, Pricing.INTERRUPTIBLE))
"""Terms that are no answer to a machine of one's own, which nobody takes away."""


def equivalent_offers(offers: Sequence[Offer], num_gpus: int, on: date) -> list[Offer]:
    """The cheapest of each kind of terms among ``offers`` of one card that have ``num_gpus`` of it; current ones first,
    then by price."""
    by_terms: dict[Pricing, list[Offer]] = {}
    for offer in offers:
        if offer.num_gpus == num_gpus and offer.pricing not in NOT_RENTED:
            by_terms.setdefault(offer.pricing, []).append(offer)
    best = [offer for group in by_terms.values() if (offer := cheapest(group, on)) is not None]
    return sorted(best, key=lambda offer: (not offer.is_current(on), offer.usd_per_hour))


def comparable_offers(offers: Sequence[Offer], gpus: Mapping[str, Gpu], num_bytes: int, on: date) -> list[Offer]:
    """The cheapest offers, each of another card, with at least ``num_bytes`` of GPU memory in all and not much more."""
    by_card: dict[str, list[Offer]] = {}
    for offer in offers:
        memory = (gpus[offer.gpu_id].memory_bytes or 0) * offer.num_gpus
        if num_bytes <= memory <= COMPARABLE_FACTOR * num_bytes and offer.pricing not in NOT_RENTED:
            by_card.setdefault(offer.gpu_id, []).append(offer)
    best = [min(group, key=lambda offer: (not offer.is_current(on), offer.usd_per_hour)) for group in by_card.values()]
    return sorted(best, key=lambda offer: (not offer.is_current(on), offer.usd_per_hour))[:MOST_RENTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """``num_gpus`` cards of one kind in one machine, used ``hours_per_week``; ``rents``: cheapest first, at least
    one."""

    gpu: Gpu
    num_gpus: int
    machine: OwnMachine
    hours_per_week: float
    rents: tuple[Offer, ...]

    def __post_init__(self) -> None:
        require_within("--hours-per-week", self.hours_per_week, least=LEAST_USE, most=HOURS_PER_WEEK)
        assert self.rents

    @property
    def hours_per_month(self) -> float:
        return self.hours_per_week * WEEKS_PER_MONTH

    @property
    def own_usd_per_month(self) -> float:
        return self.machine.usd_per_month(self.hours_per_month)

    def rent_usd_per_month(self, offer: Offer) -> float:
        return offer.usd_per_hour * self.hours_per_month

    def break_even(self, offer: Offer) -> BreakEven:
        rate = offer.usd_per_hour
        return break_even(self.machine, rent_usd_per_hour=rate, hours_per_month=self.hours_per_month)

    @property
    def pays(self) -> bool:
        """Whether buying costs less than the cheapest offer."""
        return self.own_usd_per_month < self.rent_usd_per_month(self.rents[0])

    @property
    def advice(self) -> str:
        """One sentence: what costs less at these hours, and where that turns."""
        offer = self.rents[0]
        turn = self.break_even(offer)
        own, rent = usd_text(self.own_usd_per_month), usd_text(self.rent_usd_per_month(offer))
        hours = counted(self.hours_per_week, "hour")
        if self.pays:
            assert turn.months is not None
            until = duration_text(turn.months * HOURS_PER_WEEK * WEEKS_PER_MONTH * SECONDS_PER_HOUR)
            earned = until if turn.months < 2 else f"{turn.months:.0f} months"
            then = f"the price is earned in {earned}" if turn.months else "the resale brings back all of the price"
            return f"buy: {hours} a week cost {own} a month owned and {rent} rented; {then}"
        text = f"rent: {hours} a week cost {rent} a month rented and {own} owned; buying pays"
        if turn.hours_per_week is None:
            return f"{text} at no use within {counted(self.machine.lifetime_months, 'month')}"
        return f"{text} from {turn.hours_per_week:.0f} hours a week on"
