"""Memory that really runs out: a process that may take only so much, until torch's allocator refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trainer_runs import planned

from vlmplan.memory_messages import requested_bytes
from vlmplan.plan import read_plan, write_plan
from vlmplan.run.shortage import read_shortages
from vlmplan.run.training import EXIT_OUT_OF_MEMORY
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.out_of_memory import is_out_of_memory

LIMITED_RUNS = Path(__file__).parent / "limited_runs.py"


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts private memory on Linux only")
def test_what_runs_out_is_written_down_and_what_is_then_suggested_runs_within_the_same_limit(tmp_path: Path):
    model = write_tiny_model(tmp_path / "llama", "llama")
    shape = {"seq_len": 512, "num_samples": 16, "grad_accum": 1, "activation_checkpointing": False}
    for name, micro_batch in (("small", 1), ("large", 16)):
        plan = planned(model, num_ranks=1, zero_stage="none", attention="eager", micro_batch=micro_batch, **shape)
        write_plan(plan, tmp_path / name / "plan.json")
    # The C library gives every freed block of 64 KiB or more back (man 3 mallopt), so that it holds no fragments.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**16)}
    command = [sys.executable, str(LIMITED_RUNS), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    codes = json.loads((tmp_path / "codes.json").read_text())
    assert codes == {"small": 0, "large": EXIT_OUT_OF_MEMORY, "suggested": 0}, done.stderr
    assert "Traceback" not in done.stderr

    (shortage,) = read_shortages(tmp_path / "large")
    assert f"vlmplan_trainer: {shortage.sentence()}\n" in done.stderr
    expected = {phase.name: phase.peak_bytes for phase in plan.expected.phases}
    assert (shortage.phase, shortage.step, shortage.is_on_host) == ("forward", 1, True)
    assert shortage.planned_bytes == expected["forward"]
    # The scores of eager attention in a layer of 4 heads, 16 bit or after their softmax 32, find no room.
    assert shortage.requested_bytes in (16 * 4 * 512 * 512 * width for width in (2, 4))
    assert 0 < shortage.allocated_bytes < expected["forward"]

    suggested = read_plan(tmp_path / "suggested" / "plan.json")
    assert suggested.recipe != plan.recipe
    assert suggested.expected.peak_allocated_bytes < plan.expected.peak_allocated_bytes - shortage.requested_bytes
    assert suggested.samples_per_step == plan.samples_per_step
    assert not read_shortages(tmp_path / "suggested")


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
