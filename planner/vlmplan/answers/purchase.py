"""Buying against renting: the document, and for people what a month costs, by hours a week, and a sentence."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date

import click

from vlmplan.answers.estimate import caveat_lines
from vlmplan.answers.offers import about_text, age_text, offer_json
from vlmplan.cost.owning import WEEKS_PER_MONTH
from vlmplan.cost.purchase import SHOWN_HOURS_PER_WEEK, Purchase
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Offer
from vlmplan.notes import footnotes
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import counted, usd_text

SCHEMA = "vlmplan.buy/1"


def document(purchase: Purchase, notes: Sequence[str], on: date) -> JsonDict:
    """Schema ``vlmplan.buy/1``; ``rents`` are cheapest first, as in each ``rent_usd_per_month``."""
    return {
        "schema": SCHEMA,
        "date": on.isoformat(),
        "gpu": purchase.gpu.id,
        "num_gpus": purchase.num_gpus,
        "hours_per_week": purchase.hours_per_week,
        "machine": _machine_json(purchase),
        "by_hours_per_week": [_week_json(purchase, hours) for hours in SHOWN_HOURS_PER_WEEK],
        "advice": purchase.advice,
        "rents": [_rent_json(purchase, offer, on) for offer in purchase.rents],
        "notes": list(notes),
    }


def _machine_json(purchase: Purchase) -> JsonDict:
    machine = purchase.machine
    return {
        **asdict(machine),
        "price_usd": machine.price_usd,
        "fixed_usd_per_month": machine.fixed_usd_per_month,
        "electricity_usd_per_hour": machine.electricity_usd_per_hour,
        "usd_per_month": purchase.own_usd_per_month,
        "usd_per_hour": machine.usd_per_hour(purchase.hours_per_month),
    }


def _week_json(purchase: Purchase, hours_per_week: float) -> JsonDict:
    hours = hours_per_week * WEEKS_PER_MONTH
    return {
        "hours_per_week": hours_per_week,
        "own_usd_per_month": purchase.machine.usd_per_month(hours),
        "own_usd_per_hour": purchase.machine.usd_per_hour(hours),
        "rent_usd_per_month": [offer.usd_per_hour * hours for offer in purchase.rents],
    }


def _rent_json(purchase: Purchase, offer: Offer, on: date) -> JsonDict:
    turn = purchase.break_even(offer)
    return {
        "offer": offer_json(offer, on),
        "usd_per_month": purchase.rent_usd_per_month(offer),
        "break_even": asdict(turn) | {"hours_per_week": turn.hours_per_week},
    }


def print_purchase(purchase: Purchase, notes: Sequence[str], on: date) -> None:
    """Print the comparison to standard output."""
    for line in (*_machine_lines(purchase), *(_rent_line(offer, on) for offer in purchase.rents)):
        say(line)
    click.echo()
    print_table(_table(purchase))
    click.echo()
    say(*caveat_lines(notes))
    say(_break_even_line(purchase))
    say(click.style(purchase.advice[0].upper() + purchase.advice[1:], bold=True))
    for note in footnotes(notes):
        say(f"note: {note}")


def _machine_lines(purchase: Purchase) -> list[str]:
    machine = purchase.machine
    back = f"sold then for {machine.resale_fraction:.0%}"
    return [
        f"{purchase.num_gpus} x {purchase.gpu.name}: {usd_text(machine.cards_usd)} for the cards, "
        f"{usd_text(machine.host_usd)} for the host, kept {counted(machine.lifetime_months, 'month')}, {back}",
        f"own:  {usd_text(machine.fixed_usd_per_month)} a month, and {usd_text(machine.electricity_usd_per_hour)} "
        f"an hour ({machine.watts:,.0f} W at ${machine.usd_per_kwh:g}/kWh)",
    ]


def _rent_line(offer: Offer, on: date) -> str:
    what = f"{offer.num_gpus} x {offer.gpu_id}, {offer.provider} {offer.pricing.value.replace('_', ' ')}"
    return f"rent: {about_text(offer.usd_per_hour, offer, on)} an hour ({what}, {age_text(offer, on)})"


def _table(purchase: Purchase) -> Table:
    """One row for each number of hours a week."""
    rents = [f"{offer.provider} {usd_text(offer.usd_per_hour)}/h" for offer in purchase.rents]
    titles = ["hours a week", "own usd/h", "own usd/month", *_distinct(rents), "cheaper"]
    rows: list[list[str]] = []
    for hours_per_week in sorted({*SHOWN_HOURS_PER_WEEK, purchase.hours_per_week}):
        hours = hours_per_week * WEEKS_PER_MONTH
        own = purchase.machine.usd_per_month(hours)
        rented = [offer.usd_per_hour * hours for offer in purchase.rents]
        shown = [f"{usd:,.2f}" for usd in (own / hours, own, *rented)]
        rows.append([f"{hours_per_week:g}", *shown, "own" if own < min(rented) else "rent"])
    left_out = (*reversed(titles[4:-1]), "own usd/h")  # the dearest rents first
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[:-1]), least_first=left_out)


def _distinct(titles: Sequence[str]) -> list[str]:
    """Titles told apart where one provider is there twice."""
    return [title if titles.count(title) == 1 else f"{title} ({i + 1})" for i, title in enumerate(titles)]


def _break_even_line(purchase: Purchase) -> str:
    turn = purchase.break_even(purchase.rents[0])
    if turn.hours_in_all is None:
        return "break-even: never; electricity alone costs as much as the rent"
    if turn.hours_in_all == 0:
        return "break-even: from the first hour on; the resale brings back all of the price"
    text = f"break-even: {counted(round(turn.hours_in_all), 'hour')} of use"
    if turn.hours_per_month is None:
        return f"{text}, more than there are in {counted(purchase.machine.lifetime_months, 'month')}"
    text += f", {turn.hours_per_month:,.0f} a month or {turn.hours_per_week:,.1f} a week"
    if turn.months is None:
        return f"{text}; {purchase.hours_per_week:g} a week do not get there in time"
    return f"{text}; {purchase.hours_per_week:g} a week get there in {turn.months:.1f} months"
