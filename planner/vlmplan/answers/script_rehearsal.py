"""A script's rehearsal: its document, and for people phases, the peak, collectives and memory over time."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from vlmplan.answers.estimate import VERDICTS, device_title, shares_text
from vlmplan.answers.rehearsal import (
    SCHEMA,
    allocation_json,
    collectives,
    collectives_table,
    host_lines,
    largest_table,
    measured_json,
    print_over_time,
    rehearsed_text,
    step_seconds_json,
)
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import cluster_text
from vlmplan.rehearsal.result import RehearsedPhase
from vlmplan.rehearsal.script import ScriptRehearsal
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import counted, duration_text, gib_text

UNKNOWN = "-"
OF_AN_ESTIMATE = (
    *("estimated_verdict", "estimated_peak_allocated_bytes", "estimated_peak_reserved_bytes"),
    "estimated_reserved_with_room_bytes",
    *("estimated_peak_device_bytes", "relative_error", "estimated_components_at_peak", "estimated_flops"),
    "estimated_step_seconds",
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
        "reserved_with_room_bytes": found.reserved_with_room_bytes,
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
        **step_seconds_json(found),
        "not_rehearsed": [{"what": one.what, "bytes": one.num_bytes} for one in found.not_rehearsed],
        "not_counted": [],
        "caveats": [],
        "unknown_values": list(map(asdict, found.unknown)),
        "bounded_shapes": list(map(asdict, found.bounded)),
        "notes": list(found.notes),
    }


def print_script_rehearsal(found: ScriptRehearsal) -> None:
    """Print everything that a rehearsal found to standard output."""
    say(heading(found), rehearsed_line(found), verdict_line(found))
    for table in tables(found):
        click.echo()
        print_table(table)
    click.echo()
    print_over_time(found)
    click.echo()
    say(*remaining_lines(found))


def heading(found: ScriptRehearsal) -> str:
    return f"{shlex.join(found.words)} on {cluster_text(found.cluster)}"


def rehearsed_line(found: ScriptRehearsal) -> str:
    return f"{rehearsed_text(found.rehearsed)} and {gib_text(found.host_rss_bytes)} of this machine's memory"


def verdict_line(found: ScriptRehearsal) -> str:
    device = found.device
    word, colour = VERDICTS[found.verdict]
    free = f"{gib_text(abs(device.free_bytes))} {'free' if device.free_bytes >= 0 else 'short'}"
    return (
        f"{click.style(word, fg=colour, bold=True)}: {gib_text(device.device_bytes)} of "
        f"{gib_text(device.usable_bytes)} usable on each GPU; {free}"
    )


def tables(found: ScriptRehearsal) -> Iterator[Table]:
    """Phases, the peak by component, its largest storages, and collectives where there are any."""
    yield phases_table(found)
    yield components_table(found)
    yield largest_table(found)
    if found.rehearsed.step_collectives:
        yield collectives_table(found)


def phases_table(found: ScriptRehearsal) -> Table:
    titles = ("phase", "after", "peak", "first step", "reserved", "TFLOP")
    rows = [_phase_row(found, phase) for phase in found.phases]
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), least_first=("TFLOP",))


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


def components_table(found: ScriptRehearsal) -> Table:
    """The peak by component, and the device."""
    peak, device = found.peak, found.device
    rows = [(name.replace("_", " "), gib_text(size)) for name, size in peak.components.as_json().items() if size]
    step = f" of step {peak.step}" if peak.step else ""
    rows.append((f"allocated, at the peak of {peak.name}{step}", gib_text(found.peak_allocated_bytes)))
    rows.append(("reserved, allocator's unused blocks included", gib_text(found.reserved_with_room_bytes)))
    in_all = device_title(is_on_cpu=found.is_on_cpu, expands=found.has_expandable_segments)
    rows.append((in_all, gib_text(device.device_bytes)))
    titles = ("on each GPU", "rehearsed")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))


def step_lines(found: ScriptRehearsal) -> Iterator[str]:
    """FLOPs of a step, and its seconds by the roofline where the card's speed is known."""
    flops, timed = f"a step of this rank: {found.rehearsed.flops_per_step / 1e12:.4g} TFLOP", found.timed
    if timed is None:
        yield flops
        return
    least, most = duration_text(timed.fast_seconds), duration_text(timed.slow_seconds)
    yield (
        f"{flops}, in {duration_text(timed.expected.total)} by the roofline (at best {least}, at worst {most}), "
        f"bound by {timed.bound}"
    )
    yield f"  its parts: {shares_text(timed.expected.as_json())}"


def remaining_lines(found: ScriptRehearsal) -> Iterator[str]:
    """What no table says."""
    yield from step_lines(found)
    yield from host_lines(found.rehearsed, found.not_rehearsed)
    for one in found.decisions:
        place = f"{Path(one.file).name}:{one.line}"
        yield (
            f"note: {place} decides by a value that is unknown, {counted(one.count, 'time')}: taken as False; "
            f"--assume '{place}=True' takes the other way"
        )
    others = sum(one.count for one in found.unknown) - sum(decision.count for decision in found.decisions)
    if others:
        yield f"note: {counted(others, 'unknown value')} read as zero, as losses that are logged are (--json has where)"
    for one in found.bounded:
        yield f"note: {Path(one.file).name}:{one.line}: the size of {one.what} is an upper bound: data decide it"
    for note in found.notes:
        yield f"note: {note}"
