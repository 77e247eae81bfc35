"""A page's events, unpacked as its script does, are the rehearsal's, and its picture has the highest of them."""

import base64
import zlib
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.recorded_rehearsal import comparison, recorded
from vlmplan.rehearsal.moments import NAMES, highest_moments, live_components
from vlmplan.reports.packed_events import packed


def numbers_in(text: str) -> Iterator[int]:
    number = shift = 0
    for byte in zlib.decompress(base64.b64decode(text)):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0


def unpacked(found: dict[str, Any]) -> Iterator[tuple[int, int, str, str]]:
    """Of each event the storage's number among allocations, bytes, component and tensor; zeros for an emptied cache."""
    sorts: list[int] = []
    for number in numbers_in(found["events"]):
        if number == 0:
            yield (0, 0, "", "")
            continue
        if number % 2:
            sorts.append(number // 2)
        storage = len(sorts) - (0 if number % 2 else number // 2) - (1 if number % 2 else 0)
        kind, num_bytes = found["sorts"][2 * sorts[storage]], found["sorts"][2 * sorts[storage] + 1]
        component, _, _, tensor, _ = found["kinds"][kind]
        yield (storage, num_bytes if number % 2 else -num_bytes, found["components"][component], found["texts"][tensor])


def test_every_event_comes_back_with_its_component_and_tensor():
    rehearsed = recorded()
    places: dict[int, int] = {}
    events = list(unpacked(packed(comparison())))
    assert len(events) == len(rehearsed.events)
    for (place, num_bytes, component, tensor), (storage, wanted) in zip(events, rehearsed.events, strict=True):
        assert num_bytes == wanted
        if num_bytes:
            origin = rehearsed.origins[storage]
            assert places.setdefault(storage, place) == place
            assert component == origin.component
            assert tensor == (f"{origin.dtype}{list(origin.shape)}" if origin.dtype else "")


def test_events_take_a_few_bytes_each():
    assert len(packed(comparison())["events"]) < len(recorded().events)


def test_components_over_time_are_the_live_bytes():
    found = comparison()
    assert [sum(live) for live in live_components(found)] == found.live_bytes


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 400))
def test_the_highest_moment_of_a_rehearsal_is_in_a_picture_of_any_width(num_cells: int):
    found = comparison()
    moments = highest_moments(found, num_cells)
    assert len(moments) == min(num_cells, len(found.live_bytes))
    assert max(sum(live) for _, live in moments) == max(found.live_bytes)
    assert all(len(live) == len(NAMES) for _, live in moments)
    assert [event for event, _ in moments] == sorted({event for event, _ in moments})
