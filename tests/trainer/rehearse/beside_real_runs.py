"""Rehearsed bytes beside those of the same trainer on real CPU tensors, of every phase, as a table.

PYTHONPATH=tests/trainer python tests/trainer/rehearse/beside_real_runs.py FOLDER [WORD ...]

With words, only runs that have all of them in their name: method-stage, and what else is unusual. All together take
about five minutes. Weights are random on both sides: threads read them from files, which no dispatch mode sees.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from cpu_adam_build import can_compile, cheap_build
from rehearsals import NUM_STEPS, many_rehearsed, really_run, request_for
from trainer_runs import planned

from vlmplan.plan import Plan
from vlmplan_trainer.models.tiny import write_tiny_model

PHASES = ("load", "init", "forward", "backward", "step", "save")
WORDS = (
    "--dummy-data",
    "32",
    "--random-weights",
    "--max-steps",
    str(NUM_STEPS),
    "--measured-steps",
    str(NUM_STEPS + 1),
)
"""One more, so that the checkpoint is measured too."""
SHAPE = {"seq_len": 256, "image_size": "112x112", "images_per_sample": 1, "micro_batch": 2, "num_samples": 32}
METHODS = ("full", "lora", "qlora")
STAGES: Mapping[int, tuple[str, ...]] = {1: ("none",), 2: ("none", "0", "1", "2", "3")}
"""By the number of ranks."""
UNUSUAL: Mapping[str, dict[str, Any]] = {
    "accumulation": {"grad_accum": 2},
    "unchecked": {"activation_checkpointing": False},
    "whole_loss": {"loss": "full"},
    "offload": {"offload_optimizer": "cpu"},
    "muon": {"optimizer": "muon"},
    "torchao8": {"optimizer": "torchao-adamw-8bit"},
    "torchao4": {"optimizer": "torchao-adamw-4bit"},
}
WITH_UNUSUAL = ("full-none", "full-2", "full-3", "lora-none")


def write_model(folder: Path) -> Path:
    """Large enough that weights, activations and logits are what counts."""
    return write_tiny_model(folder / "qwen2_vl", "qwen2_vl", hidden_size=128, vocab_size=2048)


def plan_named(model: Path, name: str, *, num_ranks: int) -> Plan:
    method, stage, *unusual = name.split("-")
    more = UNUSUAL[unusual[0]] if unusual else {}
    return planned(model, num_ranks=num_ranks, **{**SHAPE, "zero_stage": stage, "method": method, **more})


def names(num_ranks: int) -> list[str]:
    """Every method with every stage but QLoRA with stage 3, which is refused; then what is less usual."""
    found = []
    for stage in STAGES[num_ranks]:
        for method in METHODS:
            name = f"{method}-{stage}"
            if name != "qlora-3":
                found.append(name)
            if name in WITH_UNUSUAL:
                found += [
                    f"{name}-{word}"
                    for word in UNUSUAL
                    if (not word.startswith("torchao") and word != "offload") or (stage != "none" and can_compile())
                ]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One phase of one step of one rank. ``kind``: its highest point (peak) or what is left at its end (resident)."""

    run: str
    rank: int
    phase: str
    step: int
    kind: str
    real_bytes: int
    rehearsed_bytes: int

    @property
    def error(self) -> float:
        return self.rehearsed_bytes / self.real_bytes - 1


def compared(
    plans: Mapping[str, Plan], folder: Path, *, num_ranks: int, asked: Sequence[tuple[str, int]] | None = None
) -> list[Line]:
    """Every phase of every run on every rank, or on the ranks that are ``asked`` (run, rank)."""
    environment = None
    if any(name.endswith("offload") for name in plans):
        environment = cheap_build(Path(mkdtemp(dir=folder)))
    real = really_run(plans, folder, num_ranks=num_ranks, words=WORDS, environment=environment)
    asked = asked or [(name, rank) for rank in range(num_ranks) for name in plans]
    answers = many_rehearsed([request_for(plans[name], rank=rank) for name, rank in asked])
    found: list[Line] = []
    for (name, rank), answer in zip(asked, answers, strict=True):
        assert "error" not in answer, answer
        found += lines(name, rank, real[rank][name], answer["phases"])
    return found


def lines(run: str, rank: int, real: list[dict[str, Any]], rehearsed: list[dict[str, Any]]) -> Iterator[Line]:
    found = {(phase["name"], phase["step"]): phase for phase in rehearsed}
    assert found.keys() == {(phase["name"], phase["step"]) for phase in real}
    for phase in real:
        name, step = phase["name"], phase["step"]
        for kind in ("peak", "resident"):
            here, there = phase[f"{kind}_bytes"], found[name, step][f"{kind}_bytes"]
            yield Line(run=run, rank=rank, phase=name, step=step, kind=kind, real_bytes=here, rehearsed_bytes=there)


def row(run: str, found: list[Line]) -> str:
    """Real peak and largest error, of peaks and of what is left, of all steps and ranks."""
    cells = []
    for phase in PHASES:
        its = [line for line in found if line.run == run and line.phase == phase]
        highest = max(line.real_bytes for line in its if line.kind == "peak")
        cells.append(f"{highest / 2**20:7.3f} {max((line.error for line in its), key=abs):+8.3%}")
    return f"{run:<20} " + "  ".join(cells)


def main(folder: str, *words: str) -> None:
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    model = write_model(root)
    print(f"{'MiB, largest error':<20} " + "  ".join(f"{phase:>16}" for phase in PHASES))
    for num_ranks in STAGES:
        wanted = [name for name in names(num_ranks) if set(words) <= set(name.split("-"))]
        if wanted:
            plans = {name: plan_named(model, name, num_ranks=num_ranks) for name in wanted}
            found = compared(plans, root, num_ranks=num_ranks)
            for name in wanted:
                print(row(name, found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
