"""A machine of one's own against a rented one: usd per hour and month, and from when on buying pays.

Symbols: P usd paid, F part of it that a sale brings back after L months, e usd of electricity per hour of use, r usd
per rented hour, h hours of use per month. A month of owning costs P (1 - F) / L + e h, a month of renting r h.
Left out: interest, repairs, work, and the disk between rented sessions.
"""

from dataclasses import dataclass

from vlmplan.errors import InputError, require_within
from vlmplan.units import MAX_AMOUNT

HOURS_PER_MONTH = 365.25 / 12 * 24
WEEKS_PER_MONTH = 365.25 / 12 / 7
HOURS_PER_WEEK = 168
LEAST_USE = 0.01
"""Hours a week, and months: of less no price can be written down. A choice."""

HOST_USD = 1500.0
"""A desktop machine for cards: processor, board, 64 GiB, drive, case. Assumed; servers for 8 cards cost ten times
that."""
HOST_USD_PER_GPU = 300.0
"""For each card: its part of the power supply, of slots, of memory to match. Assumed."""
HOST_WATTS = 150.0
"""Of the machine around the cards while they train. Assumed: processor, memory, drives, fans."""
POWER_SUPPLY_EFFICIENCY = 0.9
"""Cited: 80 PLUS Gold at half load, 115 V."""
USD_PER_KWH = 0.17
"""Assumed: about what a household in the United States pays. Cited: 0.137 (West North Central) to 0.296 (New England)
in table 5.6.A of EIA's Electric Power Monthly for April 2025."""
LIFETIME_MONTHS = 36.0
"""That the machine is kept. Assumed."""
RESALE_FRACTION = 0.3
"""Part of the price that a sale brings back after that. Assumed."""


def wall_watts(*, num_gpus: int, gpu_watts: float, host_watts: float) -> float:
    """What the socket gives while all cards draw ``gpu_watts``, their limit: training hardly stays below it."""
    return (num_gpus * gpu_watts + host_watts) / POWER_SUPPLY_EFFICIENCY


def own_usd_per_hour(
    *,
    watts: float,
    usd_per_kwh: float,
    price_usd: float,
    resale_fraction: float,
    lifetime_months: float,
    hours_per_month: float,
) -> float:
    """Electricity and amortisation of one hour of use, for ``usd_per_hour`` of an offer with ``pricing: own``.

    ``watts`` are those at the wall, of cards and host; infinite without any use.

    >>> own_usd_per_hour(watts=1000, usd_per_kwh=0.2, price_usd=4800, resale_fraction=0.25, lifetime_months=36,
    ...                  hours_per_month=100)
    1.2
    """
    electricity = watts / 1000 * usd_per_kwh
    hours = lifetime_months * hours_per_month
    return electricity + price_usd * (1 - resale_fraction) / hours if hours else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """What is bought: usd of all cards and of the host, watts at the wall in use."""

    cards_usd: float
    host_usd: float
    watts: float
    usd_per_kwh: float = USD_PER_KWH
    lifetime_months: float = LIFETIME_MONTHS
    resale_fraction: float = RESALE_FRACTION

    def __post_init__(self) -> None:
        for option, value in (
            ("--price", self.cards_usd),
            ("--host-usd", self.host_usd),
            ("--watts-host", self.watts),
            ("--usd-per-kwh", self.usd_per_kwh),
        ):
            require_within(option, value, least=0, most=MAX_AMOUNT)
        require_within("--months", self.lifetime_months, least=LEAST_USE, most=MAX_AMOUNT)
        if not 0 <= self.resale_fraction <= 1:
            raise InputError(f"--resale-fraction is {self.resale_fraction:g}; 0 to 1 is needed")

    @property
    def price_usd(self) -> float:
        return self.cards_usd + self.host_usd

    @property
    def lost_usd(self) -> float:
        """What is paid and never comes back: P (1 - F)."""
        return self.price_usd * (1 - self.resale_fraction)

    @property
    def fixed_usd_per_month(self) -> float:
        return self.lost_usd / self.lifetime_months

    @property
    def electricity_usd_per_hour(self) -> float:
        return self.watts / 1000 * self.usd_per_kwh

    def usd_per_month(self, hours_per_month: float) -> float:
        return self.fixed_usd_per_month + self.electricity_usd_per_hour * hours_per_month

    def usd_per_hour(self, hours_per_month: float) -> float:
        """``own_usd_per_hour`` of this machine."""
        return own_usd_per_hour(
            watts=self.watts,
            usd_per_kwh=self.usd_per_kwh,
            price_usd=self.price_usd,
            resale_fraction=self.resale_fraction,
            lifetime_months=self.lifetime_months,
            hours_per_month=hours_per_month,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The time from which on buying costs less than renting at ``rent_usd_per_hour``; None: never, for electricity
    alone costs as much, or not within the machine's life.

    ``hours_in_all``: of use until the price is earned, P (1 - F) / (r - e), however long that takes.
    ``hours_per_month``: of use that earn it within the machine's life.
    ``months``: until it is earned at the hours per month that were asked for.
    """

    rent_usd_per_hour: float
    hours_in_all: float | None
    hours_per_month: float | None
    months: float | None

    @property
    def hours_per_week(self) -> float | None:
        return None if self.hours_per_month is None else self.hours_per_month / WEEKS_PER_MONTH


def break_even(machine: OwnMachine, *, rent_usd_per_hour: float, hours_per_month: float) -> BreakEven:
    """The time at which the costs of owning and of renting are equal."""
    saved = rent_usd_per_hour - machine.electricity_usd_per_hour
    if saved <= 0:
        return BreakEven(rent_usd_per_hour=rent_usd_per_hour, hours_in_all=None, hours_per_month=None, months=None)
    hours = machine.lost_usd / saved
    per_month = hours / machine.lifetime_months
    months = hours / hours_per_month if hours_per_month else None
    return BreakEven(
        rent_usd_per_hour=rent_usd_per_hour,
        hours_in_all=hours,
        hours_per_month=per_month if per_month <= HOURS_PER_MONTH else None,
        months=months if months is not None and months <= machine.lifetime_months else None,
    )
