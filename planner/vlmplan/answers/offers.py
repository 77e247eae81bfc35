"""An offer in JSON and in words, the age of its price, and what a run's money goes into."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING

from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster, Offer
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, usd_text

if TYPE_CHECKING:
    from vlmplan.catalog.price_lists import Spread
    from vlmplan.cost import RunCost
    from vlmplan.search import RankedPlan

UNKNOWN = "-"
SHOWN_FRACTION = 0.005
"""Parts of a cost below this are not shown. A choice."""


def machine_json(cluster: Cluster | None, offer: Offer | None, on: date) -> JsonDict:
    """The GPUs of a plan and the offer that rents them; null where there is no plan, or no price."""
    return {
        "gpu": None if cluster is None else cluster.node.gpu.id,
        "num_gpus": None if cluster is None else cluster.node.num_gpus,
        "num_nodes": None if cluster is None else cluster.num_nodes,
        "offer": None if offer is None else offer_json(offer, on),
    }


def offer_json(offer: Offer, on: date) -> JsonDict:
    """An offer under its field names, with its price per GPU, its age and whether it is current."""
    return {
        **asdict(offer),
        "pricing": offer.pricing.value,
        "as_of": day_text(offer),
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "age_days": offer.age_days(on),
        "is_current": offer.is_current(on),
    }


def price_json(offer: Offer, spreads: "Mapping[str, Spread]", on: date) -> JsonDict:
    """Whether what a plan costs is about so much, because its price is old: of when it is, and the GPU's spread."""
    found = spreads.get(offer.gpu_id)
    is_about = not offer.is_current(on)
    return {
        "is_about": is_about,
        "price_of": day_text(offer),
        "spread": spread_json(found) if is_about and found is not None else None,
    }


def spread_json(found: "Spread") -> JsonDict:
    """A spread under its field names."""
    return {**asdict(found), "newest": None if found.newest is None else found.newest.isoformat()}


def day_text(offer: Offer) -> str | None:
    """The day on which the price was seen, or its month; None where nobody says."""
    if offer.as_of is None:
        return None
    return offer.as_of.isoformat()[: len("2026-05") if offer.as_of_is_month else None]


def about_text(usd: float, offer: Offer | None, on: date) -> str:
    """An amount of money; ``about $1.50 (price of 2026-05-24)`` where the offer's price is too old to stand for
    today's."""
    if offer is None or offer.is_current(on):
        return usd_text(usd)
    return f"about {usd_text(usd)} (price of {day_text(offer) or 'unknown age'})"


def offer_text(offer: Offer, on: date) -> str:
    """Provider, product, terms and the age of the price."""
    age = offer.age_days(on)
    words = [offer.provider, *([offer.product] if offer.product else []), offer.pricing.value.replace("_", " ")]
    seen = "price of unknown age" if age is None else f"price {counted(age, 'day')} old"
    return f"{' '.join(words)}, {seen}"


def age_text(offer: Offer, on: date) -> str:
    """The price's age in days: ``<=`` where only its month is known, ``!`` where it may not stand for today's."""
    age = offer.age_days(on)
    if age is None:
        text = "own" if offer.stated_in is not None else "undated"
    else:
        text = f"{'<=' if offer.as_of_is_month else ''}{age} d"
    return text if offer.is_current(on) else f"{text} !"


def money_line(plan: "RankedPlan", on: date) -> str:
    """What the run costs, how long it takes, on what."""
    node = plan.estimate.cluster.node
    count = plan.estimate.cluster.num_gpus
    price = UNKNOWN if plan.usd is None else about_text(plan.usd, plan.offer, on)
    time = "an unknown time" if plan.hours is None else duration_text(plan.hours * SECONDS_PER_HOUR)
    where = f"{count} x {node.gpu.name}"
    if plan.offer is None or plan.usd_per_hour is None:
        return f"{time} on {where}; no price is known"
    return f"{price} for the run, {time} on {where}; {offer_text(plan.offer, on)}, {usd_text(plan.usd_per_hour)}/h"


def cost_lines(plan: "RankedPlan") -> list[str]:
    """What the money of a plan goes into, and how often to save where the machine may be taken away."""
    cost = plan.cost
    if cost is None:
        return []
    lines = [f"cost: {_parts_text(cost)}; billed for {duration_text(cost.billed_hours * SECONDS_PER_HOUR)}"]
    if cost.num_interruptions:
        steps = counted(plan.save_every_steps or 1, "step")
        lines.append(
            f"interruptions: {cost.num_interruptions:.2g} expected while it runs; "
            f"a checkpoint every {steps} loses least (launch --save-every {plan.save_every_steps})"
        )
    return lines


def range_lines(plan: "RankedPlan") -> list[str]:
    """How far the hours of a plan may be from what is expected, and its money with them."""
    hours, usd = plan.hours_range, plan.usd_range
    if hours is None:
        return []
    least, most = [duration_text(one * SECONDS_PER_HOUR) for one in hours]
    if usd is not None:
        least, most = f"{least} for {usd_text(usd[0])}", f"{most} for {usd_text(usd[1])}"
    return [f"range: {least} to {most}, as cards and hosts differ; samples as assumed"]


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
