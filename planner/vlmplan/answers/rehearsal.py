"""One rehearsal: its document, and for people its phases beside the estimate, peak, collectives, memory over time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

import click

from vlmplan.answers import estimate as estimates
from vlmplan.answers.estimate import VERDICTS, caveat_lines, device_title, heading, setup_text, without_text
from vlmplan.files.json_reader import JsonDict
from vlmplan.memory.device import Verdict
from vlmplan.notes import footnotes
from vlmplan.rehearsal.comparison import ComparedPhase, Comparison, relative_error
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice, UnrehearsedBytes
from vlmplan.rehearsal.result import Allocation, Rehearsed, RehearsedPhase
from vlmplan.render.lines import picture_width, say
from vlmplan.render.sparkline import BLOCKS, PLAIN, phase_lines, sparkline
from vlmplan.render.tables import Table, can_show, print_table
from vlmplan.units import counted, duration_text, gib_text

SCHEMA = "vlmplan.rehearsal/1"
UNKNOWN = "-"
ERROR = "error"
LEAST_FRACTION = 0.001
"""Of a component of fewer of the peak's bytes no error is shown, and no storage so small: both would mean nothing."""


def document(found: Comparison, hardware_notes: Sequence[str] = ()) -> JsonDict:
    """Schema ``vlmplan.rehearsal/1``: everything that was rehearsed, next to the estimate's.

    Integers are bytes unless their name says otherwise; errors are (estimated - rehearsed) / rehearsed, null where
    nothing was rehearsed.
    """
    rehearsed, estimate = found.rehearsed, found.estimate
    estimated = estimates.document(estimate, hardware_notes)
    return {
        "schema": SCHEMA,
        "model": estimated["model"],
        "gpu": estimated["gpu"],
        "recipe": estimated["recipe"],
        "rank": rehearsed.rank,
        "num_ranks": rehearsed.num_ranks,
        "num_steps": rehearsed.num_steps,
        **peaks(found),
        "components_at_peak": found.peak.components.as_json(),
        "estimated_components_at_peak": found.estimated_peak.as_json(),
        "largest": [allocation_json(allocation) for allocation in found.largest],
        "phases": [_phase_json(phase) for phase in found.phases],
        "flops": rehearsed.flops_per_step,
        "estimated_flops": estimate.flops_per_step,
        "collective_bytes": collectives(found),
        "host_bytes": rehearsed.host_peak_bytes,
        "checkpoint_bytes": rehearsed.checkpoint_bytes,
        "seconds": rehearsed.seconds,
        **step_seconds_json(found),
        "estimated_step_seconds": estimate.step_seconds,
        "not_rehearsed": [{"what": one.what, "bytes": one.num_bytes} for one in found.not_rehearsed],
        "not_counted": estimated["not_counted"],
        "caveats": estimated["caveats"],
        "notes": estimated["notes"],
    }


def peaks(found: Comparison) -> JsonDict:
    """Verdict and peaks with those of the estimate."""
    estimate, device = found.estimate, found.device
    return {
        "verdict": found.verdict.value,
        "estimated_verdict": estimate.verdict.value,
        "peak_phase": found.peak.name,
        "peak_step": found.peak.step,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": device.reserved_bytes,
        "reserved_with_room_bytes": found.reserved_with_room_bytes,
        "peak_device_bytes": device.device_bytes,
        "estimated_peak_allocated_bytes": estimate.peak_allocated_bytes,
        "estimated_peak_reserved_bytes": estimate.device.reserved_bytes,
        "estimated_reserved_with_room_bytes": estimate.reserved_with_room_bytes,
        "estimated_peak_device_bytes": estimate.device.device_bytes,
        "relative_error": found.relative_error,
    }


def step_seconds_json(found: RehearsedDevice) -> JsonDict:
    """Seconds of a step by what was rehearsed, as an estimate has them."""
    timed = found.timed
    return {
        "step_seconds": None if timed is None else timed.expected.total,
        "step_seconds_range": None if timed is None else [timed.fast_seconds, timed.slow_seconds],
        "step_seconds_by_part": None if timed is None else timed.expected.as_json(),
    }


def confirmation_json(found: Comparison) -> JsonDict:
    """What was rehearsed of a plan, beside its estimate."""
    return peaks(found) | {"rank": found.rehearsed.rank, "seconds": found.rehearsed.seconds}


def allocation_json(allocation: Allocation) -> JsonDict:
    """A storage."""
    values = {item.name: getattr(allocation, item.name) for item in fields(allocation)}
    return values | {"shape": list(allocation.shape)}


def collectives(found: RehearsedDevice) -> JsonDict:
    """Bytes of one step's collectives, and by kind with their number; the larger side of each on this rank."""
    kinds: dict[str, dict[str, int]] = {}
    for one in found.rehearsed.step_collectives:
        kind = kinds.setdefault(one.kind, {"count": 0, "bytes": 0})
        kind["count"] += one.count
        kind["bytes"] += one.num_bytes
    return {"per_step": sum(kind["bytes"] for kind in kinds.values()), "by_kind": kinds}


