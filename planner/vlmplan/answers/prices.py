"""What ``vlmplan prices`` shows: the newest list of every provider with its age, and what every GPU costs."""

from collections.abc import Sequence
from datetime import date

import click

from vlmplan.answers.offers import age_text, spread_json
from vlmplan.catalog import Catalog
from vlmplan.catalog.price_lists import PriceList, Spread
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import PRICE_CURRENT_DAYS
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import counted

SCHEMA = "vlmplan.prices/1"
UNKNOWN = "-"


def document(lists: Sequence[PriceList], spreads: Sequence[Spread], catalog: Catalog, on: date) -> JsonDict:
    """Schema ``vlmplan.prices/1``."""
    return {
        "schema": SCHEMA,
        "date": on.isoformat(),
        "catalog_files": list(catalog.file_names),
        "providers": [_list_json(each, on) for each in lists],
        "gpus": [spread_json(each) for each in spreads],
    }


def print_prices(lists: Sequence[PriceList], spreads: Sequence[Spread], catalog: Catalog, on: date) -> None:
    """Print both tables to standard output."""
    print_table(
        Table(
            titles=("provider", "offers", "GPUs", "newest", "age", "source"),
            rows=[_list_cells(each, on) for each in lists],
            number_columns=frozenset(("offers", "GPUs", "age")),
            least_first=("source", "GPUs"),
            cut_columns=frozenset(("source",)),
        )
    )
    click.echo()
    print_table(
        Table(
            titles=("GPU", "offers", "providers", "least", "middle", "most", "newest"),
            rows=[_spread_cells(each) for each in spreads],
            number_columns=frozenset(("offers", "providers", "least", "middle", "most")),
            least_first=("providers", "newest"),
        )
    )
    notes = [f"{counted(len(lists), 'provider')} on {on.isoformat()}; least, middle and most: usd an hour for one GPU"]
    if any(not offer.is_current(on) for each in lists for offer in each.offers):
        notes.append(
            f"!: undated, or older than {PRICE_CURRENT_DAYS} days; vlmplan prices --refresh fetches newer ones"
        )
    if catalog.file_names:
        notes.append("Catalogs on top of the shipped one: " + ", ".join(catalog.file_names))
    say(*notes)


def _list_json(found: PriceList, on: date) -> JsonDict:
    newest = found.newest
    return {
        "provider": found.provider,
        "num_offers": len(found.offers),
        "gpus": list(found.gpu_ids),
        "newest": None if newest.as_of is None else newest.as_of.isoformat(),
        "age_days": newest.age_days(on),
        "is_current": newest.is_current(on),
        "seen_at": newest.seen_at,
        "source": newest.source,
        "currency": newest.currency,
        "exchange_rate": newest.exchange_rate,
    }


def _list_cells(found: PriceList, on: date) -> tuple[str, ...]:
    newest = found.newest
    return (
        found.provider,
        str(len(found.offers)),
        str(len(found.gpu_ids)),
        UNKNOWN if newest.as_of is None else newest.as_of.isoformat(),
        age_text(newest, on),
        newest.source or newest.stated_in or UNKNOWN,
    )


def _spread_cells(found: Spread) -> tuple[str, ...]:
    return (
        found.gpu_id,
        str(found.num_offers),
        str(found.num_providers),
        *(f"{usd:.2f}" if usd >= 0.1 else f"{usd:.3f}" for usd in (found.least_usd, found.median_usd, found.most_usd)),
        UNKNOWN if found.newest is None else found.newest.isoformat(),
    )
