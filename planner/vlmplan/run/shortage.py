"""What a rank writes down when memory runs out, for ``vlmplan launch`` to read: one small JSON file per rank.

Schema ``vlmplan.out_of_memory/1``. The launcher removes those of earlier attempts before it starts a run.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vlmplan.errors import VlmplanError
from vlmplan.files import write_atomically
from vlmplan.files.json_reader import JsonObject, read_json_object
from vlmplan.units import gib_text

SCHEMA = "vlmplan.out_of_memory/1"
FILES = "out_of_memory-*.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Memory of one rank at the moment when it could get no more. None is what is not known there.

    ``phase`` is None between the phases of a plan, as in evaluation; ``step`` counts optimizer steps from 1, 0 before
    the first. Peaks are those since the phase began. ``free_bytes`` and ``total_bytes`` are the device's, as its driver
    counts them for all processes; on a CPU what the system still lets this process have, and its share of the RAM.
    """

    rank: int
    phase: str | None
    step: int
    is_on_host: bool
    """Whether it was the host's memory that ran out: always so on CPU ranks."""
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    planned_bytes: int | None = None
    """The peak of the phase by the plan."""

    @property
    def needed_bytes(self) -> int | None:
        """The least that tensors would have taken, had the last one been given."""
        if self.allocated_bytes is None:
            return None
        return max(self.allocated_bytes + (self.requested_bytes or 0), self.peak_allocated_bytes or 0)

    @property
    def obtainable_bytes(self) -> int | None:
        """What the allocator could have had in all: what it held, and what was free.

        Contexts, message buffers and other processes have their part already.
        """
        held = self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes
        return None if held is None or self.free_bytes is None else held + self.free_bytes

    @property
    def place(self) -> str:
        """``backward of step 3``; ``load`` before the first step."""
        phase = self.phase or "between the phases of the plan"
        return f"{phase} of step {self.step}" if self.phase and self.step else phase

    def sentence(self) -> str:
        """What happened, planned against actual."""
        words = "host memory" if self.is_on_host else "memory"
        text = f"{words} ran out {'in ' if self.phase else ''}{self.place} on rank {self.rank}: "
        text += "" if self.planned_bytes is None else f"planned {gib_text(self.planned_bytes)}, "
        actual = "unknown" if self.allocated_bytes is None else gib_text(self.allocated_bytes)
        text += f"actual {actual}"
        if self.requested_bytes is not None:
            text += f" and {gib_text(self.requested_bytes)} more asked for"
        if self.free_bytes is not None and self.total_bytes is not None:
            text += f"; {gib_text(self.free_bytes)} were free of {gib_text(self.total_bytes)}"
        return text


def write_shortage(shortage: Shortage, folder: Path) -> Path:
    """Write the file of a rank, whole or not at all."""
    path = folder / FILES.replace("*", str(shortage.rank))
    values = {"schema": SCHEMA} | {item.name: getattr(shortage, item.name) for item in fields(Shortage)}
    write_atomically(path, json.dumps(values, indent=1) + "\n", force=True)
    return path


def read_shortages(folder: Path) -> list[Shortage]:
    """The shortages of every rank that wrote a sound one, by rank."""
    found: list[Shortage] = []
    for path in folder.glob(FILES):
        with suppress(VlmplanError):
            found.append(shortage_from_json(read_json_object(path), source=str(path)))
    return sorted(found, key=lambda shortage: shortage.rank)


def remove_shortages(folder: Path) -> None:
    """Remove what an earlier attempt left, so that it is not taken for this one's."""
    for path in folder.glob(FILES):
        path.unlink(missing_ok=True)


def shortage_from_json(values: Any, *, source: str) -> Shortage:
    """The inverse of what ``write_shortage`` writes. Raises InputError for anything else."""
    section = JsonObject(values, source=source)
    section.choice("schema", (SCHEMA,))
    counts = [item.name for item in fields(Shortage) if item.name.endswith("_bytes")]
    shortage = Shortage(
        rank=section.count("rank"),
        phase=section.maybe("phase", section.text),
        step=section.count("step"),
        is_on_host=section.flag("is_on_host"),
        **{name: section.maybe(name, section.count) for name in counts},
    )
    section.close()
    return shortage
