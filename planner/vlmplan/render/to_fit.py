"""How a setup can be made to fit, for people: the least changes on the same cards, and the cheapest other machine."""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Protocol

from vlmplan.render.estimate import cluster_text, hardware_text
from vlmplan.render.lines import say, say_command
from vlmplan.render.recommendation import offer_text
from vlmplan.search.other_machine import OtherMachine
from vlmplan.search.way_out import ToFit, WayOut
from vlmplan.units import duration_text, gib_text, usd_text


class Command(Protocol):
    """Options as the command line that has them."""

    def __call__(self, options: Mapping[str, Any], /) -> str: ...


def print_way_out(found: WayOut, command: Command, on: date) -> None:
    """Print both answers, each with its command, to standard output."""
    for text, lead, options in way_out_parts(found, on):
        say(text)
        if options is not None:
            say_command(lead, command(options))


def way_out_parts(found: WayOut, on: date) -> Iterator[tuple[str, str, Mapping[str, Any] | None]]:
    """Sentences, each with the options that do what it says, and what leads to their command."""
    where = _hardware(found)
    if found.to_fit is None:
        yield f"To fit on {where}: none of the changes that were tried is enough", "", None
    else:
        yield to_fit_sentence(found.to_fit, where), "to fit:", found.to_fit.combination.options
    if found.other_machine is not None:
        yield other_machine_sentence(found.other_machine, on), "there:", found.other_machine.options
    elif found.is_sought:
        yield "Cheapest other machine: none of the catalog's offers has room for it as it is", "", None


def _hardware(found: WayOut) -> str:
    """What it is to fit on, by name as long as that is not a list."""
    texts = list(dict.fromkeys(cluster_text(cluster) for cluster in found.clusters))
    return " or ".join(texts) if len(texts) <= 2 else f"one of {len(texts)} machines"


def to_fit_sentence(found: ToFit, where: str) -> str:
    """What is changed, what it takes then, and whether the same model comes out."""
    device, host = found.estimate.device, found.estimate.host
    results = "the same results but for rounding" if found.combination.keeps_results else "other results"
    parts = [f"{gib_text(device.device_bytes)} of {gib_text(device.usable_bytes)}"]
    seconds, samples = found.estimate.step_seconds, found.estimate.samples_per_step
    if seconds is not None:
        parts.append(f"{duration_text(seconds)} for {samples} samples" if samples > 1 else duration_text(seconds))
    if "host" in found.combination.name:
        parts.append(f"{gib_text(host.peak_bytes)} of host RAM")
    return f"To fit on {where}: {found.combination.name}; {', '.join(parts)}, {results}"


def other_machine_sentence(found: OtherMachine, on: date) -> str:
    """Which machine, from whom, and what the run costs there."""
    plan = found.plan
    text = f"Cheapest other machine: {hardware_text(plan.estimate)}"
    if plan.offer is not None and plan.usd_per_hour is not None:
        text += f" ({offer_text(plan.offer, on)}, {usd_text(plan.usd_per_hour)}/h)"
    run = [] if plan.usd is None else [f"{usd_text(plan.usd)} for the run"]
    run += [] if plan.hours is None else [duration_text(plan.hours * 3600)]
    return "; ".join([text, *([", ".join(run)] if run else [])])
