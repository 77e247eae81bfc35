"""``vlmplan buy``: a machine of one's own against a rented one."""

from pathlib import Path
from typing import Any

import click

from vlmplan.cli.completion import gpu_names
from vlmplan.cli.option_kinds import REAL, options
from vlmplan.cli.options import CATALOG, JSON
from vlmplan.cli.output import print_document
from vlmplan.cli.strict_command import StrictCommand
from vlmplan.commands.day import today


def _number(flag: str, metavar: str, help_text: str) -> Any:
    return click.option(flag, type=REAL, metavar=metavar, help=help_text)


@click.command(cls=StrictCommand)
@click.option(
    "--gpu",
    required=True,
    shell_complete=gpu_names,
    metavar="NAME[:COUNT]",
    help="What would be bought: cards of the catalog.",
)
@click.option("--hours-per-week", type=REAL, required=True, metavar="N", help="That it would be used.")
@_number("--price", "USD", "Of one card.  [default: its price at launch, where the catalog knows it]")
@_number("--host-usd", "USD", "Of the machine around the cards.  [default: 1500, and 300 for each card]")
@_number("--watts-host", "W", "Of that machine in use.  [default: 150]")
@_number("--usd-per-kwh", "USD", "Electricity.  [default: 0.17]")
@_number("--months", "N", "That the machine is kept.  [default: 36]")
@_number("--resale-fraction", "F", "Part of the price that a sale brings back then.  [default: 0.3]")
@click.option("--against", metavar="NAME[:COUNT]", help="Rent this instead.  [default: the same cards]")
@options(CATALOG, JSON)
def buy(*, catalog_files: tuple[Path, ...], as_json: bool, **given: Any) -> None:
    """Compare buying GPUs with renting them: usd a month, and from when on buying pays.

    A month of owning is the price less the resale over the months it is kept, and electricity by the hour: the cards at
    their power limit and the host, through the power supply. A month of renting is the cheapest current offer of the
    same cards. Interest, repairs, work, and disk between rented sessions are left out.
    """
    from vlmplan.answers.purchase import document, print_purchase
    from vlmplan.buying import PurchaseRequest, requested_purchase
    from vlmplan.catalog import load_catalog

    on = today()
    catalog = load_catalog(catalog_files).without_calibrations()  # which are of no number here
    purchase, notes = requested_purchase(PurchaseRequest(**given), catalog, on)
    if as_json:
        print_document(document(purchase, notes, on))
    else:
        print_purchase(purchase, notes, on)
