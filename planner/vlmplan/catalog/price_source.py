"""Prices from gpuhunt (github.com/dstackai/gpuhunt, an optional package): provider by provider, whatever fails.

Large providers' prices are published by its makers once a day and fetched together; marketplaces are asked directly,
those that need no key. Written against gpuhunt 0.1.34.
"""

import importlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

from vlmplan.catalog.refresh import ProviderAnswer
from vlmplan.errors import MissingPackageError
from vlmplan.plain_text import one_line

PUBLISHED = ("aws", "azure", "cloudrift", "gcp", "lambdalabs", "nebius", "oci", "runpod", "verda")
ASKED = (("vastai", "VastAIProvider"), ("vultr", "VultrProvider"), ("lium", "LiumProvider"))
"""Providers without keys, and their classes in ``gpuhunt.providers``."""
SECONDS = 20.0
"""That a server may take to answer."""
NOT_A_MACHINE = "cluster"
"""In the flag of items that are several machines (``runpod-cluster``)."""


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
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SECONDS)
    logging.getLogger("gpuhunt").addHandler(logging.NullHandler())  # its tracebacks are not for the user
    logging.getLogger("gpuhunt").propagate = False
    try:
        catalog = gpuhunt.Catalog(balance_resources=False, auto_reload=False)
        failure = _failure(catalog.load)
        for provider in PUBLISHED:
            answer = _answer(catalog, provider)
            is_empty = not answer.items and answer.failure is None
            yield ProviderAnswer(provider=provider, failure=failure) if failure and is_empty else answer
        for provider, class_name in ASKED:
            failure = _failure(lambda name=provider, kind=class_name: _add(catalog, name, kind))
            yield ProviderAnswer(provider=provider, failure=failure) if failure else _answer(catalog, provider)
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


def _answer(catalog: Any, provider: str) -> ProviderAnswer:
    items: list[Any] = []

    def ask() -> None:
        items.extend(catalog.query(provider=provider, min_gpu_count=1))

    failure = _failure(ask)
    if failure:
        return ProviderAnswer(provider=provider, failure=failure)
    machines = [item for item in items if not any(NOT_A_MACHINE in flag for flag in _flags(item))]
    return ProviderAnswer(provider=provider, items=machines, as_of=_published(catalog, provider))


def _flags(item: Any) -> Sequence[str]:
    return getattr(item, "flags", ())


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
