"""What is alive at peaks that are only known afterwards: those of load, init, evaluation, save and the first step."""

from collections.abc import Iterable, Sequence

Key = tuple[str, int]
"""Phase and step."""
Live = dict[int, int]
"""Bytes of storages by number."""


def live_at_peaks(
    events: Sequence[tuple[int, int]], marks: Iterable[Sequence], wanted: Iterable[Key]
) -> dict[Key, Live]:
    """The live storages at the highest moment of each wanted phase. ``marks``: (first event, name, step, last + 1)."""
    places = _peak_places(events, marks)
    keys_at: dict[int, list[Key]] = {}
    for key in wanted:
        if key in places:
            keys_at.setdefault(places[key], []).append(key)
    found: dict[Key, Live] = {}
    live: Live = {}
    for index in range(len(events) + 1):
        for key in keys_at.get(index, ()):
            found[key] = dict(live)
        if index < len(events):
            number, num_bytes = events[index]
            if num_bytes > 0:
                live[number] = num_bytes
            elif num_bytes < 0:
                del live[number]
    return found


def _peak_places(events: Sequence[tuple[int, int]], marks: Iterable[Sequence]) -> dict[Key, int]:
    """How many events happened before the highest moment of each phase; phases may come several times in a step."""
    places: dict[Key, int] = {}
    peaks: dict[Key, int] = {}
    total = reached = 0
    for begin, name, step, end in marks:
        total += sum(num_bytes for _, num_bytes in events[reached:begin])
        key = (name, step)
        for index in range(begin, end + 1):
            if total > peaks.get(key, -1):
                peaks[key], places[key] = total, index
            if index < end:
                total += events[index][1]
        reached = end
    return places
