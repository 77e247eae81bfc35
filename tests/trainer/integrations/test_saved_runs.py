"""Bytes on disk of real runs of Hugging Face's Trainer, against those that are planned."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prepared import free_port

from vlmplan.catalog import load_catalog
from vlmplan.estimation import Estimate, estimate
from vlmplan.request import parse, requested_cluster
from vlmplan.request.setup import requested_setup
from vlmplan_trainer.models.tiny import write_tiny_model

RUN = Path(__file__).parent / "saved_run.py"
NUM_STEPS, SAVE_STEPS, LIMIT = 7, 2, 2
OTHER_BYTES = 10_000, 260_000
"""Of every checkpoint and result: notes, random numbers, names of tensors, and DeepSpeed's script for recovery."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "llama"
    write_tiny_model(place, "llama", hidden_size=256, num_layers=4)
    return place


def measured(folder: Path, place: Path, *, stage: int | None, num_ranks: int, **job: Any) -> dict[str, int]:
    given = {"folder": str(folder), "output": str(place / "out"), "result": str(place / "result.json"), "stage": stage}
    arguments = {"max_steps": NUM_STEPS, "save_strategy": "steps", "save_steps": SAVE_STEPS, "save_total_limit": LIMIT}
    command = [sys.executable]
    if num_ranks > 1:
        command += ["-m", "torch.distributed.run", f"--nproc_per_node={num_ranks}", f"--master_port={free_port()}"]
    done = subprocess.run(
        [*command, str(RUN), json.dumps(given | job | {"arguments": arguments})],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((place / "result.json").read_text())


def planned(folder: Path, *, method: str, stage: int | None, num_ranks: int, gathers: bool) -> Estimate:
    options: dict[str, Any] = {
        "model": str(folder),
        "gpu": f"cpu:{num_ranks}",
        "method": method,
        "zero_stage": "none" if stage is None else str(stage),
        "made_for": "transformers",
        "num_samples": NUM_STEPS * 2 * num_ranks,
        "micro_batch": 2,
        "save_every": SAVE_STEPS,
        "keep_last": LIMIT,
        "precision": "bf16",
    }
    options |= {"lora_rank": 8} if method == "lora" else {"weight_dtype": "float32"} if stage is None else {}
    request = parse(options)
    setup = requested_setup(request, requested_cluster(request.hardware, load_catalog()), request.model_files)
    saving = replace(setup.workload.saving, gathers_shards=gathers)
    return estimate(replace(setup.workload, saving=saving), setup.recipe, setup.cluster)


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize(("method", "stage", "num_ranks", "gathers"), [("lora", None, 1, False), ("full", 3, 2, True)])
def test_a_run_has_on_disk_what_is_planned_at_its_fullest_and_at_its_end(
    folder: Path, tmp_path: Path, method: str, stage: int | None, num_ranks: int, gathers: bool
):
    found = measured(folder, tmp_path, method=method, stage=stage, num_ranks=num_ranks, gathers=gathers)
    plan = planned(folder, method=method, stage=stage, num_ranks=num_ranks, gathers=gathers)
    run = plan.run_disk
    assert (run.num_at_once, run.num_kept, run.num_written) == (LIMIT + 1, LIMIT, 3 + 1)
    least, most = OTHER_BYTES
    assert least <= found["checkpoint"] - plan.disk.checkpoint_bytes <= most
    assert 3 * least <= found["peak"] - run.peak_bytes <= 3 * most
    assert 2 * least <= found["end"] - run.end_bytes <= 3 * most
