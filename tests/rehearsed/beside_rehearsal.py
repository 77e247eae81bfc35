"""An estimate under ZeRO-3 beside a rehearsal of the same plan: bytes of its phases, and collectives of a step."""

import json
import sys

import pytest
from rehearsed_report import steady_phases

from vlmplan.communication.volume import by_kind
from vlmplan.estimation import Estimate
from vlmplan.memory.overhead import workspace_bytes
from vlmplan.plan import plan_from_estimate
from vlmplan.rehearsal.process import answer_of
from vlmplan.rehearsal.request import request_json

PHASES = ("init", "forward", "backward", "step", "evaluation", "save")


def assert_as_rehearsed(found: Estimate, within: float = 0.002) -> None:
    """Bytes of every phase are within so much, and those that are sent the same. Peaks of forward and backward are
    those of the step that takes most."""
    pytest.importorskip("deepspeed")
    command = [sys.executable, "-m", "vlmplan_trainer.rehearse"]
    request = json.dumps(request_json(plan_from_estimate(found), found, rank=0))
    answer = answer_of(command, request, lambda phase: None)
    assert "error" not in answer, answer
    phases = {phase.name: phase for phase in found.timeline.phases}
    for name, phase in steady_phases(answer["phases"]).items():
        if name not in PHASES:
            continue
        workspaces = 0 if name == "init" else workspace_bytes(found.cluster.node.gpu)
        steps = [one["peak_bytes"] for one in answer["phases"] if one["name"] == name]
        peak_bytes = max(steps) if name in ("forward", "backward") else phase["peak_bytes"]
        assert phases[name].peak.total - workspaces == pytest.approx(peak_bytes, rel=within), name
        assert phases[name].resident.total - workspaces == pytest.approx(phase["resident_bytes"], rel=within), name
    counted = by_kind(found.collectives)
    for kind in ("allgather_base", "reduce_scatter_base"):
        seen = [one for one in answer["collectives"] if (one["step"], one["kind"]) == (answer["num_steps"], kind)]
        assert counted[kind].num_bytes == sum(one["num_bytes"] for one in seen), kind
