"""Catalog files on top of each other: pure functions from checked fields to merged fields.

A file first changes what came before it (``hide``, ``discounts``), then adds its own entries, field by
field. Some fields do not outlive what they belong to: a new price drops the date, source and discount of
the old one, and a new ``memory_mib`` drops the old ``cuda_visible_mib``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase

from vlmplan.catalog.file import CatalogFile
from vlmplan.catalog.objects import day_and_whether_month, source_table
from vlmplan.catalog.rules import GPU_RULES, OFFER_REQUIRED, SELECTOR_RULES, Fields, Rule
from vlmplan.errors import InputError, UnknownNameError

_OFFER_IDENTITY = ("gpu", "num_gpus", "provider", "sku", "region", "pricing")
_BELONGS_TO_PRICE = (
    *("spot_usd_per_hour", "as_of", "as_of_basis", "source", "license", "note"),
    *("discount_fraction", "stated_in", "seen_at", "currency", "exchange_rate"),
)

OfferKey = tuple[object, ...]


def layered_gpus(shipped: Mapping[str, Fields], files: Sequence[CatalogFile]) -> dict[str, Fields]:
    """The fields of every GPU that is not hidden, by id, after the changes of ``files``."""
    gpus = dict(shipped)
    hidden: set[str] = set()
    for file in files:
        for pattern in _hidden_gpu_patterns(file, gpus):
            hidden.update(gpu_id for gpu_id in gpus if _matches(gpu_id, pattern))
        for gpu_id, change in file.gpus.items():
            gpus[gpu_id] = _changed_gpu(gpus.get(gpu_id, {}), change, file.name)
            hidden.discard(gpu_id)
    return {gpu_id: fields for gpu_id, fields in gpus.items() if gpu_id not in hidden}


def layered_offers(
    shipped: Sequence[Fields], shipped_gpu_ids: Iterable[str], files: Sequence[CatalogFile]
) -> list[Fields]:
    """The fields of every offer after the changes of ``files``; those of hidden GPUs may be among them.

    Raises UnknownNameError where a file hides, discounts or offers what no file before it knows.
    """
    offers: dict[OfferKey, Fields] = {_offer_key(offer): offer for offer in shipped}
    gpus = set(shipped_gpu_ids)
    providers: set[str] = {offer["provider"] for offer in shipped}
    for file in files:
        for selector in _hide_selectors(file, gpus, providers):
            offers = {key: offer for key, offer in offers.items() if not _selects(selector, offer)}
        for i, discount in enumerate(file.discounts):
            _require_known(file.name, f"discounts[{i}]", discount, gpus, providers)
            offers = {key: _discounted(discount, offer) for key, offer in offers.items()}
        gpus.update(file.gpus)
        listed = file.offers
        if file.replaces_offers:
            newer = _providers_with_newer_lists(file.offers, offers.values())
            offers = {key: offer for key, offer in offers.items() if offer["provider"] not in newer}
            listed = [offer for offer in file.offers if offer.get("provider") in (*newer, None)]
        for i, change in enumerate(listed):
            key, where = _offer_key(change), f"offers[{i}]"
            offers[key] = _changed_offer(offers.get(key, {}), change, file.name, where)
            if change["gpu"] not in gpus:
                raise UnknownNameError("GPU id", change["gpu"], sorted(gpus), f"{file.name}: {where}.gpu")
            providers.add(change["provider"])
    return list(offers.values())


def _offer_key(offer: Fields) -> OfferKey:
    return tuple(offer.get(field) for field in _OFFER_IDENTITY)


def _changed_gpu(base: Fields, change: Fields, file_name: str) -> Fields:
    result = dict(base)
    for key, value in change.items():
        is_nested = not isinstance(GPU_RULES[key], Rule) or key == "provider_names"
        result[key] = {**(base.get(key) or {}), **value} if is_nested else value
    if "memory_mib" in change and change["memory_mib"] != base.get("memory_mib"):
        result["cuda_visible_mib"] = change.get("cuda_visible_mib")
    if "tensor_tflops_dense" in change:
        result["tensor_basis"] = change.get("tensor_basis")
    stated = dict.fromkeys((key for key in change if key not in ("sources", "tensor_basis")), file_name)
    result["sources"] = {
        **source_table(base.get("sources")),
        **stated,
        **source_table(change.get("sources")),
    }
    return result


def _providers_with_newer_lists(fetched: Iterable[Fields], shipped: Iterable[Fields]) -> list[object]:
    """The providers whose newest price among ``fetched`` is no older than their newest among ``shipped``."""
    now, then = _newest_days(fetched), _newest_days(shipped)
    return [provider for provider, day in now.items() if day >= then.get(provider, date.min)]


def _newest_days(offers: Iterable[Fields]) -> dict[object, date]:
    """The day of the newest price of each provider; for one without a day the first there is."""
    newest: dict[object, date] = {}
    for offer in offers:
        day = day_and_whether_month(offer.get("as_of"))[0] or date.min
        provider = offer.get("provider")
        newest[provider] = max(day, newest.get(provider, date.min))
    return newest


def _changed_offer(base: Fields, change: Fields, file_name: str, where: str) -> Fields:
    missing = [key for key in OFFER_REQUIRED if key not in change and key not in base]
    if missing:
        raise InputError(f"{file_name}: {where} has no {missing[0]}; it needs {', '.join(OFFER_REQUIRED)}")
    if "usd_per_hour" in change or "spot_usd_per_hour" in change:
        base = {key: value for key, value in base.items() if key not in _BELONGS_TO_PRICE}
    return {**base, **change, "stated_in": file_name}


def _hidden_gpu_patterns(file: CatalogFile, gpus: Collection[str]) -> Iterator[str]:
    """The patterns of ``hide`` that mean GPUs: a text that fits one, or a selector by GPU alone."""
    for entry in file.hide:
        if isinstance(entry, str):
            if any(_matches(gpu_id, entry) for gpu_id in gpus):
                yield entry
        elif set(entry) == {"gpu"}:
            yield entry["gpu"]


def _hide_selectors(file: CatalogFile, gpus: set[str], providers: set[str]) -> Iterator[Fields]:
    """``hide`` as selectors: a text is a GPU id, else a provider, or a pattern of either."""
    for i, entry in enumerate(file.hide):
        where = f"hide[{i}]"
        if not isinstance(entry, str):
            _require_known(file.name, where, entry, gpus, providers)
            yield entry
        elif any(_matches(gpu_id, entry) for gpu_id in gpus):
            yield {"gpu": entry}
        elif any(_matches(provider, entry) for provider in providers) or _is_pattern(entry):
            yield {"provider": entry}
        else:
            known = sorted(gpus | providers)
            raise UnknownNameError("GPU id or provider", entry, known, f"{file.name}: {where}")


def _require_known(
    file_name: str, where: str, selector: Fields, gpus: Collection[str], providers: Collection[str]
) -> None:
    for key, kind, known in (("gpu", "GPU id", gpus), ("provider", "provider", providers)):
        wanted = selector.get(key)
        if wanted is None or _is_pattern(wanted) or any(_matches(name, wanted) for name in known):
            continue
        raise UnknownNameError(kind, wanted, sorted(known), f"{file_name}: {where}.{key}")


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def _matches(value: object, pattern: object) -> bool:
    if isinstance(pattern, str):
        return isinstance(value, str) and fnmatchcase(value.casefold(), pattern.casefold())
    return value == pattern


def _selects(selector: Fields, offer: Fields) -> bool:
    return all(_matches(offer.get(key), selector[key]) for key in SELECTOR_RULES if key in selector)


def _discounted(discount: Fields, offer: Fields) -> Fields:
    if not _selects(discount, offer):
        return offer
    kept = (1 - offer.get("discount_fraction", 0.0)) * (1 - discount["fraction"])
    return {**offer, "discount_fraction": round(1 - kept, 12)}
