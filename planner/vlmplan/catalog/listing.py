"""GPUs of the catalog by what the user wants to see, each with its offers and the cheapest of them."""

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from vlmplan.catalog.catalog import Catalog
from vlmplan.errors import UnknownNameError
from vlmplan.hardware import Gpu, Offer, cheapest


class GpuFilter(NamedTuple):
    """What the user wants to see; empty or ``None`` means any."""

    words: tuple[str, ...] = ()
    min_memory_bytes: float | None = None
    max_memory_bytes: float | None = None
    architectures: tuple[str, ...] = ()
    supports_bf16: bool | None = None
    max_usd_per_hour: float | None = None
    providers: tuple[str, ...] = ()
    pricing: tuple[str, ...] = ()

    @property
    def asks_for_offers(self) -> bool:
        """Whether GPUs without an offer on these terms are left out."""
        return self.max_usd_per_hour is not None or bool(self.providers) or bool(self.pricing)

    def accepts_gpu(self, gpu: Gpu) -> bool:
        """Whether the card itself is wanted; a card of unknown memory meets no bound on memory."""
        if self.min_memory_bytes is not None or self.max_memory_bytes is not None:
            if gpu.memory_bytes is None:
                return False
            if gpu.memory_bytes < (self.min_memory_bytes or 0):
                return False
            if self.max_memory_bytes is not None and gpu.memory_bytes > self.max_memory_bytes:
                return False
        return (
            has_words(gpu, self.words)
            and (not self.architectures or (gpu.architecture or "").casefold() in self.architectures)
            and (self.supports_bf16 is None or gpu.supports_bf16 is self.supports_bf16)
        )

    def accepts_offer(self, offer: Offer) -> bool:
        """Whether the offer's terms are wanted; the price is for the whole instance."""
        return (
            (self.max_usd_per_hour is None or offer.usd_per_hour <= self.max_usd_per_hour)
            and (not self.providers or offer.provider.casefold() in self.providers)
            and (not self.pricing or offer.pricing.value in self.pricing)
        )


class GpuRow(NamedTuple):
    """One GPU with its offers on the wanted terms, and the cheapest of them per GPU."""

    gpu: Gpu
    offers: tuple[Offer, ...]
    cheapest: Offer | None


def gpu_rows(catalog: Catalog, wanted: GpuFilter, *, sort: str, on: date) -> list[GpuRow]:
    """The GPUs that ``wanted`` accepts. Raises UnknownNameError for words, a provider or an architecture of no GPU."""
    require_named(catalog, wanted.words)
    architectures = {gpu.architecture for gpu in catalog.gpus if gpu.architecture is not None}
    require_known("architecture", wanted.architectures, architectures)
    require_known("provider", wanted.providers, {offer.provider for offer in catalog.offers})
    rows: list[GpuRow] = []
    for gpu in filter(wanted.accepts_gpu, catalog.gpus):
        offers = tuple(filter(wanted.accepts_offer, catalog.offers_for(gpu.id)))
        if offers or not wanted.asks_for_offers:
            rows.append(GpuRow(gpu=gpu, offers=offers, cheapest=cheapest(offers, on)))
    return sorted(rows, key=lambda row: _sort_key(row, sort))


def _sort_key(row: GpuRow, sort: str) -> tuple[float | str, ...]:
    """Least memory, lowest price and highest speed first; the unknown last; ties by name."""
    if sort == "memory":
        return (row.gpu.memory_bytes or float("inf"), row.gpu.id)
    if sort == "price":
        return (row.cheapest.usd_per_gpu_hour if row.cheapest else float("inf"), row.gpu.id)
    if sort == "speed":
        peaks = row.gpu.peak_flops_per_second
        return (-(peaks.bf16 or peaks.fp16 or peaks.fp32 or 0.0), row.gpu.id)
    return (row.gpu.id,)


def has_words(gpu: Gpu, words: Sequence[str]) -> bool:
    """Whether all of ``words`` are in the names of ``gpu``, in any case."""
    text = " ".join((gpu.id, gpu.name, *gpu.aliases, *gpu.provider_names)).casefold()
    return all(word.casefold() in text for word in words)


def require_named(catalog: Catalog, words: Sequence[str]) -> None:
    """Raise UnknownNameError where no GPU of the catalog has all of ``words`` in its names."""
    if not any(has_words(gpu, words) for gpu in catalog.gpus):
        raise UnknownNameError("GPU", " ".join(words), [gpu.id for gpu in catalog.gpus], "`vlmplan gpus` lists them")


def require_known(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    """Raise UnknownNameError for a name that is not among ``known``, in any case."""
    folded = {name.casefold() for name in known}
    for name in wanted:
        if name.casefold() not in folded:
            raise UnknownNameError(kind, name, sorted(known))
