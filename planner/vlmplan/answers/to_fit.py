"""How a setup can be made to fit: the least changes on the same cards and the cheapest other machine, each as a command
to copy; the part of every command's document, and sentences."""

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Protocol

import click

from vlmplan.answers.estimate import hardware_text
from vlmplan.answers.offers import about_text, machine_json, offer_text
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import cluster_text
from vlmplan.render.lines import say, say_command
from vlmplan.units import SECONDS_PER_HOUR, duration_text, gib_text, usd_text

if TYPE_CHECKING:  # a setup that fits is shown without the search
    from vlmplan.proposals.fixes import Fix
    from vlmplan.proposals.other_machine import OtherMachine
    from vlmplan.proposals.way_out import ToFit, WayOut
    from vlmplan.request import Request


class Command(Protocol):
    """A request as the command line that asks for it."""

    def __call__(self, request: "Request", /) -> str: ...


def document(found: "WayOut | None", command: Command, on: date) -> JsonDict:
    """Keys of every command's JSON; null where it fits, or where nothing was found.

    ``options`` of ``to_fit`` are those that change, null where one is taken away; ``changes`` say which belong
    together. None of them can be left out alone.
    """
    if found is None:
        return {"to_fit": None, "with_more_host": None, "other_machine": None}
    to_fit, more, other = found.to_fit, found.with_more_host, found.other_machine
    return {
        "to_fit": None if to_fit is None else _to_fit_json(to_fit, command, found.card_bytes),
        "with_more_host": None if more is None else _to_fit_json(more, command, found.card_bytes),
        "other_machine": None if other is None else _other_json(other, command, on),
    }


def _to_fit_json(found: "ToFit", command: Command, card_bytes: int | None) -> JsonDict:
    combination, estimate = found.combination, found.estimate
    return {
        "changes": [
            {"change": change.name, "options": dict(change.options), "keeps_results": change.keeps_results}
            for change in combination.changes
        ],
        "options": combination.changed,
        "keeps_results": combination.keeps_results,
        "command": command(combination.request),
        "verdict": estimate.verdict.value,
        "device_bytes": estimate.device.device_bytes,
        "usable_bytes": card_bytes or estimate.device.usable_bytes,
        "host_bytes_per_node": estimate.host.peak_bytes,
        "step_seconds": estimate.step_seconds,
    }


def _other_json(found: "OtherMachine", command: Command, on: date) -> JsonDict:
    plan = found.plan
    return {
        **machine_json(plan.estimate.cluster, plan.offer, on),
        "usd_per_hour": plan.usd_per_hour,
        "usd": plan.usd,
        "hours": plan.hours,
        "command": command(found.request),
        "device_bytes": plan.estimate.device.device_bytes,
    }


def print_way_out(found: "WayOut | None", command: Command, on: date, fix: "Fix | None" = None) -> None:
    """Print both answers, each with its command, to standard output; nothing where there is none. ``fix`` is the first
    answer as a change of a trainer's file, which ``vlmplan check --fix`` shows."""
    if found is None:
        return
    click.echo()
    for text, lead, request in way_out_parts(found, on, fix):
        say(text)
        if request is not None:
            say_command(lead, command(request))


def way_out_lines(found: "WayOut | None", command: Command, on: date, fix: "Fix | None" = None) -> list[str]:
    """The way out for a page, as lines of sentences and commands."""
    lines: list[str] = []
    for text, lead, request in () if found is None else way_out_parts(found, on, fix):
        lines += [text] if request is None else [text, f"{lead} {command(request)}"]
    return lines


def way_out_parts(found: "WayOut", on: date, fix: "Fix | None" = None) -> "Iterator[tuple[str, str, Request | None]]":
    """Sentences, each with the request that does what it says, and what leads to their command."""
    where = _hardware(found)
    if fix is not None:
        from vlmplan.answers.fix import to_fit_texts

        yield from ((text, "", None) for text in to_fit_texts(fix, where))
    elif found.to_fit is None:
        yield f"To fit on {where}: none of the changes that were tried is enough", "", None
    else:
        yield to_fit_sentence(found.to_fit, where, found.card_bytes), "to fit:", found.to_fit.combination.request
    if found.card_bytes is not None and found.to_fit is not None:
        planned = cluster_text(found.to_fit.estimate.cluster)
        yield f"The command is for {planned}, as was planned: --gpu with the name of that card says all of it", "", None
    if found.taken_host_bytes is not None and (found.to_fit is None or not found.to_fit.combination.keeps_results):
        yield f"The host is taken to have {gib_text(found.taken_host_bytes)}: --host-ram says what it has", "", None
    if found.with_more_host is not None:
        more = found.with_more_host
        yield with_more_host_sentence(more, found.card_bytes), "with more:", more.combination.request
    if found.other_machine is not None:
        yield other_machine_sentence(found.other_machine, on), "there:", found.other_machine.request
    elif found.tries_other_machines:
        yield "Cheapest other machine: none of the catalog's offers can train it as it is", "", None


def _hardware(found: "WayOut") -> str:
    """What it is to fit on, by name as long as that is not a list."""
    if found.card_bytes is not None:
        return f"GPUs of {gib_text(found.card_bytes)}, as the log has one"
    texts = list(dict.fromkeys(cluster_text(cluster) for cluster in found.clusters))
    return " or ".join(texts) if len(texts) <= 2 else f"one of {len(texts)} machines"


def to_fit_sentence(found: "ToFit", where: str, card_bytes: int | None = None) -> str:
    """What is changed, what it takes then, and whether the same model comes out; ``card_bytes`` as in ``WayOut``."""
    return f"To fit on {where}: {_taken_text(found, card_bytes)}"


def with_more_host_sentence(found: "ToFit", card_bytes: int | None = None) -> str:
    """The sentence on what fits where the host has more memory than it is taken to have."""
    return f"With more host RAM: {_taken_text(found, card_bytes)}"


def _taken_text(found: "ToFit", card_bytes: int | None) -> str:
    device, host = found.estimate.device, found.estimate.host
    results = "the same results but for rounding" if found.combination.keeps_results else "other results"
    parts = [f"{gib_text(device.device_bytes)} of {gib_text(card_bytes or device.usable_bytes)}"]
    seconds, samples = found.estimate.step_seconds, found.estimate.samples_per_step
    if seconds is not None and card_bytes is None:  # which are the larger card's
        parts.append(f"{duration_text(seconds)} for {samples} samples" if samples > 1 else duration_text(seconds))
    if "host" in found.combination.name:
        parts.append(f"{gib_text(host.peak_bytes)} of host RAM")
    return f"{found.combination.name}; {', '.join(parts)}, {results}"


def other_machine_sentence(found: "OtherMachine", on: date) -> str:
    """The sentence on the other machine: which, from whom, and what the run costs there."""
    plan = found.plan
    text = f"Cheapest other machine: {hardware_text(plan.estimate)}"
    if plan.offer is not None and plan.usd_per_hour is not None:
        text += f" ({offer_text(plan.offer, on)}, {usd_text(plan.usd_per_hour)}/h)"
    run = [] if plan.usd is None else [f"{about_text(plan.usd, plan.offer, on)} for the run"]
    run += [] if plan.hours is None else [duration_text(plan.hours * SECONDS_PER_HOUR)]
    return "; ".join([text, *([", ".join(run)] if run else [])])
