"""``vlmplan gpus``: what the catalog knows, what it costs, and what this machine has."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import AMOUNT, check_order, one_of, options
from vlmplan.cli.option_words import ClickValues, given_flags
from vlmplan.cli.options import CATALOG, JSON, PRICING
from vlmplan.cli.output import print_document
from vlmplan.cli.refresh import REFRESH, refresh_prices
from vlmplan.cli.strict_command import StrictCommand
from vlmplan.commands.day import today
from vlmplan.units import GIB

if TYPE_CHECKING:
    from vlmplan.catalog import Catalog
    from vlmplan.catalog.listing import GpuRow

_SORTS = ("memory", "price", "speed", "name")


_MIN_MEMORY_HELP = "At least so many GiB as the driver counts them (A100 40 GB: 40.0, H100 80 GB: 79.6)."


@click.command(cls=StrictCommand)
@click.argument("words", nargs=-1, metavar="[TEXT]...")
@click.option("--min-memory", type=AMOUNT, metavar="GIB", help=_MIN_MEMORY_HELP)
@click.option("--max-memory", type=AMOUNT, metavar="GIB", help="At most so many GiB.")
@click.option("--architecture", multiple=True, metavar="NAME", help="Ampere, Ada, Hopper, ... (repeatable).")
@click.option("--bf16/--no-bf16", default=None, help="Only GPUs with, or without, bf16 arithmetic.")
@click.option(
    "--max-usd-per-hour",
    type=AMOUNT,
    metavar="USD",
    help="Only offers of at most this much for the whole instance.",
)
@click.option("--provider", multiple=True, metavar="NAME", help="Only offers of this provider (repeatable).")
@click.option("--pricing", multiple=True, type=one_of(PRICING), help="Only such offers (repeatable).")
@click.option("--sort", type=one_of(_SORTS), default="memory", show_default=True, help="What the rows go by.")
@click.option("--offers", "shows_offers", is_flag=True, help="List each offer instead of each GPU.")
@click.option("--detect", "detects", is_flag=True, help="Show this machine's GPUs, matched with the catalog.")
@options(CATALOG, REFRESH, JSON)
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
    in the form of the gpu_catalog.yaml that comes with vlmplan. `vlmplan prices` says how old prices are.
    """
    from vlmplan.answers.gpus import detection_report, gpus_report, offers_report, print_report
    from vlmplan.catalog import load_catalog

    if detects:
        _refuse_options_of_list(words, terms, sort=None if sort == _SORTS[0] else sort, shows_offers=shows_offers)
    on = today()
    if refreshes:
        check_order(terms, "min_memory", "max_memory")
        refresh_prices(on, catalog_files, words=() if detects else words, providers=terms["provider"])
    catalog = load_catalog(catalog_files).without_calibrations()  # which are of no number here
    if detects:
        from vlmplan.machine.gpus import detected

        report = detection_report(detected(catalog))
    elif shows_offers:
        report = offers_report(_rows(catalog, words, terms, sort=sort, on=on), catalog, on)
    else:
        report = gpus_report(_rows(catalog, words, terms, sort=sort, on=on), catalog, on)
    if as_json:
        print_document(report.document)
    else:
        print_report(report)


def _refuse_options_of_list(words: Sequence[str], terms: ClickValues, *, sort: str | None, shows_offers: bool) -> None:
    """Raise UsageError for what narrows or orders the catalog's list beside --detect."""
    values = terms | {"sort": sort, "shows_offers": shows_offers or None}
    given = [*words, *given_flags(gpus, values)]
    if given:
        raise click.UsageError(
            f"--detect shows all GPUs of this machine; {', '.join(given)} is of the list: leave it off"
        )


def _rows(catalog: "Catalog", words: tuple[str, ...], terms: ClickValues, *, sort: str, on: date) -> "list[GpuRow]":
    """``gpu_rows`` for the command line's options."""
    from vlmplan.catalog.listing import GpuFilter, gpu_rows

    check_order(terms, "min_memory", "max_memory")
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
