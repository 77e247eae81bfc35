"""The events of a rehearsal as a page has them: every allocation and release with what it was for, in few bytes.

An event is one number in a stream of variable-length numbers (seven bits a byte, the lowest first, as in LEB128): 0 for
a cache that is emptied, an odd one ``2 * sort + 1`` for a storage of that sort, an even one ``2 * back`` for the
release of the storage that came ``back`` allocations before. Storages of one kind and size are one sort. Layers are
alike, so the stream repeats itself, and deflate makes little of it; a browser unpacks it with its own
DecompressionStream.
"""

import base64
import zlib
from collections.abc import Iterable, Sequence

from vlmplan.files.json_reader import JsonDict
from vlmplan.rehearsal.moments import NAMES, WORKSPACES
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
from vlmplan.rehearsal.reserved import workspace_place
from vlmplan.rehearsal.result import Origin

LEVEL = 9
"""Of deflate: the smallest."""


def packed(found: RehearsedDevice) -> JsonDict:
    """All events of the rehearsal, its phases, what the allocator reserved, and the card's limit."""
    rehearsed, device = found.rehearsed, found.device
    texts: dict[str, int] = {}
    kinds: dict[Origin, int] = {}
    sorts: dict[tuple[int, int], int] = {}
    made: dict[int, int] = {}
    numbers: list[int] = []
    for storage, num_bytes in rehearsed.events:
        if num_bytes > 0:
            kind = kinds.setdefault(rehearsed.origins[storage], len(kinds))
            numbers.append(2 * sorts.setdefault((kind, num_bytes), len(sorts)) + 1)
            made[storage] = len(made)
        elif num_bytes < 0:
            numbers.append(2 * (len(made) - made[storage]))
        else:
            numbers.append(0)  # or a storage without bytes, which changes nothing either
    return {
        "components": NAMES,
        "kinds": [_kind(origin, texts) for origin in kinds],
        "texts": list(texts),
        "sorts": [number for sort in sorts for number in sort],
        "num_events": len(numbers),
        "events": _stream(numbers),
        "reserved": [] if found.replay is None else _changes(found.replay.reserved_bytes),
        "marks": [[mark.begin, mark.end, mark.name, mark.step] for mark in rehearsed.marks],
        "workspaces": [workspace_place(rehearsed), WORKSPACES, found.workspace_bytes],
        "beyond_bytes": device.overhead_bytes,
        "usable_bytes": device.usable_bytes,
    }


def _kind(origin: Origin, texts: dict[str, int]) -> list[int]:
    """An origin as the places of its texts: component, maker, operation, tensor, phase."""
    tensor = f"{origin.dtype}{list(origin.shape)}" if origin.dtype else ""
    shown = (origin.maker, origin.operation, tensor, origin.phase)
    return [NAMES.index(origin.component), *(texts.setdefault(text, len(texts)) for text in shown)]


def _changes(totals: Sequence[int]) -> list[int]:
    """Event and bytes, event and bytes, wherever the total changes."""
    found: list[int] = []
    before = 0
    for index, total in enumerate(totals):
        if total != before:
            found += (index, total)
            before = total
    return found


def _stream(numbers: Iterable[int]) -> str:
    """Variable-length numbers, deflated, in base64."""
    content = bytearray()
    for number in numbers:
        while number > 0x7F:
            content.append(number & 0x7F | 0x80)
            number >>= 7
        content.append(number)
    return base64.b64encode(zlib.compress(bytes(content), LEVEL)).decode("ascii")
