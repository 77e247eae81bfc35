"""Under ZeRO-1 and 2 each of two real ranks has the peaks of its own plan, and the planned rank is the highest of them.

Gradients are larger than the reduce bucket: when a rank has its share of them, and whether it drops those of which it
has none, is what ranks differ in.
"""

from typing import Any

import pytest
from beside_real_runs import WORDS
from rehearsals import NUM_STEPS, really_run
from trainer_runs import planned

from planned import rehearsed_timeline
from vlmplan.memory.timeline import Timeline
from vlmplan.models import find_model
from vlmplan.plan import Plan
from vlmplan_trainer.models.tiny import write_tiny_model

TOLERANCE = 0.0005
PHASES = ("init", "forward", "backward", "step")
HIGHEST = {
    # name: ZeRO stage, elements of the reduce bucket, overlap_comm, micro batches of a step, and the highest rank
    "stage 1": (1, 10_000, True, 1, 0),
    "stage 1, accumulated": (1, 70_000, True, 2, 1),
    "stage 1, after backward": (1, 10_000, False, 1, 0),
    "stage 2": (2, 10_000, False, 1, 0),
    "stage 2, accumulated": (2, 70_000, True, 2, 1),
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """Of a model with half of its weights in its embedding, which is tied to the head: the first rank's alone."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama", hidden_size=128, vocab_size=8192)
    found: dict[str, Plan] = {}
    for name, (stage, bucket, overlaps, grad_accum, _) in HIGHEST.items():
        zero = {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": overlaps}
        ds_config = {"bf16": {"enabled": True}, "zero_optimization": zero}
        found[name] = planned(
            model, ds_config=ds_config, method="full", micro_batch=1, grad_accum=grad_accum, seq_len=64, num_samples=32
        )
    return found


def timeline_of(plan: Plan, rank: int | None) -> Timeline:
    return rehearsed_timeline(
        find_model(plan.workload.model.id),
        plan.recipe,
        num_ranks=2,
        rank=rank,
        seq_len=plan.workload.seq_len,
        image_side=0,
        fuses_dropout=False,
    )


@pytest.mark.long
@pytest.mark.sweep
def test_each_rank_has_the_peaks_of_its_plan_and_the_planned_one_is_the_highest(plans: dict[str, Plan], tmp_path: Any):
    real = really_run(plans, tmp_path, num_ranks=2, words=WORDS)
    for name, plan in plans.items():
        measured = [
            {one["name"]: one["peak_bytes"] for one in of_rank[name] if one["step"] in (0, NUM_STEPS)}
            for of_rank in real
        ]
        for rank, peaks in enumerate(measured):
            of_plan = {phase.name: phase.peak.total for phase in timeline_of(plan, rank).phases}
            for phase in PHASES:
                assert of_plan[phase] == pytest.approx(peaks[phase], rel=TOLERANCE), (name, rank, phase)
        highest = [max(peaks.values()) for peaks in measured]
        chosen = timeline_of(plan, None)
        assert chosen.rank == highest.index(max(highest)) == HIGHEST[name][-1], name
        assert chosen.peak.total == pytest.approx(max(highest), rel=TOLERANCE), name
