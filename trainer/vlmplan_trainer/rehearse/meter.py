"""The trainer's meter on the ledger: every phase of every step by itself, and what is alive at the highest moment.

Steps from the second on are alike, so that the peak of one tells when to look in the next.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan.phase_names import EVALUATION, INIT, LOAD, SAVE
from vlmplan_trainer.measure import Meter, PhaseMemory
from vlmplan_trainer.rehearse.components import COMPONENTS, MODEL_PHASES, Owners
from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.ledger import Entry, Ledger
from vlmplan_trainer.rehearse.offline_peaks import live_at_peaks
from vlmplan_trainer.rehearse.work import Work

NUM_LARGEST = 10
OUTSIDE_STEPS = (LOAD, INIT, EVALUATION, SAVE)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """What reference cycles hold stays until this ends (under ZeRO-3 the head of a model that ties it), not until
    Python happens to look for them: equal plans have equal rehearsals, and no run has more."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class PhaseMeter(Meter):
    """``say`` is called with the name of every phase when it begins."""

    outside_steps: tuple[str, ...] = OUTSIDE_STEPS

    def __init__(self, ledger: Ledger, mode: Rehearsal, *, num_steps: int, say: Callable[[str], None]) -> None:
        super().__init__(torch.device("cpu"), num_steps=num_steps)
        self._ledger, self._rehearsal, self._num_steps, self._say = ledger, mode, num_steps, say
        self.owners: Owners | None = None
        self._phases: dict[tuple[str, int], dict[str, Any]] = {}
        self._work: dict[tuple[str, int], Work] = {}
        self._marks: list[list[Any]] = []
        """First event, name and step of each phase, and the event after its last."""
        self._known: dict[int, str] = {}
        """The component of each storage that was alive when somebody looked, or that is held by name at the end of a
        phase."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        key = (name, 0 if name in self.outside_steps else self.step)
        label = name if not key[1] else f"{name} of step {key[1]}"
        self._say(label)
        gc.collect()  # what reference cycles of the phase before hold
        self._ledger.phase, self._rehearsal.collectives.key = name, key
        self._ledger.is_in_phase = True
        self._rehearsal.work = self._work.setdefault((name, self.step), Work())
        self._ledger.restart_peaks()
        mark = [len(self._ledger.device.events), name, key[1]]
        self._marks.append(mark)
        self._watch(key)
        start, flops = time.perf_counter(), self._rehearsal.flops
        self.in_progress = name
        with collector_at_rest():
            yield
            self._ledger.is_in_phase = False
            self._ledger.watched_bytes = None
            mark.append(len(self._ledger.device.events))
            self._note(key, seconds=time.perf_counter() - start, flops=self._rehearsal.flops - flops)

    def _watch(self, key: tuple[str, int]) -> None:
        """Look, in the last step, when the peak of the step before is reached."""
        before = self._phases.get((key[0], key[1] - 1))
        if self.owners is None or before is None or key[1] != self._num_steps or "components" in before:
            return
        self._ledger.watched_bytes = before["peak_bytes"]
        self._ledger.snapshot = lambda: before.update(self._snapshot())

    def _note(self, key: tuple[str, int], *, seconds: float, flops: int) -> None:
        device, host = self._ledger.device, self._ledger.host
        entry = self._phases.setdefault(
            key, {"name": key[0], "step": key[1], "peak_bytes": 0, "host_peak_bytes": 0, "seconds": 0.0, "flops": 0}
        )
        entry["resident_bytes"], entry["host_resident_bytes"] = device.live_bytes, host.live_bytes
        entry["peak_bytes"] = max(entry["peak_bytes"], device.peak_bytes)
        entry["host_peak_bytes"] = max(entry["host_peak_bytes"], host.peak_bytes)
        is_again = key[0] == EVALUATION  # the one before is not added
        entry["seconds"] = seconds + (0.0 if is_again else entry["seconds"])
        entry["flops"] = flops + (0 if is_again else entry["flops"])
        self.memory[key[0]] = PhaseMemory(device.live_bytes, device.peak_bytes)
        if key[0] == LOAD:
            entries = self._ledger.entries
            self._known |= {number: "weights" for number, entry in entries.items() if entry.is_on_device}
        elif self.owners is not None:
            self._known |= self.owners.held()

    def _snapshot(self) -> dict[str, Any]:
        assert self.owners is not None
        components = self.owners.components()
        entries = self._ledger.entries
        self._known |= components
        return self._summary({number: entries[number].num_bytes for number in components}, "")

    def _summary(self, live: dict[int, int], phase: str) -> dict[str, Any]:
        """Bytes of the live storages by component, and the largest of them."""
        totals: dict[str, int] = dict.fromkeys(COMPONENTS, 0)
        for number, num_bytes in live.items():
            totals[self._component(number, phase)] += num_bytes
        lines = [self._line(number, live[number], phase) for number in self._largest(live)]
        return {"components": totals, "largest": lines}

    def _component(self, number: int, phase: str) -> str:
        """The component by name, else by what allocated the storage and when, which may be gone by now."""
        entry = self._ledger.made.get(number)
        if number in self._known or self.owners is None or entry is None:
            return self._known.get(number) or ("activations" if phase in MODEL_PHASES else "temporaries")
        return self.owners.guess(entry)

    @staticmethod
    def _largest(live: dict[int, int]) -> list[int]:
        return sorted(live, key=lambda number: -live[number])[:NUM_LARGEST]

    def _line(self, number: int, num_bytes: int, phase: str) -> dict[str, Any]:
        entry = self._ledger.made.get(number)
        named = entry if entry is not None and entry.shape else Entry(num_bytes, True, phase=phase)
        return {
            "num_bytes": num_bytes,
            "component": self._component(number, phase),
            "maker": named.maker,
            "operation": named.op,
            "shape": list(named.shape),
            "dtype": named.dtype,
            "phase": named.phase,
        }

    def as_json(self) -> dict[str, Any]:
        """Phases in order; traffic; every allocation (+) and release (-) of the device, where phases begin, and which
        storages were asked for on streams of their own."""
        events = self._ledger.device.events
        unwatched = [key for key, entry in self._phases.items() if "components" not in entry]
        for key, live in live_at_peaks(events, self._marks, unwatched).items():
            self._phases[key] |= self._summary(live, key[0])
        return {
            "phases": list(self._phases.values()),
            "collectives": self._rehearsal.collectives.as_json(),
            "work": [{"phase": name, "step": step, **one.as_json()} for (name, step), one in self._work.items()],
            "events": {"storages": [number for number, _ in events], "bytes": [size for _, size in events]},
            "marks": self._marks,
            "streams": [list(pair) for pair in self._ledger.device.streams.items()],
            "origins": self._origins(),
        }

    def _origins(self) -> dict[str, list[Any]]:
        """What every storage of the device was for and what made it: each kind once, and the kinds of storages."""
        kinds: dict[tuple[Any, ...], int] = {}
        made = self._ledger.made
        places: list[int] = []
        for number, entry in made.items():
            kind = (self._component(number, entry.phase), entry.maker, entry.op, entry.shape, entry.dtype, entry.phase)
            places.append(kinds.setdefault(kind, len(kinds)))
        names = ("component", "maker", "operation", "shape", "dtype", "phase")
        listed = [dict(zip(names, kind, strict=True)) for kind in kinds]
        return {"kinds": listed, "storages": list(made), "places": places}
