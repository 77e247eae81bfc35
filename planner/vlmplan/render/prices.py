"""Prices for people: how old they are, and what a run's money goes into."""

from datetime import date
from typing import TYPE_CHECKING

from vlmplan.hardware import Offer
from vlmplan.units import counted, duration_text, usd_text

if TYPE_CHECKING:
    from vlmplan.cost import RunCost
    from vlmplan.search import RankedPlan

SHOWN_FRACTION = 0.005
"""Parts of a cost below this are not shown. A choice."""


def age_text(offer: Offer, on: date) -> str:
    """The price's age in days: ``<=`` where only its month is known, ``!`` where it may not stand for today's."""
    age = offer.age_days(on)
    if age is None:
        text = "own" if offer.stated_in is not None else "undated"
    else:
        text = f"{'<=' if offer.as_of_is_month else ''}{age} d"
    return text if offer.is_current(on) else f"{text} !"


def cost_lines(plan: "RankedPlan") -> list[str]:
    """What the money of a plan goes into, and how often to save where the machine may be taken away."""
    cost = plan.cost
    if cost is None:
        return []
    lines = [f"cost: {_parts_text(cost)}; billed for {duration_text(cost.billed_hours * 3600)}"]
    if cost.num_interruptions:
        steps = counted(plan.save_every_steps or 1, "step")
        lines.append(
            f"interruptions: {cost.num_interruptions:.2g} expected while it runs; "
            f"a checkpoint every {steps} loses least (launch --save-every {plan.save_every_steps})"
        )
    return lines


def _parts_text(cost: "RunCost") -> str:
    parts = (
        ("training", cost.training_usd),
        ("start-up", cost.start_up_usd),
        ("download", cost.download_usd),
        ("checkpoints", cost.checkpoints_usd),
        ("interruptions", cost.interruptions_usd),
        ("disk", cost.storage_usd),
    )
    shown = [f"{usd_text(usd)} {name}" for name, usd in parts if usd > SHOWN_FRACTION * cost.usd]
    return ", ".join(shown) or usd_text(0)
