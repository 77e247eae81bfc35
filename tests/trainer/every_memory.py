"""Memory of the tiny Llama under every combination of stage, precision, offload, optimizer, method and accumulation:
planned beside measured, the largest differences first. Takes about ten minutes, or less with words that have to be in
the name of a run:

python tests/trainer/every_memory.py FOLDER [WORD ...]

A run is called model-method-stage-precision-optimizer-offload-micro batches. Planned is the timeline of the fullest
rank as a dispatch mode sees it (``tape_probe``). What is offloaded lies in the same memory on CPU ranks, so what the
plan has of it on the host for a rank is added (``host_share``).

What differs although the engine is as planned: attention in fp32, for which the CPU has a flash kernel and a GPU has
not; fp16 at stage 0, whose first steps overflow and are skipped; the inside of ``isinf`` in fp16 at stage 3, which no
dispatch mode sees; and what a reference cycle holds until Python collects it, which in a run by itself is earlier.
Where the last reduction of stage 3 is the highest moment, gloo's reduce-scatter has a copy of its input that NCCL's has
not.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer_runs import Outcome, planned, train_all

from planned import rehearsed_timeline
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines.parameters import ParameterTable
from vlmplan.errors import InputError
from vlmplan.memory.host import PROCESS_BYTES, host_memory
from vlmplan.models import find_model
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Offload
from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "16", "--learning-rate", "1e-3", "--max-steps", "3")
PHASES = ("init", "forward", "backward", "step")
STAGES = ("none", "0", "1", "2", "3")
PRECISIONS = ("bf16", "fp16", "fp32", "bf16-pure")
OFFLOADS = {
    "gpu": {},
    "optimizer": {"offload_optimizer": "cpu"},
    "params": {"offload_params": "cpu"},
    "both": {"offload_optimizer": "cpu", "offload_params": "cpu"},
}
OPTIMIZERS = ("adamw", "adamw-8bit", "sgd", "adafactor")
METHODS = ("full", "lora")
ACCUMULATIONS = (1, 2)
RUNS_TOGETHER = 80
"""In one process each rank, so that a mistake does not cost all of them."""


def plans(model: Path, words: list[str]) -> Iterator[tuple[str, Plan]]:
    """Every combination that the rules allow."""
    for method, stage, precision, optimizer, offload, accum in itertools.product(
        METHODS, STAGES, PRECISIONS, OPTIMIZERS, OFFLOADS, ACCUMULATIONS
    ):
        name = f"llama-{method}-{stage}-{precision}-{optimizer}-{offload}-{accum}"
        num_ranks = 1 if stage == "none" else 2
        options: dict[str, Any] = {"zero_stage": stage, "method": method, "precision": precision, "num_samples": 16}
        options |= {"optimizer": optimizer, "grad_accum": accum, "global_batch": 2 * accum * num_ranks}
        if all(f"-{word}-" in f"-{name}-" for word in words):
            try:
                yield name, planned(model, num_ranks=num_ranks, micro_batch=2, **options, **OFFLOADS[offload])
            except InputError:
                continue


def differences(model: Path, name: str, plan: Plan, outcome: Outcome) -> Iterator[tuple[float, str]]:
    """(error, line) of each phase."""
    measured = {line["name"]: line["measured"] for line in outcome.report["planned_and_measured"]}
    timeline = rehearsed_timeline(
        find_model(str(model)),
        plan.recipe,
        num_ranks=plan.hardware.num_gpus,
        rank=None,
        seq_len=plan.workload.seq_len,
        image_side=0,
        accumulates_in_place=False,
        fuses_dropout=False,
    )
    host, host_at_start = host_share(model, plan)
    for phase in timeline.phases:
        if phase.name in PHASES:
            here, found = phase.peak.total + host, measured[f"{phase.name}, peak"]
            if phase.name == "init" and plan.recipe.zero_stage == 3:
                here = phase.peak.total + host_at_start
            elif phase.name == "init":
                here = max(phase.peak.total, phase.resident.total + host_at_start)
            error = here / found - 1
            yield error, f"{name:<44} {phase.name:<8} {here:>10,} {found:>10,} {here - found:>9,} {error:+7.1%}"


def host_share(model: Path, plan: Plan) -> tuple[int, int]:
    """What one rank has on the host by the plan, and the part of it that is there before the first step.

    Without the two moments and the gradients of earlier micro batches. Stages 1 and 2 make it when init's highest
    moment on the device, the flattening, is over.
    """
    recipe, num_ranks = plan.recipe, plan.hardware.num_gpus
    table = ParameterTable(prepared_model(find_model(str(model)).config, recipe))
    steady, first = (
        host_memory(table, changed, num_ranks=num_ranks, ranks_per_node=1).steady_bytes - PROCESS_BYTES
        for changed in (recipe, recipe.with_changes(grad_accum=1))
    )
    moments = 2 * recipe.master_dtype.num_bytes * -(-table.num_trained // num_ranks)
    return steady, first - (0 if recipe.offload_optimizer is Offload.NONE else moments)


def main(folder: str, *words: str) -> None:
    root = Path(folder)
    model = write_tiny_model(root / "llama", "llama") if not (root / "llama").exists() else root / "llama"
    found: list[tuple[float, str]] = []
    by_ranks: dict[int, dict[str, Plan]] = {1: {}, 2: {}}
    for name, plan in plans(model, list(words)):
        by_ranks[plan.hardware.num_gpus][name] = plan
    for num_ranks, chosen in by_ranks.items():
        names = sorted(chosen)
        if not names:
            continue
        for start in range(0, len(names), RUNS_TOGETHER):
            place = root / f"ranks{num_ranks}-{start}"
            place.mkdir(exist_ok=True)
            jobs = {name: (chosen[name], WORDS) for name in names[start : start + RUNS_TOGETHER]}
            outcomes = train_all(jobs, place, num_ranks=num_ranks, environment={"PRETEND_FP16": "1"})
            for name, outcome in outcomes.items():
                if outcome.code != 0:
                    print(f"{name:<44} failed: {str(outcome.code).strip().splitlines()[-1][:200]}")
                    continue
                found += differences(model, name, chosen[name], outcome)
    for _, line in sorted(found, key=lambda item: -abs(item[0])):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
