"""Current prices as a catalog file of their own: what providers list → offers of known GPUs → JSON.

A machine whose card cannot be told for certain is counted by its name and left out. A provider that fails, or of whose
prices one cannot be, is left out with a sentence: nothing is put in its place, and what was known of it keeps its date.
The file replaces the shipped list of each provider that it has a newer one of; the user's own files come on top of it.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from vlmplan.catalog.card_names import CardNames, KnownMachine
from vlmplan.catalog.catalog import Catalog
from vlmplan.catalog.file import read_catalog_file
from vlmplan.catalog.places import refreshed_catalog_path
from vlmplan.catalog.plausibility import HOSTS_PRICES, Band, bands, implausible, moves
from vlmplan.catalog.price_listing import Listing, ProviderAnswer
from vlmplan.catalog.rules import MAX_GPUS_PER_NODE, OFFER_REQUIRED, SCHEMA, Fields
from vlmplan.catalog.shipped import shipped_catalog
from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import write_atomically
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Offer, Pricing
from vlmplan.plain_text import one_line
from vlmplan.units import counted

MOST_OFFERS = 2000
"""Of one provider. A choice: Vast's cheapest of every card are about 300."""
SHOWN_UNKNOWN = 8
SHOWN_MOVES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """New offers under the catalog's keys, and lines for the user: one for each provider, one for unknown cards.

    ``failure``: why the first provider that has none failed.
    """

    offers: tuple[Fields, ...]
    lines: tuple[str, ...]
    failure: str | None = None


