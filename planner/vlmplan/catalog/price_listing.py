"""A machine as its provider lists it, with the price and where that was read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from vlmplan.hardware import Pricing


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One machine at one price, before it is known which GPU of the catalog it has.

    ``num_gpus`` None: the provider does not say, so that only a product that the catalog knows can be taken. Zero
    vCPUs or host memory are unknown. ``exchange_rate``: US dollars for one unit of ``currency``, the one in which the
    provider states its price; ``usd_per_hour`` is converted already, for the whole machine.
    """

    provider: str
    product: str
    usd_per_hour: float
    source: str
    card: str | None = None
    card_memory_gib: float | None = None
    num_gpus: int | None = None
    region: str = ""
    pricing: Pricing = Pricing.ON_DEMAND
    num_vcpus: float = 0.0
    host_ram_gib: float = 0.0
    currency: str = "USD"
    exchange_rate: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """What one provider said: its machines, when, or why there are none.

    ``as_of`` is the day of the list, ``seen_at`` the moment in UTC at which it was read, ``2026-11-24T06:15:00Z``.
    """

    provider: str
    listings: Sequence[Listing] = ()
    as_of: date | None = None
    seen_at: str | None = None
    failure: str | None = None
