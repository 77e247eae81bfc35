"""Which GPU of the catalog a provider's machine has: by its name, its memory and the product."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from vlmplan.catalog.catalog import BRANDS, Catalog
from vlmplan.catalog.price_listing import Listing
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.hardware import Gpu, Offer
from vlmplan.units import GIB

MEMORY_TOLERANCE_FRACTION = 0.08
"""By which a provider's memory of a card may differ from the driver's. Cards with GDDR6 lose 1/16 to error correction
(L40S: 45.0 of 48); cards of one name differ by more (40 and 80, 8 and 12)."""
FORM_FACTORS = ("sxm", "pcie", "nvl")
FORM_OR_MEMORY = re.compile(r"sxm|pcie|\d+gb")
"""Words that tell cards of one name apart, and may be missing from what a provider writes. NVL is a card of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownMachine:
    """What a listing's machine has, by the catalog: the GPU, how many, and what the host has (0: unknown)."""

    gpu_id: str
    num_gpus: int
    num_vcpus: float
    host_ram_gib: float


class CardNames:
    """The GPU of the catalog that a listing has, by what it calls its card."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_name: dict[str, list[Gpu]] = {}
        for gpu in catalog.gpus:
            for key in {"".join(_words(name)) for name in (gpu.id, gpu.name, *gpu.aliases, *gpu.provider_names)}:
                self._by_name.setdefault(key, []).append(gpu)
        self._by_product = {(offer.provider, offer.sku): offer for offer in catalog.offers if offer.sku}

    def machine(self, listing: Listing) -> KnownMachine | None:
        """The one card of that name and memory; where several are called so, the one that the product tells: a product
        of the catalog, the driver's name of a card, or a form factor in its name. None where that leaves a doubt."""
        known = self._by_product.get((listing.provider, listing.product))
        if listing.num_gpus is None:
            return None if known is None else _as_known(known)
        memory_bytes = (listing.card_memory_gib or 0) * GIB
        found = [gpu for gpu in self._called(listing.card or "", memory_bytes) if gpu.memory_bytes is not None]
        if len(found) > 1:
            found = self._told_apart(listing, found, known)
        if len(found) != 1:
            return None
        return KnownMachine(
            gpu_id=found[0].id,
            num_gpus=listing.num_gpus,
            num_vcpus=listing.num_vcpus,
            host_ram_gib=listing.host_ram_gib,
        )

    def _called(self, name: str, memory_bytes: float) -> list[Gpu]:
        """Cards of that memory that are called exactly so; else those of whose names only form and memory are left out
        or written otherwise (``H100 SXM5 80GB``)."""
        words = _words(name)
        exactly = _of_memory(self._by_name.get("".join(words), ()), memory_bytes)
        if exactly or not words:
            return exactly
        rest = _essential(words)
        alike = [gpu for gpu in self._catalog.gpus if rest and _is_called(gpu, rest, _forms(words))]
        return _of_memory(alike, memory_bytes)

    def _told_apart(self, listing: Listing, gpus: Sequence[Gpu], known: Offer | None) -> list[Gpu]:
        by_product = [gpu for gpu in gpus if known is not None and gpu.id == known.gpu_id]
        if by_product:
            return by_product
        try:
            named = self._catalog.gpu(listing.product).id
        except (InputError, UnknownNameError):
            named = None
        by_driver = [gpu for gpu in gpus if gpu.id == named]
        if by_driver:
            return by_driver
        product = listing.product.casefold()
        factors = [factor for factor in FORM_FACTORS if factor in product]
        return [gpu for gpu in gpus if any(factor in gpu.id for factor in factors)]


def _as_known(offer: Offer) -> KnownMachine:
    return KnownMachine(
        gpu_id=offer.gpu_id,
        num_gpus=offer.num_gpus,
        num_vcpus=offer.num_vcpus or 0.0,
        host_ram_gib=(offer.host_ram_bytes or 0) / GIB,
    )


def _words(name: str) -> list[str]:
    """Words in small letters, without brands; ``SXM4`` and ``SXM5`` are ``sxm``.

    >>> _words("NVIDIA A100-SXM4-80GB"), _words("H100 SXM5 80 GB")
    (['a100', 'sxm', '80gb'], ['h100', 'sxm', '80gb'])
    """
    joined = re.sub(r"(\d)\s+gb\b", r"\1gb", name.casefold())
    words = re.findall(r"[a-z0-9]+", joined)
    return [re.sub(r"^sxm\d$", "sxm", word) for word in words if word not in BRANDS]


def _essential(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word for word in words if not FORM_OR_MEMORY.fullmatch(word))


def _forms(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word for word in words if word in FORM_FACTORS)


def _is_called(gpu: Gpu, essential: Collection[str], forms: Collection[str]) -> bool:
    """Whether a name of the card has these words and, but for form and memory, no other; and the form, if that is
    said."""
    names = {_essential(_words(name)) for name in (gpu.id, *gpu.aliases, *gpu.provider_names)}
    return frozenset(essential) in names and all(form in gpu.id for form in forms)


def _of_memory(gpus: Iterable[Gpu], num_bytes: float) -> list[Gpu]:
    tolerance = MEMORY_TOLERANCE_FRACTION * num_bytes
    return [gpu for gpu in gpus if gpu.memory_bytes is not None and abs(gpu.memory_bytes - num_bytes) <= tolerance]
