"""Memory that really runs out: a process that may take only so much, until torch's allocator refuses."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trainer_runs import planned

from vlmplan.catalog import load_catalog
from vlmplan.launch.out_of_memory import Planner, correction_of, smallest_remedy
from vlmplan.plan import Plan, plan_from_estimate, write_plan
from vlmplan.shortage import read_shortages
from vlmplan.training import EXIT_OUT_OF_MEMORY
from vlmplan.units import MIB
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.out_of_memory import is_out_of_memory, requested_bytes

LIMITED_RUN = Path(__file__).parent / "limited_run.py"
LIMIT_MIB = 200
"""More than what is loaded after the limit is set (about 120 MiB), less than what the plan takes beside it."""


def limited(plan: Plan, folder: Path) -> subprocess.CompletedProcess[str]:
    """One step of the trainer that may take ``LIMIT_MIB`` more than it does once imported."""
    write_plan(plan, folder / "plan.json")
    words = ["--plan", str(folder / "plan.json"), "--output-dir", str(folder), "--dummy-data", "16", "--max-steps", "1"]
    command = [sys.executable, str(LIMITED_RUN), str(LIMIT_MIB), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
def test_what_runs_out_is_written_down_and_what_is_then_suggested_runs_within_the_same_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = write_tiny_model(tmp_path / "llama", "llama")
    shape = {"seq_len": 512, "micro_batch": 16, "grad_accum": 1, "num_samples": 16, "activation_checkpointing": False}
    plan = planned(model, num_ranks=1, zero_stage="none", precision="fp32", attention="eager", **shape)
    done = limited(plan, tmp_path / "first")
    assert done.returncode == EXIT_OUT_OF_MEMORY, done.stderr
    assert "Traceback" not in done.stderr
    (shortage,) = read_shortages(tmp_path / "first")
    assert done.stderr.splitlines()[-1] == f"vlmplan_trainer: {shortage.sentence()}"
    expected = {phase.name: phase.peak_bytes for phase in plan.expected.phases}
    assert (shortage.phase, shortage.step, shortage.is_on_host) == ("forward", 1, True)
    assert shortage.planned_bytes == expected["forward"]
    # The scores of eager attention, 4 heads in float32, are what no room is left for.
    assert shortage.requested_bytes == 16 * 4 * 512 * 512 * 4
    assert shortage.free_bytes < shortage.requested_bytes
    assert 0 < shortage.allocated_bytes < LIMIT_MIB * MIB < expected["forward"]

    remedy = smallest_remedy(Planner(plan, load_catalog()), correction_of(shortage, plan))
    assert remedy.fits
    assert remedy.setup.estimate.recipe.micro_batch < 16
    assert remedy.setup.estimate.samples_per_step == plan.samples_per_step
    again = limited(plan_from_estimate(remedy.setup.estimate), tmp_path / "second")
    assert again.returncode == 0, again.stderr
    assert not read_shortages(tmp_path / "second")


def test_errors_that_say_that_memory_ran_out_are_told_from_others():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
    assert requested_bytes(str(refused.value)) == 2**50
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))
