"""Prices from gpuhunt (github.com/dstackai/gpuhunt, an optional package), of providers that no collector asks.

Large providers' prices are published by its makers once a day and fetched together; a marketplace that needs no key is
asked directly. Written against gpuhunt 0.1.34.
"""

import importlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Protocol

from vlmplan.catalog.price_listing import Listing, ProviderAnswer
from vlmplan.errors import MissingPackageError
from vlmplan.hardware import Pricing
from vlmplan.plain_text import one_line

PUBLISHED = ("aws", "cloudrift", "gcp", "lambdalabs", "nebius", "oci")
ASKED = (("lium", "LiumProvider"),)
"""Providers without keys, and their classes in ``gpuhunt.providers``."""
NAMES = {"lambdalabs": "lambda"}
"""What the catalog calls providers that gpuhunt calls otherwise."""
PROVIDERS = tuple(NAMES.get(name, name) for name in (*PUBLISHED, *(name for name, _ in ASKED)))
MARKETPLACES = frozenset(("lium",))
SECONDS = 20.0
"""That a server may take to answer."""
NOT_A_MACHINE = "cluster"
"""In the flag of items that are several machines (``runpod-cluster``)."""


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


def listing_of(item: Item, source: str) -> Listing:
    """An item under the catalog's words; ``source`` says which gpuhunt has it."""
    provider = NAMES.get(item.provider, item.provider)
    terms = Pricing.MARKETPLACE if provider in MARKETPLACES else Pricing.ON_DEMAND
    return Listing(
        provider=provider,
        product=item.instance_name,
        usd_per_hour=item.price,
        source=source,
        card=item.gpu_name,
        card_memory_gib=item.gpu_memory,
        num_gpus=item.gpu_count,
        region=item.location,
        pricing=Pricing.INTERRUPTIBLE if item.spot else terms,
        num_vcpus=item.cpu,
        host_ram_gib=item.memory,
    )


def gpuhunt_version() -> str:
    """The installed version. Raises MissingPackageError if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    _gpuhunt()
    try:
        return version("gpuhunt")
    except PackageNotFoundError:
        return "of unknown version"


def gpuhunt_answers() -> Iterator[ProviderAnswer]:
    """What each provider says, or why it says nothing; no network at all fails each of them.

    Raises MissingPackageError where gpuhunt is not installed.
    """
    gpuhunt = _gpuhunt()
    source = f"gpuhunt {gpuhunt_version()}"
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SECONDS)
    logging.getLogger("gpuhunt").addHandler(logging.NullHandler())  # its tracebacks are not for the user
    logging.getLogger("gpuhunt").propagate = False
    try:
        catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
        failure = _failure(catalog.load)
        for provider in PUBLISHED:
            answer = _answer(catalog, provider, source)
            is_empty = not answer.listings and answer.failure is None
            yield replace(answer, failure=failure) if failure and is_empty else answer
        for provider, class_name in ASKED:
            failure = _failure(lambda name=provider, kind=class_name: _add(catalog, name, kind))
            answer = ProviderAnswer(provider=provider, failure=failure) if failure else None
            yield answer or _answer(catalog, provider, source)
    finally:
        socket.setdefaulttimeout(timeout)


def _gpuhunt() -> Any:
    try:
        return importlib.import_module("gpuhunt")
    except ImportError as error:
        missing = "gpuhunt" if error.name in (None, "gpuhunt") else f"{error.name}, which gpuhunt needs,"
        raise MissingPackageError(f"{missing} is not installed: pip install 'vlmplan[prices]'") from None


def _add(catalog: Any, provider: str, class_name: str) -> None:
    kind: Any = getattr(importlib.import_module(f"gpuhunt.providers.{provider}"), class_name)
    catalog.add_provider(kind.from_env() if hasattr(kind, "from_env") else kind())


def _answer(catalog: Any, provider: str, source: str) -> ProviderAnswer:
    found: list[Listing] = []

    def ask() -> None:
        items = catalog.query(provider=provider, min_gpu_count=1)
        found.extend(listing_of(item, source) for item in items if _is_machine(item))

    name, failure = NAMES.get(provider, provider), _failure(ask)
    if failure:
        return ProviderAnswer(provider=name, failure=failure)
    return ProviderAnswer(provider=name, listings=found, as_of=_published(catalog, provider))


def _is_machine(item: Any) -> bool:
    flags: Sequence[str] = getattr(item, "flags", ())
    return bool(item.gpu_name) and not any(NOT_A_MACHINE in flag for flag in flags)


def _published(catalog: Any, provider: str) -> date | None:
    """The day in a published catalog's version, ``20261121-123``; None for those that are asked directly."""
    try:
        version = str(catalog.catalog[provider].version)
        return date(int(version[:4]), int(version[4:6]), int(version[6:8]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _failure(ask: Callable[[], object]) -> str | None:
    """Why ``ask`` failed, in one line; None where it did not. One provider's mistake is no reason to stop."""
    try:
        ask()
    except Exception as error:
        words = one_line(str(error)) or type(error).__name__
        return words if len(words) <= 160 else f"{words[:157]}..."
    return None
