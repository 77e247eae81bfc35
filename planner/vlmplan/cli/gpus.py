"""``vlmplan gpus``: what the catalog knows, what it costs, and what this machine has."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import PRICING, today
from vlmplan.cli.refresh import REFRESH, refresh_prices
from vlmplan.errors import UnknownNameError
from vlmplan.render.lines import say
from vlmplan.render.tables import print_table
from vlmplan.units import GIB

if TYPE_CHECKING:
    from vlmplan.catalog import Catalog
    from vlmplan.hardware import Gpu, Offer

_SORTS = ("memory", "price", "speed", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFilter:
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
        """Whether a GPU that nobody offers on these terms is to be left out."""
        return self.max_usd_per_hour is not None or bool(self.providers) or bool(self.pricing)

    def accepts_gpu(self, gpu: "Gpu") -> bool:
        """Whether the card itself is wanted; a card of unknown memory meets no bound on memory."""
        if self.min_memory_bytes is not None or self.max_memory_bytes is not None:
            if gpu.memory_bytes is None:
                return False
            if gpu.memory_bytes < (self.min_memory_bytes or 0):
                return False
            if self.max_memory_bytes is not None and gpu.memory_bytes > self.max_memory_bytes:
                return False
        text = " ".join((gpu.id, gpu.name, *gpu.aliases, *gpu.provider_names)).casefold()
        return (
            all(word.casefold() in text for word in self.words)
            and (not self.architectures or (gpu.architecture or "").casefold() in self.architectures)
            and (self.supports_bf16 is None or gpu.supports_bf16 is self.supports_bf16)
        )

    def accepts_offer(self, offer: "Offer") -> bool:
        """Whether the offer's terms are wanted; the price is for the whole instance."""
        return (
            (self.max_usd_per_hour is None or offer.usd_per_hour <= self.max_usd_per_hour)
            and (not self.providers or offer.provider.casefold() in self.providers)
            and (not self.pricing or offer.pricing.value in self.pricing)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One GPU with its offers on the wanted terms, and the cheapest of them per GPU."""

    gpu: "Gpu"
    offers: tuple["Offer", ...]
    cheapest: "Offer | None"


def gpu_rows(catalog: "Catalog", wanted: GpuFilter, *, sort: str, on: date) -> list[GpuRow]:
    """The GPUs that ``wanted`` accepts. Raises UnknownNameError for a provider or architecture of no GPU."""
    from vlmplan.hardware import cheapest

    architectures = {gpu.architecture for gpu in catalog.gpus if gpu.architecture is not None}
    _require_known("architecture", wanted.architectures, architectures)
    _require_known("provider", wanted.providers, {offer.provider for offer in catalog.offers})
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


def _require_known(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    folded = {name.casefold() for name in known}
    for name in wanted:
        if name not in folded:
            raise UnknownNameError(kind, name, sorted(known))


_MIN_MEMORY_HELP = "At least so many GiB as the driver counts them (A100 40 GB: 40.0, H100 80 GB: 79.6)."


@click.command()
@click.argument("words", nargs=-1, metavar="[TEXT]...")
@click.option("--min-memory", type=click.FloatRange(min=0), metavar="GIB", help=_MIN_MEMORY_HELP)
@click.option("--max-memory", type=click.FloatRange(min=0), metavar="GIB", help="At most so many GiB.")
@click.option("--architecture", multiple=True, metavar="NAME", help="Ampere, Ada, Hopper, ... (repeatable).")
@click.option("--bf16/--no-bf16", default=None, help="Only GPUs with, or without, bf16 arithmetic.")
@click.option(
    "--max-usd-per-hour",
    type=click.FloatRange(min=0),
    metavar="USD",
    help="Only offers of at most this much for the whole instance.",
)
@click.option("--provider", multiple=True, metavar="NAME", help="Only offers of this provider (repeatable).")
@click.option("--pricing", multiple=True, type=click.Choice(PRICING), help="Only such offers (repeatable).")
@click.option("--sort", type=click.Choice(_SORTS), default="memory", show_default=True)
@click.option("--offers", "shows_offers", is_flag=True, help="List each offer instead of each GPU.")
@click.option("--detect", "detects", is_flag=True, help="Show this machine's GPUs, matched with the catalog.")
@click.option(
    "--catalog",
    "catalog_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A catalog of your own on top of the others (repeatable; later wins).",
)
@REFRESH
@click.option("--json", "as_json", is_flag=True, help="Print JSON (vlmplan.gpus/1) instead of a table.")
def gpus(
    words: tuple[str, ...],
    sort: str,
    shows_offers: bool,
    detects: bool,
    refreshes: bool,
    catalog_files: tuple[Path, ...],
    as_json: bool,
    **terms: Any,
) -> None:
    """List the known GPUs with TEXT in their names, and the cheapest current offer for each.

    Your own GPUs, prices and machines go into ~/.config/vlmplan/gpu_catalog.yaml or ./vlmplan_catalog.yaml,
    in the form of the gpu_catalog.yaml that comes with vlmplan. --refresh-prices keeps what it fetches beside the
    former, in refreshed_prices.json: of each provider and GPU it has, the shipped offers no longer count.
    """
    from vlmplan.catalog import load_catalog
    from vlmplan.cli import gpus_view

    on = today()
    if refreshes:
        refresh_prices(on)
    catalog = load_catalog(catalog_files)
    if detects:
        from vlmplan.machine.gpus import detected

        report = gpus_view.detection_report(detected(catalog))
    elif shows_offers:
        report = gpus_view.offers_report(_rows(catalog, words, terms, sort=sort, on=on), catalog, on)
    else:
        report = gpus_view.gpus_report(_rows(catalog, words, terms, sort=sort, on=on), catalog, on)
    if as_json:
        click.echo(json.dumps(report.document, indent=2))
        return
    print_table(report.table)
    say(*report.notes)


def _rows(catalog: "Catalog", words: tuple[str, ...], terms: dict[str, Any], *, sort: str, on: date) -> list[GpuRow]:
    """``gpu_rows`` for the command line's options."""
    least, most = terms["min_memory"], terms["max_memory"]
    wanted = GpuFilter(
        words=words,
        min_memory_bytes=None if least is None else least * GIB,
        max_memory_bytes=None if most is None else most * GIB,
        architectures=tuple(name.casefold() for name in terms["architecture"]),
        supports_bf16=terms["bf16"],
        max_usd_per_hour=terms["max_usd_per_hour"],
        providers=tuple(name.casefold() for name in terms["provider"]),
        pricing=terms["pricing"],
    )
    return gpu_rows(catalog, wanted, sort=sort, on=on)
