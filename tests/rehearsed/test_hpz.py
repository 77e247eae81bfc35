"""Second copies of weights (hpZ): bytes and messages of the formulas beside a rehearsal on two nodes of two GPUs."""

import json
import sys
from typing import Any

import pytest
from rehearsed_report import steady_phases

from planned import shortened
from recipe_cases import cluster
from vlmplan.communication import by_kind
from vlmplan.estimation import Estimate, estimate
from vlmplan.memory.allocator import LARGE_SEGMENT_BYTES
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.plan import plan_from_estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.rehearsal.process import answer_of
from vlmplan.rehearsal.request import request_json
from vlmplan.workload import Workload

SMALL = ZeroSettings(
    reduce_bucket_size=2_000_000,
    stage3_prefetch_bucket_size=1_000_000,
    stage3_max_live_parameters=8_000_000,
    stage3_max_reuse_distance=8_000_000,
    stage3_param_persistence_threshold=1_000,
    overlap_comm=True,
)
PHASES = ("init", "forward", "backward", "step", "evaluation", "save")


def estimated(method: Method, hpz: int, **changes: Any) -> Estimate:
    recipe = Recipe(method=method, zero_stage=3, hpz=hpz, grad_accum=2, zero=SMALL).with_changes(**changes)
    files = shortened("smollm2-135m", num_hidden_layers=4)
    return estimate(Workload(model=files, seq_len=128), recipe, cluster(2, num_nodes=2))


def rehearsed(found: Estimate) -> dict[str, Any]:
    command = [sys.executable, "-m", "vlmplan_trainer.rehearse"]
    request = json.dumps(request_json(plan_from_estimate(found), found, rank=0))
    answer = answer_of(command, request, lambda phase: None)
    assert "error" not in answer, answer
    return answer


@pytest.mark.sweep
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(
    "changes", [{}, {"grad_accum": 1}, {"evaluation": Evaluation(batch=4, samples=16)}], ids=["", "once", "evaluated"]
)
def test_estimate_and_messages_are_those_of_a_rehearsal(method: Method, changes: dict[str, Any]):
    pytest.importorskip("deepspeed")
    found = estimated(method, 2, **changes)
    answer = rehearsed(found)
    last = answer["num_steps"]
    phases = {phase.name: phase for phase in found.timeline.phases}
    for name, phase in steady_phases(answer["phases"]).items():
        if name not in PHASES:
            continue
        workspaces = 0 if name == "init" else workspace_bytes(found.cluster.node.gpu)
        assert phases[name].peak.total - workspaces == pytest.approx(phase["peak_bytes"], rel=0.002), name
        assert phases[name].resident.total - workspaces == pytest.approx(phase["resident_bytes"], rel=0.002), name
    counted = by_kind(found.collectives)
    for kind in ("allgather_base", "reduce_scatter_base"):
        seen = [one for one in answer["collectives"] if (one["step"], one["kind"]) == (last, kind)]
        assert counted[kind].num_bytes == sum(one["num_bytes"] for one in seen), kind


def test_second_copies_take_the_weights_shared_among_neighbours():
    weights = 2 * estimated(Method.FULL, 1).num_params
    tied_head = 2 * 49_152 * 576  # until the engine is made it has a partition of its own, and a copy of that
    without, with_copies = (estimated(Method.FULL, hpz) for hpz in (1, 2))
    for before, after in zip(without.timeline.phases, with_copies.timeline.phases, strict=True):
        twice = tied_head / 2 if after.name == "load" else 0
        kept = 0 if after.name in ("step", "save") else weights / 2 + twice
        assert after.resident.total - before.resident.total == pytest.approx(kept, rel=0.01)
        peak = 0 if after.name == "save" else weights / 2 + twice
        assert after.peak.total - before.peak.total == pytest.approx(peak, rel=0.01)


def test_what_torch_reserves_grows_by_the_copies():
    def reserved(hpz: int) -> int:
        found = estimated(Method.FULL, hpz)
        recipe = found.recipe.with_changes(expandable_segments=False)
        return estimate(found.workload, recipe, found.cluster).device.reserved_bytes

    copies = 2 * estimated(Method.FULL, 1).num_params // 2
    assert copies <= reserved(2) - reserved(1) <= copies + LARGE_SEGMENT_BYTES
