"""Memory over time by component: what is live after every event of a rehearsal, library workspaces included."""

from collections.abc import Iterator

from vlmplan.engines.components import Components
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
from vlmplan.rehearsal.reserved import workspace_place

NAMES = tuple(Components().as_json())
WORKSPACES = NAMES.index("temporaries")
"""What library workspaces count as."""


def live_components(found: RehearsedDevice) -> Iterator[list[int]]:
    """Bytes by component in the order of ``NAMES`` after each event; the same list, changed."""
    place_of = {name: place for place, name in enumerate(NAMES)}
    places = {storage: place_of[origin.component] for storage, origin in found.rehearsed.origins.items()}
    first, live = workspace_place(found.rehearsed), [0] * len(NAMES)
    for index, (storage, num_bytes) in enumerate(found.rehearsed.events):
        if index == first:
            live[WORKSPACES] += found.workspace_bytes
        if num_bytes:
            live[places[storage]] += num_bytes
        yield live


def highest_moments(found: RehearsedDevice, num_cells: int) -> list[tuple[int, list[int]]]:
    """The highest moment in each of ``num_cells`` equal stretches of events: how many events happened, and bytes by
    component. One for each event where there are fewer."""
    num_events = len(found.rehearsed.events)
    num_cells = min(num_cells, num_events)
    moments: list[tuple[int, list[int]]] = []
    reached, most = -1, -1
    for index, live in enumerate(live_components(found)):
        cell, total = index * num_cells // num_events, sum(live)
        if cell > reached:
            reached, most = cell, -1
            moments.append((index + 1, []))
        if total > most:
            most = total
            moments[-1] = (index + 1, list(live))
    return moments
