"""Buying or renting: what is asked, and the machines that it is about."""

from dataclasses import dataclass
from datetime import date

from vlmplan.catalog import Catalog
from vlmplan.cost.owning import HOST_USD, HOST_USD_PER_GPU, HOST_WATTS, OwnMachine, wall_watts
from vlmplan.cost.purchase import NOT_RENTED, Purchase, comparable_offers, equivalent_offers
from vlmplan.errors import DoesNotFitError, InputError, require_within
from vlmplan.gpu_choice import CPU, LOCAL, parse_gpu_choice
from vlmplan.hardware import PRICE_CURRENT_DAYS, Gpu, Offer
from vlmplan.notes import Caveat
from vlmplan.units import MAX_AMOUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseRequest:
    """The options of ``vlmplan buy``; None: the default. ``price`` is of one card, in usd."""

    gpu: str
    hours_per_week: float
    price: float | None = None
    host_usd: float | None = None
    watts_host: float | None = None
    usd_per_kwh: float | None = None
    months: float | None = None
    resale_fraction: float | None = None
    against: str | None = None


def requested_purchase(request: PurchaseRequest, catalog: Catalog, on: date) -> tuple[Purchase, list[str]]:
    """What the options ask about, and sentences that the user should see with it.

    Raises InputError where a price or the power of the card is not known, DoesNotFitError where nothing is rented out
    that it could be compared with.
    """
    gpu, count = _cards(request.gpu, catalog)
    num_gpus = count or 1
    card_usd, notes = _card_price(gpu, request.price)
    if gpu.tdp_watts is None:
        raise _unknown(gpu, "power", f"state it as gpus.{gpu.id}.tdp_w in a catalog of your own")
    host_watts = HOST_WATTS if request.watts_host is None else request.watts_host
    require_within("--watts-host", host_watts, least=0, most=MAX_AMOUNT)
    require_within("--price", card_usd, least=0, most=MAX_AMOUNT)
    own_host_usd = HOST_USD + HOST_USD_PER_GPU * num_gpus
    stated = {
        "usd_per_kwh": request.usd_per_kwh,
        "lifetime_months": request.months,
        "resale_fraction": request.resale_fraction,
    }
    machine = OwnMachine(
        cards_usd=card_usd * num_gpus,
        host_usd=own_host_usd if request.host_usd is None else request.host_usd,
        watts=wall_watts(num_gpus=num_gpus, gpu_watts=gpu.tdp_watts, host_watts=host_watts),
        **{name: value for name, value in stated.items() if value is not None},
    )
    rents, more = _rents(request.against, gpu, num_gpus, catalog, on)
    purchase = Purchase(gpu=gpu, num_gpus=num_gpus, machine=machine, hours_per_week=request.hours_per_week, rents=rents)
    return purchase, [*notes, *more]


def _cards(text: str, catalog: Catalog) -> tuple[Gpu, int | None]:
    choice = parse_gpu_choice(text)
    if choice.name.casefold() in (LOCAL, CPU):
        raise InputError(f"{choice.name} is there already; name a card of the catalog (see vlmplan gpus)")
    return catalog.gpu(choice.name), choice.num_gpus


def _card_price(gpu: Gpu, price_usd: float | None) -> tuple[float, list[str]]:
    if price_usd is not None:
        return price_usd, []
    if gpu.launch_price_usd is None:
        raise _unknown(gpu, "price", "give --price USD, what one card costs you")
    launch = "at its launch" if gpu.launch_year is None else f"when it came in {gpu.launch_year}"
    return gpu.launch_price_usd, [
        f"${gpu.launch_price_usd:,.0f} is what a {gpu.name} cost {launch}; shops ask other prices: --price USD"
    ]


def _unknown(gpu: Gpu, what: str, remedy: str) -> Exception:
    return InputError(f"the {what} of {gpu.id} is not known; {remedy}")


def _rents(
    against: str | None, gpu: Gpu, num_gpus: int, catalog: Catalog, on: date
) -> tuple[tuple[Offer, ...], list[str]]:
    """The offers to compare with, and what is to be said of them."""
    rented, count = (gpu, num_gpus) if against is None else _cards(against, catalog)
    count = count or num_gpus
    offers = equivalent_offers(catalog.offers_for(rented.id), count, on)
    notes: list[str] = []
    if not offers:
        counts = {offer.num_gpus for offer in catalog.offers_for(rented.id) if offer.pricing not in NOT_RENTED}
        others = f" (but {', '.join(map(str, sorted(counts)))})" if counts else ""
        missing = f"no offer has {count} x {rented.id}{others}"
        if against is not None or gpu.memory_bytes is None:
            raise DoesNotFitError(missing)
        gpus = {known.id: known for known in catalog.gpus}
        offers = comparable_offers(catalog.offers, gpus, gpu.memory_bytes * num_gpus, on)
        if not offers:
            raise DoesNotFitError(f"{missing}, and none as much GPU memory; --against NAME:COUNT names another")
        notes.append(Caveat(f"{missing}; compared with offers of as much GPU memory"))
    notes += dict.fromkeys(_speed_note(offer, catalog, gpu, num_gpus) for offer in offers if offer.gpu_id != gpu.id)
    notes += _several_note(catalog.offers_for(rented.id), offers[0], count, on)
    if not offers[0].is_current(on):
        notes.append(
            Caveat(
                f"no price of these is newer than {PRICE_CURRENT_DAYS} days, so which is cheaper may have changed: "
                "ask the provider, or fetch newer ones with vlmplan prices --refresh"
            )
        )
    return tuple(offers), notes


def _several_note(offers: tuple[Offer, ...], best: Offer, count: int, on: date) -> list[str]:
    """What single cards cost where several of them are cheaper than the machine that has all."""
    singles = equivalent_offers(offers, 1, on) if count > 1 else []
    single = min(singles, key=lambda offer: (not offer.is_current(on), offer.usd_per_hour), default=None)
    if single is None or single.usd_per_hour * count >= best.usd_per_hour:
        return []
    return [
        f"{count} machines with one card each cost ${single.usd_per_hour * count:.2f} an hour together "
        f"({single.provider}), for work that needs one card at a time"
    ]


def _speed_note(offer: Offer, catalog: Catalog, gpu: Gpu, num_gpus: int) -> str:
    """How much more or less the rented machine computes in an hour."""
    rented = catalog.gpu_by_id(offer.gpu_id)
    ours, theirs = (card.peak_flops_per_second.bf16 or card.peak_flops_per_second.fp16 for card in (gpu, rented))
    if ours is None or theirs is None:
        return Caveat(f"how {rented.id} compares in speed is not known; hours are taken as equal")
    ratio = theirs * offer.num_gpus / (ours * num_gpus)
    return Caveat(
        f"{offer.num_gpus} x {rented.id} compute {ratio:.2g} times as much an hour by their peaks; "
        f"hours are taken as equal"
    )