def refreshed(
    answers: Sequence[ProviderAnswer], catalog: Catalog, *, today: date, before: Sequence[Offer] | None = None
) -> Refreshed:
    """Offers from what the providers said; of each card, count, provider and terms the cheapest, and dearer ones only
    if their host has more memory. ``before``: what was known until now, the offers of ``catalog`` if not given."""
    known = _Known(names=CardNames(catalog), bands=bands(catalog.offers), before=before or catalog.offers)
    unknown: Counter[str] = Counter()
    offers: list[Fields] = []
    lines: list[str] = []
    failures: list[str] = []
    for answer in answers:
        found = _offers_of(answer, known, unknown, today=today)
        offers += found.offers
        lines += [f"{answer.provider}: {line}" for line in found.lines]
        failures += [] if found.failure is None else [found.failure]
    if unknown:
        lines.append(_unknown_line(unknown))
    return Refreshed(offers=tuple(offers), lines=tuple(lines), failure=failures[0] if failures else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What machines and prices are held against."""

    names: CardNames
    bands: Mapping[str, Band]
    before: Sequence[Offer]


def _offers_of(answer: ProviderAnswer, known: _Known, unknown: Counter[str], *, today: date) -> Refreshed:
    if answer.failure is not None:
        return _nothing(answer.failure)
    groups: dict[tuple[str, int, Pricing], list[tuple[Listing, KnownMachine]]] = {}
    for listing in answer.listings:
        machine = known.names.machine(listing)
        if machine is None:
            unknown[_card_text(listing)] += 1
        elif 1 <= machine.num_gpus <= MAX_GPUS_PER_NODE and 0 < listing.usd_per_hour < float("inf"):
            groups.setdefault((machine.gpu_id, machine.num_gpus, listing.pricing), []).append((listing, machine))
    terms: JsonDict = {
        "provider": answer.provider,
        "as_of": (answer.as_of or today).isoformat(),
        "as_of_basis": "exact",
    }
    terms |= {} if answer.seen_at is None else {"seen_at": answer.seen_at}
    offers = [terms | _offer(*one) for group in groups.values() for one in _ladder(group)]
    if len(offers) > MOST_OFFERS:
        return _nothing(f"it lists {len(offers):,} offers, and at most {MOST_OFFERS:,} are kept")
    wrong = [(offer, why) for offer in offers if (why := implausible(offer, known.bands)) is not None]
    of_lists = [why for offer, why in wrong if offer["pricing"] not in HOSTS_PRICES]
    if of_lists:
        return _nothing(of_lists[0])
    offers = [offer for offer in offers if all(offer is not one for one, _ in wrong)]
    if not offers:
        return _nothing(wrong[0][1]) if wrong else Refreshed(offers=(), lines=("nothing; its old prices stay",))
    lines = [counted(len(offers), "offer")]
    if wrong:
        lines.append(f"{counted(len(wrong), 'offer')} left out: {wrong[0][1]}")
    lines += _change_lines(offers, [offer for offer in known.before if offer.provider == answer.provider])
    return Refreshed(offers=tuple(offers), lines=tuple(lines))


def _nothing(why: str) -> Refreshed:
    return Refreshed(offers=(), lines=(f"{why}; its old prices stay",), failure=why)


def _change_lines(offers: Sequence[Fields], before: Sequence[Offer]) -> Iterator[str]:
    """What moved far, and what the provider had and does not list any more."""
    moved = list(moves(offers, before).values())
    if moved:
        rest = f" and {len(moved) - SHOWN_MOVES} more" if len(moved) > SHOWN_MOVES else ""
        shown = ", ".join(moved[:SHOWN_MOVES])
        yield f"more than twice or less than half of before, so ask before you believe it: {shown}{rest}"
    gone = sorted({offer.gpu_id for offer in before} - {offer["gpu"] for offer in offers})
    if gone:
        rest = f" and {len(gone) - SHOWN_UNKNOWN} more" if len(gone) > SHOWN_UNKNOWN else ""
        yield f"no longer listed: {', '.join(gone[:SHOWN_UNKNOWN])}{rest}"


def _offer(listing: Listing, machine: KnownMachine) -> JsonDict:
    fields: JsonDict = {
        "gpu": machine.gpu_id,
        "num_gpus": machine.num_gpus,
        "sku": one_line(listing.product) or None,
        "region": one_line(listing.region) or None,
        "pricing": listing.pricing.value,
        "usd_per_hour": listing.usd_per_hour,
        "vcpus": int(machine.num_vcpus) if machine.num_vcpus >= 1 else None,
        "host_ram_gib": machine.host_ram_gib if machine.host_ram_gib > 0 else None,
        "source": listing.source,
        "currency": listing.currency,
        "exchange_rate": listing.exchange_rate,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _ladder(group: Sequence[tuple[Listing, KnownMachine]]) -> list[tuple[Listing, KnownMachine]]:
    kept: list[tuple[Listing, KnownMachine]] = []

    def order(one: tuple[Listing, KnownMachine]) -> tuple[float | str, ...]:
        listing, machine = one
        return (listing.usd_per_hour, -machine.host_ram_gib, listing.product, listing.region)

    for one in sorted(group, key=order):
        if not kept or one[1].host_ram_gib > kept[-1][1].host_ram_gib:
            kept.append(one)
    return kept


def _card_text(listing: Listing) -> str:
    if listing.card is None:
        return f"{listing.provider}'s {one_line(listing.product)}"
    return f"{one_line(listing.card)} {listing.card_memory_gib or 0:.4g} GB"


def _unknown_line(unknown: Mapping[str, int]) -> str:
    ordered = sorted(unknown, key=lambda name: (-unknown[name], name))
    shown = ", ".join(f"{name} ({unknown[name]})" for name in ordered[:SHOWN_UNKNOWN])
    rest = f" and {len(ordered) - SHOWN_UNKNOWN} more" if len(ordered) > SHOWN_UNKNOWN else ""
    return f"left out, for it is not known which card they have: {shown}{rest}"


def offers_before() -> Sequence[Offer]:
    """The offers that were known until now: the shipped ones under what was fetched earlier, if that can be read."""
    path = refreshed_catalog_path()
    try:
        earlier = [read_catalog_file(path, may_be_empty=True)] if path is not None and os.path.isfile(path) else []
        return Catalog(shipped_catalog(), earlier).offers
    except InputError:
        return Catalog(shipped_catalog()).offers


def write_refreshed(offers: Sequence[Fields]) -> Path:
    """Write the offers where ``load_catalog`` finds them, whole or not at all.

    What was fetched earlier of providers that have none among ``offers`` stays. Raises UnavailableError without a home,
    or where nothing can be written.
    """
    path = refreshed_catalog_path()
    if path is None:
        raise UnavailableError("this user has no home folder to keep prices in")
    providers = {offer["provider"] for offer in offers}
    kept = [offer for offer in _earlier(path) if offer["provider"] not in providers]
    rows = ",\n".join(json.dumps(offer) for offer in (*kept, *offers))
    write_atomically(path, f'{{"schema": "{SCHEMA}", "offers": [\n{rows}\n]}}\n', force=True)
    return path


def _earlier(path: Path) -> Sequence[Fields]:
    """The offers of ``path`` that are whole and of GPUs still known; none where it cannot be read."""
    try:
        offers = read_catalog_file(path, may_be_empty=True).offers if os.path.isfile(path) else ()
    except InputError:
        return ()
    gpus = shipped_catalog().gpus
    return [offer for offer in offers if offer.get("gpu") in gpus and all(key in offer for key in OFFER_REQUIRED)]
