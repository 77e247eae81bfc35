"""``vlmplan prices``: what is known of prices, how old it is, and newer ones fetched."""

from pathlib import Path

import click

from vlmplan.cli.option_kinds import options
from vlmplan.cli.options import CATALOG, JSON
from vlmplan.cli.output import print_document
from vlmplan.cli.refresh import refresh_prices
from vlmplan.cli.strict_command import StrictCommand
from vlmplan.commands.day import today


@click.command(cls=StrictCommand)
@click.argument("words", nargs=-1, metavar="[TEXT]...")
@click.option("--refresh", "refreshes", is_flag=True, help="First fetch what providers list that answer without a key.")
@click.option("--provider", "providers", multiple=True, metavar="NAME", help="Only this provider's (repeatable).")
@options(CATALOG, JSON)
def prices(
    words: tuple[str, ...], refreshes: bool, providers: tuple[str, ...], catalog_files: tuple[Path, ...], as_json: bool
) -> None:
    """Show every provider's newest prices with their age, and what the GPUs with TEXT in their names cost.

    --refresh asks Azure, Linode, RunPod, Scaleway, Vast, Verda and Vultr, and with pip install 'vlmplan[prices]'
    through gpuhunt also AWS, Google Cloud, Lambda, Nebius, OCI and others. What came is kept in your cache, and counts
    where it is newer than what vlmplan was shipped with. A provider that does not answer, or whose prices cannot be, is
    named, and keeps its old ones. No other command asks for prices unless it is told --refresh-prices.
    """
    from vlmplan.answers.prices import document, print_prices
    from vlmplan.catalog import load_catalog
    from vlmplan.catalog.price_lists import known_prices

    on = today()
    if refreshes:
        refresh_prices(on, catalog_files, words=words, providers=providers)
    catalog = load_catalog(catalog_files).without_calibrations()  # which are of no number here
    lists, spreads = known_prices(catalog, words, providers)
    if as_json:
        print_document(document(lists, spreads, catalog, on))
    else:
        print_prices(lists, spreads, catalog, on)
