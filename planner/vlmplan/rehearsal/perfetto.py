"""A rehearsal as a trace for chrome://tracing or ui.perfetto.dev: what is allocated and reserved, and the phases.

A rehearsal has no clock of the device: time is the number of allocations and releases, a microsecond each.
"""

import json
from collections.abc import Iterator, Sequence

from vlmplan.files.json_reader import JsonDict
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice

PHASES_TRACK = 1


def trace_text(found: RehearsedDevice) -> str:
    """The file."""
    return json.dumps({"traceEvents": list(_trace_events(found)), "displayTimeUnit": "ms"}) + "\n"


def _trace_events(found: RehearsedDevice) -> Iterator[JsonDict]:
    rank = found.rehearsed.rank
    names = {"process_name": f"rank {rank} of {found.rehearsed.num_ranks}", "thread_name": "phases"}
    for kind, name in names.items():
        yield {"name": kind, "ph": "M", "ts": 0, "pid": rank, "tid": PHASES_TRACK, "args": {"name": name}}
    slices = [
        (mark.begin, 0, _slice(rank, mark.name, mark.step, mark.begin, mark.end)) for mark in found.rehearsed.marks
    ]
    replay = found.replay
    tracks: dict[str, Sequence[int]] = {"allocated": found.live_bytes}
    if replay is not None:
        tracks["reserved"] = replay.reserved_bytes
    counters = [
        (time, place, {"name": name, "ph": "C", "ts": time, "pid": rank, "args": {"bytes": num_bytes}})
        for place, (name, totals) in enumerate(tracks.items(), start=1)
        for time, num_bytes in _changes(totals)
    ]
    for _, _, event in sorted((*slices, *counters), key=lambda entry: entry[:2]):
        yield event


def _slice(rank: int, name: str, step: int, begin: int, end: int) -> JsonDict:
    arguments = {"step": step} if step else {}
    place = {"ts": begin, "dur": end - begin, "pid": rank, "tid": PHASES_TRACK}
    return {"name": name, "ph": "X", **place, "args": arguments}


def _changes(totals: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(time, bytes) where they change; an event has happened when its microsecond is over."""
    before = None
    for index, total in enumerate(totals):
        if total != before:
            yield index + 1, total
            before = total
