"""Fetching what machines cost today: ``vlmplan prices --refresh``, and ``--refresh-prices`` of other commands."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click

from vlmplan.cli.option_kinds import under
from vlmplan.cli.options import OFFERS
from vlmplan.errors import MissingPackageError, UnavailableError
from vlmplan.render.lines import tell
from vlmplan.units import counted, is_or_are

REFRESH = under(
    OFFERS,
    click.option("--refresh-prices", "refreshes", is_flag=True, help="First do what `vlmplan prices --refresh` does."),
)


def refresh_prices(
    on: date, catalog_files: Sequence[Path], *, words: Sequence[str] = (), providers: Sequence[str] = ()
) -> None:
    """Fetch and keep current prices, and say on standard error what came; old ones stay for whom nothing came.

    Before that it raises InputError for files that are no catalogs, for ``words`` that no GPU has in its names, and for
    ``providers`` of which nothing is known and nothing can come.
    """
    from vlmplan.catalog import Catalog, load_catalog, shipped_catalog
    from vlmplan.catalog.collectors import collected, network
    from vlmplan.catalog.collectors.asking import COLLECTORS
    from vlmplan.catalog.listing import require_known, require_named
    from vlmplan.catalog.price_source import PROVIDERS, gpuhunt_answers
    from vlmplan.catalog.refresh import offers_before, refreshed, write_refreshed

    known = load_catalog(catalog_files)
    require_named(known, words)
    require_known("provider", providers, {offer.provider for offer in known.offers}.union(COLLECTORS, PROVIDERS))
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
    tell(f"{counted(len(found.offers), 'price')} {is_or_are(len(found.offers))} now in {path}")
