"""A script's rehearsal: its document, and for people phases, the peak, messages and memory over time."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from vlmplan.answers.estimate import VERDICTS
from vlmplan.answers.rehearsal import (
    SCHEMA,
    allocation_json,
    collectives,
    largest_table,
    measured_json,
    messages_table,
    print_over_time,
)
from vlmplan.hardware import cluster_text
from vlmplan.json_reader import JsonDict
from vlmplan.rehearsal.result import RehearsedPhase
from vlmplan.rehearsal.script import ScriptRehearsal, UnknownRead
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import counted, duration_text, gib_text

UNKNOWN = "-"
OF_AN_ESTIMATE = (
    *("estimated_verdict", "estimated_peak_allocated_bytes", "estimated_peak_reserved_bytes"),
    *("estimated_peak_device_bytes", "relative_error", "estimated_components_at_peak", "estimated_flops"),
)
OF_AN_ESTIMATED_PHASE = (
    *("estimated_resident_bytes", "estimated_peak_bytes", "relative_error"),
    *("estimated_components", "relative_error_by_component"),
)


def document(found: ScriptRehearsal) -> JsonDict:
    """Schema ``vlmplan.rehearsal/1`` and what is known of scripts alone. What belongs to a model, a recipe or an
    estimate is null: there is none of a script."""
    rehearsed, device, gpu = found.rehearsed, found.device, found.cluster.node.gpu
    return {
        "schema": SCHEMA,
        "command": list(found.words),
        "model": None,
        "recipe": None,
        "gpu": {
            "id": gpu.id,
            "count": found.cluster.node.num_gpus,
            "num_nodes": found.cluster.num_nodes,
            "usable_bytes": device.usable_bytes,
        },
        "rank": rehearsed.rank,
        "num_ranks": rehearsed.num_ranks,
        "num_steps": rehearsed.num_steps,
        "verdict": found.verdict.value,
        "peak_phase": found.peak.name,
        "peak_step": found.peak.step,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": device.reserved_bytes,
        "peak_device_bytes": device.device_bytes,
        "components_at_peak": found.peak.components.as_json(),
        "largest": [allocation_json(allocation) for allocation in found.largest],
        "phases": [
            measured_json(phase, found.first_step(phase), found.reserved_bytes_in(phase))
            | dict.fromkeys(OF_AN_ESTIMATED_PHASE)
            for phase in found.phases
        ],
        **dict.fromkeys(OF_AN_ESTIMATE),
        "flops": rehearsed.flops_per_step,
        "collective_bytes": collectives(found),
        "host_bytes": rehearsed.host_peak_bytes,
        "checkpoint_bytes": rehearsed.checkpoint_bytes,
        "seconds": rehearsed.seconds,
        "not_rehearsed": [{"what": one.what, "bytes": one.num_bytes} for one in found.not_rehearsed],
        "not_counted": [],
        "caveats": [],
        "unknown_values": [_read_json(one) for one in found.unknown],
        "bounded_shapes": [_read_json(one) for one in found.bounded],
        "notes": list(found.notes),
    }


def _read_json(one: UnknownRead) -> JsonDict:
    return {"file": one.file, "line": one.line, "what": one.what, "count": one.count}


def print_script_rehearsal(found: ScriptRehearsal) -> None:
    """Print everything that a rehearsal found to standard output."""
    rehearsed, device = found.rehearsed, found.device
    word, colour = VERDICTS[found.verdict]
    free = f"{gib_text(abs(device.free_bytes))} {'free' if device.free_bytes >= 0 else 'short'}"
    say(
        f"{shlex.join(found.words)} on {cluster_text(found.cluster)}",
        f"rehearsed: rank {rehearsed.rank} of {rehearsed.num_ranks}, {counted(rehearsed.num_steps, 'step')}, "
        f"{counted(rehearsed.num_operations, 'operation')} on tensors without data, in "
        f"{duration_text(rehearsed.seconds)} and {gib_text(found.host_rss_bytes)} of this machine's memory",
        f"{click.style(word, fg=colour, bold=True)}: {gib_text(device.device_bytes)} of "
        f"{gib_text(device.usable_bytes)} usable on each GPU; {free}",
    )
    click.echo()
    _print_phases(found)
    click.echo()
    _print_components(found)
    click.echo()
    print_table(largest_table(found))
    click.echo()
    if rehearsed.step_messages:
        print_table(messages_table(found))
        click.echo()
    print_over_time(found)
    click.echo()
    say(*_the_rest(found))


def _print_phases(found: ScriptRehearsal) -> None:
    titles = ("phase", "after", "peak", "first step", "reserved", "TFLOP")
    rows = [_phase_row(found, phase) for phase in found.phases]
    print_table(Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), least_first=("TFLOP",)))


def _phase_row(found: ScriptRehearsal, phase: RehearsedPhase) -> tuple[str, ...]:
    first, reserved = found.first_step(phase), found.reserved_bytes_in(phase)
    return (
        phase.name,
        gib_text(phase.resident_bytes),
        gib_text(phase.peak_bytes),
        UNKNOWN if first is None else gib_text(first.peak_bytes),
        UNKNOWN if reserved is None else gib_text(reserved),
        f"{phase.flops / 1e12:.2f}" if phase.flops else UNKNOWN,
    )


def _print_components(found: ScriptRehearsal) -> None:
    peak, device = found.peak, found.device
    rows = [(name.replace("_", " "), gib_text(size)) for name, size in peak.components.as_json().items() if size]
    step = f" of step {peak.step}" if peak.step else ""
    rows.append((f"allocated, at the peak of {peak.name}{step}", gib_text(found.peak_allocated_bytes)))
    rows.append(("reserved, allocator's unused blocks included", gib_text(device.reserved_bytes)))
    in_all = "process, in all" if found.is_on_cpu else "device, as nvidia-smi shows it"
    rows.append((in_all, gib_text(device.device_bytes)))
    titles = ("on each GPU", "rehearsed")
    print_table(Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:])))


def _the_rest(found: ScriptRehearsal) -> Iterator[str]:
    rehearsed = found.rehearsed
    yield f"a step of this rank: {rehearsed.flops_per_step / 1e12:.4g} TFLOP"
    saved = rehearsed.checkpoint_bytes
    checkpoint = "" if saved is None else f"; its part of a checkpoint is {gib_text(saved)}"
    yield f"host memory of this rank's tensors: {gib_text(rehearsed.host_peak_bytes)} at most{checkpoint}"
    for one in found.not_rehearsed:
        size = "of unknown size, not added" if one.num_bytes is None else f"{gib_text(one.num_bytes)}, added"
        yield f"not rehearsed: {one.what}: {size}"
    for one in found.decisions:
        place = f"{Path(one.file).name}:{one.line}"
        yield (
            f"note: {place} decides by a value that is unknown, {counted(one.count, 'time')}: taken as False; "
            f"--assume '{place}=True' takes the other way"
        )
    others = sum(one.count for one in found.unknown) - sum(one.count for one in found.decisions)
    if others:
        yield f"note: {counted(others, 'unknown value')} read as zero, as losses that are logged are (--json has where)"
    for one in found.bounded:
        yield f"note: {Path(one.file).name}:{one.line}: the size of {one.what} is an upper bound: data decide it"
    for note in found.notes:
        yield f"note: {note}"
