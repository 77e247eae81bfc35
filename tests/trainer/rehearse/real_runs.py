"""Several runs on real CPU tensors in the same processes, with the bytes of every phase of every step of every rank.

Started on every rank with a JSON list of {name, plan, folder, words}; writes a JSON file for each rank,
{job: [{name, step, resident_bytes, peak_bytes}]}.
"""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

from gloo_messages import let_go_of_messages

from vlmplan_trainer import run
from vlmplan_trainer.measure import Meter, PhaseMemory
from vlmplan_trainer.options import parse_options
from vlmplan_trainer.rehearse.meter import collector_at_rest

ONCE = ("load", "init", "save")


class StepMeter(Meter):
    """The trainer's meter, which keeps the highest point of a phase over all steps, asked after every phase.

    What reference cycles hold goes when a phase begins, as in a rehearsal.
    """

    steps: list[tuple[str, int, PhaseMemory]]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.memory.pop(name, None)
        gc.collect()
        with collector_at_rest(), super().phase(name):
            yield
        if name in self.memory:
            StepMeter.steps.append((name, 0 if name in ONCE else self.step, self.memory[name]))


def main(jobs_file: str, results: str) -> None:
    from vlmplan.plan import read_plan

    run.Meter = StepMeter
    let_go_of_messages()
    gc.freeze()
    rank = os.environ.get("RANK", "0")
    answers = {}
    for job in json.loads(Path(jobs_file).read_text()):
        StepMeter.steps = []
        words = ["--plan", job["plan"], "--output-dir", job["folder"], *job["words"]]
        assert run.run(read_plan(Path(job["plan"])), parse_options(words)) == 0
        answers[job["name"]] = highest(StepMeter.steps)
    Path(f"{results}.{rank}").write_text(json.dumps(answers))


def highest(steps: list[tuple[str, int, PhaseMemory]]) -> list[dict[str, object]]:
    """One line for a phase of a step, which comes once for every micro batch."""
    found: dict[tuple[str, int], PhaseMemory] = {}
    for name, step, memory in steps:
        before = found.get((name, step), memory)
        found[name, step] = PhaseMemory(memory.resident_bytes, max(before.peak_bytes, memory.peak_bytes))
    return [
        {"name": name, "step": step, "resident_bytes": memory.resident_bytes, "peak_bytes": memory.peak_bytes}
        for (name, step), memory in found.items()
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