def measured_json(phase: RehearsedPhase, first: RehearsedPhase | None, reserved_bytes: int | None) -> JsonDict:
    """A phase of the last step, and of the ``first`` where it was another."""
    return {
        "name": phase.name,
        "resident_bytes": phase.resident_bytes,
        "peak_bytes": phase.peak_bytes,
        "reserved_bytes": reserved_bytes,
        "components": phase.components.as_json(),
        "first_step": None
        if first is None
        else {"resident_bytes": first.resident_bytes, "peak_bytes": first.peak_bytes},
        "host_resident_bytes": phase.host_resident_bytes,
        "host_peak_bytes": phase.host_peak_bytes,
        "flops": phase.flops,
        "seconds": phase.seconds,
    }


def _phase_json(phase: ComparedPhase) -> JsonDict:
    rehearsed, estimated = phase.rehearsed, phase.estimated
    return {
        **measured_json(rehearsed, phase.first_step, phase.reserved_bytes),
        "estimated_resident_bytes": None if estimated is None else estimated.resident.total,
        "estimated_peak_bytes": None if estimated is None else estimated.peak.total,
        "relative_error": phase.peak_error,
        "estimated_components": None if estimated is None else estimated.peak.as_json(),
        "relative_error_by_component": None
        if estimated is None
        else {
            name: relative_error(num_bytes, getattr(rehearsed.components, name))
            for name, num_bytes in estimated.peak.as_json().items()
        },
    }


def print_rehearsal(found: Comparison, notes: Sequence[str] = ()) -> None:
    """Print everything that a rehearsal found to standard output; ``notes`` are about the hardware."""
    every = [*found.estimate.workload.model.notes, *found.estimate.cautions, *notes]
    say(heading(found.estimate), rehearsed_line(found), verdict_line(found))
    say(*caveat_lines(every), f"setup: {setup_text(found.estimate)}")
    click.echo()
    print_table(phases_table(found))
    click.echo()
    print_table(components_table(found))
    click.echo()
    print_table(largest_table(found))
    click.echo()
    if found.rehearsed.step_collectives:
        print_table(collectives_table(found))
        click.echo()
    print_over_time(found)
    click.echo()
    say(*remaining_lines(found), *(f"note: {note}" for note in footnotes(notes)))


def rehearsed_line(found: Comparison) -> str:
    return rehearsed_text(found.rehearsed)


def rehearsed_text(rehearsed: Rehearsed) -> str:
    """Which rank was rehearsed, how much of it ran, and for how long."""
    return (
        f"rehearsed: rank {rehearsed.rank} of {rehearsed.num_ranks}, {counted(rehearsed.num_steps, 'step')}, "
        f"{counted(rehearsed.num_operations, 'operation')} on tensors without data, "
        f"in {duration_text(rehearsed.seconds)}"
    )


def verdict_line(found: Comparison) -> str:
    """Rehearsed and estimated device bytes, and what is left."""
    device = found.device
    word, colour = VERDICTS[found.verdict]
    free = f"{gib_text(abs(device.free_bytes))} {'free' if device.free_bytes >= 0 else 'short'}"
    if not device.runs and device.free_bytes >= 0:
        free += "; torch's allocator runs out although the tensors would fit: try --expandable-segments"
    return (
        f"{click.style(word + without_text(found.estimate), fg=colour, bold=True)}: {gib_text(device.device_bytes)} of "
        f"{gib_text(device.usable_bytes)} usable on each GPU as rehearsed, "
        f"{gib_text(found.estimate.device.device_bytes)} as estimated; {free}"
    )


def confirmation_lines(found: Comparison) -> list[str]:
    """What a rehearsal says of a plan that was found, in two lines."""
    allocated, estimated = gib_text(found.peak_allocated_bytes), gib_text(found.estimate.peak_allocated_bytes)
    error = error_text(found.relative_error)
    return [
        f"{rehearsed_line(found)}: {allocated} allocated, {estimated} as estimated ({error})",
        verdict_line(found),
    ]


def error_text(error: float | None) -> str:
    """An error as a percentage with its sign.

    >>> error_text(0.0123), error_text(-0.00001), error_text(None)
    ('+1.23%', '0.00%', '-')
    """
    if error is None:
        return UNKNOWN
    text = f"{100 * error:+.2f}%"
    return text[1:] if text[1:] == "0.00%" else text


def phases_table(found: Comparison) -> Table:
    """Each phase beside its estimate."""
    titles = ("phase", "after", "peak", "estimated", ERROR, "first step", "reserved", "TFLOP")
    rows = [_phase_row(phase) for phase in found.phases]
    left_out = ("TFLOP", "first step", "reserved", "after")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), least_first=left_out)


def _phase_row(phase: ComparedPhase) -> tuple[str, ...]:
    rehearsed = phase.rehearsed
    return (
        phase.name,
        gib_text(rehearsed.resident_bytes),
        gib_text(rehearsed.peak_bytes),
        UNKNOWN if phase.estimated is None else gib_text(phase.estimated.peak.total),
        error_text(phase.peak_error),
        UNKNOWN if phase.first_step is None else gib_text(phase.first_step.peak_bytes),
        UNKNOWN if phase.reserved_bytes is None else gib_text(phase.reserved_bytes),
        f"{rehearsed.flops / 1e12:.2f}" if rehearsed.flops else UNKNOWN,
    )


