"""Fetching what machines cost today: ``vlmplan prices --refresh``, and ``--refresh-prices`` of other commands."""

from datetime import date

import click

from vlmplan.cli.option_kinds import under
from vlmplan.cli.options import OFFERS
from vlmplan.errors import MissingPackageError, UnavailableError
from vlmplan.render.lines import tell

REFRESH = under(
    OFFERS,
    click.option("--refresh-prices", "refreshes", is_flag=True, help="First do what `vlmplan prices --refresh` does."),
)


def refresh_prices(on: date) -> None:
    """Fetch and keep current prices, and say on standard error what came; old ones stay for whom nothing came."""
    from vlmplan.catalog import Catalog, shipped_catalog
    from vlmplan.catalog.collectors import collected, network
    from vlmplan.catalog.price_source import gpuhunt_answers
    from vlmplan.catalog.refresh import offers_before, refreshed, write_refreshed

    answers, without = list(collected(network.fetched)), None
    try:
        answers += gpuhunt_answers()
    except MissingPackageError as error:
        without = f"aws, gcp, lambda, nebius and oci are not asked: {error}"
    try:
        found = refreshed(answers, Catalog(shipped_catalog()), today=on, before=offers_before())
        for line in (*found.lines, *([without] if without else [])):
            tell(line)
        if not found.offers:
            raise UnavailableError(f"nobody lists a card that the catalog knows ({found.failure or 'no answer'})")
        path = write_refreshed(found.offers)
    except UnavailableError as error:
        tell(f"prices are not refreshed, the old ones stay: {error}")
        return
    tell(f"{len(found.offers)} prices are now in {path}")
