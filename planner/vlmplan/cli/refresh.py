"""``--refresh-prices``: fetch what machines cost today before they are compared; else the old prices stay."""

from collections.abc import Callable
from datetime import date
from typing import Any

import click

from vlmplan.errors import MissingPackageError, UnavailableError
from vlmplan.render.lines import tell

REFRESH: Callable[[Any], Any] = click.option(
    "--refresh-prices",
    "refreshes",
    is_flag=True,
    help="First fetch current prices with gpuhunt (pip install 'vlmplan[prices]').",
)


def refresh_prices(on: date) -> None:
    """Fetch and keep current prices, and say on standard error what came; old ones stay for whom nothing came."""
    from vlmplan.catalog import Catalog, shipped_catalog
    from vlmplan.catalog.price_source import gpuhunt_answers, gpuhunt_version
    from vlmplan.catalog.refresh import refreshed, write_refreshed

    try:
        source = f"gpuhunt {gpuhunt_version()}"
        found = refreshed(list(gpuhunt_answers()), Catalog(shipped_catalog()), source=source, today=on)
        if not found.offers:
            raise UnavailableError(f"gpuhunt has none ({found.failure or 'of a card that the catalog knows'})")
        path = write_refreshed(found.offers)
    except (MissingPackageError, UnavailableError) as error:
        tell(f"prices are not refreshed, the old ones stay: {error}")
        return
    for line in found.lines:
        tell(line)
    tell(f"{len(found.offers)} prices are now in {path}")