def components_table(found: Comparison) -> Table:
    """The peak by component, and the device, beside the estimate's."""
    peak, estimated = found.peak, found.estimated_peak.as_json()
    step = f" of step {peak.step}" if peak.step else ""
    rows = [
        (
            name.replace("_", " "),
            gib_text(num_bytes),
            gib_text(estimated[name]),
            _error(estimated[name], num_bytes) if num_bytes >= LEAST_FRACTION * peak.peak_bytes else UNKNOWN,
        )
        for name, num_bytes in peak.components.as_json().items()
        if num_bytes or estimated[name]
    ]
    total = found.estimated_peak.total
    rows.append((f"allocated, at the peak of {peak.name}{step}", *_pair(found.peak_allocated_bytes, total)))
    device, planned = found.device, found.estimate.device
    reserved = _pair(found.reserved_with_room_bytes, found.estimate.reserved_with_room_bytes)
    rows.append(("reserved, allocator's unused blocks included", *reserved))
    in_all = device_title(is_on_cpu=found.is_on_cpu, expands=found.has_expandable_segments)
    rows.append((in_all, *_pair(device.device_bytes, planned.device_bytes)))
    titles = ("on each GPU", "rehearsed", "estimated", ERROR)
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]), cut_columns=frozenset(titles[:1]))


def _pair(rehearsed: int, estimated: int) -> tuple[str, str, str]:
    return gib_text(rehearsed), gib_text(estimated), _error(estimated, rehearsed)


def _error(estimated: int, rehearsed: int) -> str:
    return error_text(relative_error(estimated, rehearsed))


def largest_table(found: RehearsedDevice) -> Table:
    """The largest storages at the peak."""
    rows = [
        (gib_text(one.num_bytes), one.component.replace("_", " "), one.maker or UNKNOWN, shape_text(one), one.phase)
        for one in found.largest
        if one.num_bytes >= LEAST_FRACTION * found.peak_allocated_bytes
    ]
    titles = ("largest at the peak", "what", "made by", "tensor", "in")
    return Table(
        titles=titles,
        rows=rows,
        number_columns=frozenset(titles[:1]),
        least_first=("in", "tensor"),
        cut_columns=frozenset(("made by", "tensor")),
    )


def shape_text(one: Allocation) -> str:
    """``bfloat16[2, 1024]``."""
    return f"{one.dtype}{list(one.shape)}" if one.dtype else UNKNOWN


def collectives_table(found: RehearsedDevice) -> Table:
    """Collectives of a step by kind."""
    sent = collectives(found)
    rows = [(kind, f"{one['count']:,}", gib_text(one["bytes"])) for kind, one in sent["by_kind"].items()]
    rows.append(("in all", f"{sum(one['count'] for one in sent['by_kind'].values()):,}", gib_text(sent["per_step"])))
    titles = ("collectives of a step", "number", "bytes")
    return Table(titles=titles, rows=rows, number_columns=frozenset(titles[1:]))


def print_over_time(found: RehearsedDevice) -> None:
    """Memory over time as a line of blocks."""
    totals, width = found.live_bytes, picture_width()
    if totals:
        say(f"memory over time, in order of allocations; the highest is {gib_text(max(totals))}:")
        click.echo(sparkline(totals, width, levels=BLOCKS if can_show(BLOCKS) else PLAIN))
        for line in phase_lines(found.rehearsed.marks, len(totals), width):
            click.echo(line)


def remaining_lines(found: Comparison) -> Iterator[str]:
    """What no table says."""
    rehearsed, estimate = found.rehearsed, found.estimate
    flops = f"{rehearsed.flops_per_step / 1e12:.4g}"
    yield f"a step of this rank: {flops} TFLOP as rehearsed, {estimate.flops_per_step / 1e12:.4g} as estimated"
    if found.timed is not None and estimate.step_seconds is not None:
        seconds = duration_text(found.timed.expected.total)
        yield f"  by the roofline: {seconds} as rehearsed, {duration_text(estimate.step_seconds)} as estimated"
    yield from host_lines(rehearsed, found.not_rehearsed)
    if estimate.host_is_short and found.verdict is not Verdict.DOES_NOT_FIT:
        yield "note: the host's memory is too small, as vlmplan estimate shows; a rehearsal looks at the GPU"


def host_lines(rehearsed: Rehearsed, missing: Iterable[UnrehearsedBytes]) -> Iterator[str]:
    """Memory of the host, and what of the GPU's no rehearsal shows."""
    saved = rehearsed.checkpoint_bytes
    checkpoint = "" if saved is None else f"; its part of a checkpoint is {gib_text(saved)}"
    yield f"host memory of this rank's tensors: {gib_text(rehearsed.host_peak_bytes)} at most{checkpoint}"
    for one in missing:
        size = "of unknown size, not added" if one.num_bytes is None else f"{gib_text(one.num_bytes)}, added"
        yield f"not rehearsed: {one.what}: {size}"
