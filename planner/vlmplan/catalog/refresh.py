"""Current prices as a catalog file of their own: items of a price service → offers of known GPUs → JSON.

An item whose card cannot be told for certain is counted by its name and left out. The file replaces, for each provider
and GPU that it has, the shipped offers; the user's own files come on top of it.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Protocol

from vlmplan.catalog.catalog import Catalog
from vlmplan.catalog.file import read_catalog_file
from vlmplan.catalog.places import refreshed_catalog_path
from vlmplan.catalog.rules import OFFER_REQUIRED, SCHEMA, Fields
from vlmplan.catalog.shipped import shipped_catalog
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files import write_atomically
from vlmplan.hardware import Gpu, Pricing
from vlmplan.json_reader import JsonDict
from vlmplan.plain_text import one_line
from vlmplan.units import GIB

MEMORY_TOLERANCE_FRACTION = 0.08
"""By which a service's memory of a card may differ from the driver's. Cards with GDDR6 lose 1/16 to error correction
(L40S: 45.0 of 48); cards of one name differ by more (40 and 80, 8 and 12)."""
PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast"}
"""What the catalog calls providers that gpuhunt calls otherwise."""
MARKETPLACES = frozenset(("vast", "lium"))
FORM_FACTORS = ("sxm", "pcie", "nvl")
SHOWN_UNKNOWN = 8


class Item(Protocol):
    """A priced machine: the fields of ``gpuhunt.CatalogItem`` that are used; memory in GB, price in usd an hour."""

    provider: str
    instance_name: str
    location: str
    price: float
    cpu: int
    memory: float
    gpu_count: int
    gpu_name: str | None
    gpu_memory: float | None
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """What one provider said: its items and their day, or why there are none."""

    provider: str
    items: Sequence[Item] = ()
    as_of: date | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """New offers under the catalog's keys, and lines for the user: one for each provider, one for unknown cards.

    ``failure``: why the first provider that has none failed.
    """

    offers: tuple[Fields, ...]
    lines: tuple[str, ...]
    failure: str | None = None


class CardNames:
    """Which GPU of the catalog an item has."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_name: dict[str, list[Gpu]] = {}
        for gpu in catalog.gpus:
            for name in gpu.provider_names:
                self._by_name.setdefault(name.casefold(), []).append(gpu)
        self._by_sku = {(offer.provider, offer.sku): offer.gpu_id for offer in catalog.offers if offer.sku}

    def gpu_id(self, item: Item) -> str | None:
        """The one card of that name and memory; where several are called so, the one that the product tells: a product
        of the catalog, the driver's name of a card, or a form factor in its name. None where that leaves a doubt."""
        size = (item.gpu_memory or 0) * GIB
        found = [gpu for gpu in self._by_name.get((item.gpu_name or "").casefold(), ()) if _is_about(gpu, size)]
        if len(found) > 1:
            found = self._told_apart(item, found)
        return found[0].id if len(found) == 1 else None

    def _told_apart(self, item: Item, gpus: Sequence[Gpu]) -> list[Gpu]:
        known = self._by_sku.get((provider_of(item.provider), item.instance_name))
        by_sku = [gpu for gpu in gpus if gpu.id == known]
        if by_sku:
            return by_sku
        try:
            named = self._catalog.gpu(item.instance_name).id
        except (InputError, UnknownNameError):
            named = None
        by_driver = [gpu for gpu in gpus if gpu.id == named]
        if by_driver:
            return by_driver
        product = item.instance_name.casefold()
        factors = [factor for factor in FORM_FACTORS if factor in product]
        return [gpu for gpu in gpus if any(factor in gpu.id for factor in factors)]


def _is_about(gpu: Gpu, num_bytes: float) -> bool:
    return gpu.memory_bytes is not None and abs(gpu.memory_bytes - num_bytes) <= MEMORY_TOLERANCE_FRACTION * num_bytes


def provider_of(name: str) -> str:
    """The catalog's name of a provider."""
    return PROVIDERS.get(name, name)


def pricing_of(item: Item) -> Pricing:
    """RunPod's community machines say their country, the others their data centre (gpuhunt providers/runpod.py)."""
    if item.spot:
        return Pricing.INTERRUPTIBLE
    provider = provider_of(item.provider)
    if provider in MARKETPLACES:
        return Pricing.MARKETPLACE
    is_community = provider == "runpod" and len(item.location) == 2
    return Pricing.COMMUNITY if is_community else Pricing.ON_DEMAND


def refreshed(answers: Sequence[ProviderAnswer], catalog: Catalog, *, source: str, today: date) -> Refreshed:
    """Offers from what the providers said; of each card, count, provider and terms the cheapest, and dearer ones only
    if their host has more memory."""
    names = CardNames(catalog)
    unknown: Counter[str] = Counter()
    offers: list[Fields] = []
    lines: list[str] = []
    for answer in answers:
        provider = provider_of(answer.provider)
        if answer.failure is not None:
            lines.append(f"{provider}: {answer.failure}; its old prices stay")
            continue
        found = _offers_of(answer, names, unknown, source=source, today=today)
        offers += found
        lines.append(f"{provider}: {len(found)} offers" if found else f"{provider}: nothing; its old prices stay")
    if unknown:
        lines.append(_unknown_line(unknown))
    failures = [answer.failure for answer in answers if answer.failure]
    return Refreshed(offers=tuple(offers), lines=tuple(lines), failure=failures[0] if failures else None)


def _offers_of(
    answer: ProviderAnswer, names: CardNames, unknown: Counter[str], *, source: str, today: date
) -> list[Fields]:
    groups: dict[tuple[str, int, Pricing], list[Item]] = {}
    for item in answer.items:
        if item.gpu_count < 1 or not item.gpu_name or not 0 < item.price < float("inf"):
            continue
        gpu_id = names.gpu_id(item)
        if gpu_id is None:
            unknown[f"{one_line(item.gpu_name)} {item.gpu_memory or 0:g} GB"] += 1
        else:
            groups.setdefault((gpu_id, item.gpu_count, pricing_of(item)), []).append(item)
    day = (answer.as_of or today).isoformat()
    terms = {"provider": provider_of(answer.provider), "as_of": day, "as_of_basis": "exact", "source": source}
    return [
        terms | _offer(gpu_id, pricing, item)
        for (gpu_id, _, pricing), items in groups.items()
        for item in _ladder(items)
    ]


def _offer(gpu_id: str, pricing: Pricing, item: Item) -> JsonDict:
    fields: JsonDict = {
        "gpu": gpu_id,
        "num_gpus": item.gpu_count,
        "sku": one_line(item.instance_name) or None,
        "region": one_line(item.location) or None,
        "pricing": pricing.value,
        "usd_per_hour": item.price,
        "vcpus": int(item.cpu) if item.cpu >= 1 else None,
        "host_ram_gib": item.memory if item.memory > 0 else None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _ladder(items: Sequence[Item]) -> list[Item]:
    kept: list[Item] = []
    for item in sorted(items, key=lambda item: (item.price, -item.memory, item.instance_name, item.location)):
        if not kept or item.memory > kept[-1].memory:
            kept.append(item)
    return kept


def _unknown_line(unknown: Mapping[str, int]) -> str:
    ordered = sorted(unknown, key=lambda name: (-unknown[name], name))
    shown = ", ".join(f"{name} ({unknown[name]})" for name in ordered[:SHOWN_UNKNOWN])
    rest = f" and {len(ordered) - SHOWN_UNKNOWN} more" if len(ordered) > SHOWN_UNKNOWN else ""
    return f"left out, for it is not known which card they have: {shown}{rest}"


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
