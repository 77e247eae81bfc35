"""Rehearsals of plans, and real runs of the same plans on CPU ranks."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prepared import run_prepared

from vlmplan.plan import Plan, write_plan
from vlmplan.sample_images import sample_image

HERE = Path(__file__).parent
NUM_STEPS = 2


def request_for(plan: Plan, *, rank: int = 0, num_steps: int = NUM_STEPS, **more: Any) -> dict[str, Any]:
    """What ``python -m vlmplan_trainer.rehearse`` is asked."""
    workload = plan.workload
    image = sample_image(workload)
    samples = {
        "micro_batch": plan.recipe.micro_batch,
        "num_tokens": workload.seq_len,
        "images_per_sample": workload.images_per_sample,
        "image": None if image is None else asdict(image),
        "width": workload.image_width,
        "height": workload.image_height,
    }
    request = {"plan": deepcopy(plan.as_json()), "samples": samples, "rank": rank, "num_steps": num_steps}
    return request | {"compute_capability": [8, 0]} | more


def rehearsed(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of ``python -m vlmplan_trainer.rehearse``."""
    command = [sys.executable, "-m", "vlmplan_trainer.rehearse"]
    return _answer(subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, timeout=600))


def many_rehearsed(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The answers to several requests from processes that share their imports."""
    return _answer(run_prepared(HERE / "many_rehearsals.py", stdin=json.dumps(list(requests))))


def _answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr[-5000:]
    return json.loads(done.stdout)


def really_run(
    plans: Mapping[str, Plan],
    folder: Path,
    *,
    num_ranks: int,
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, list[dict[str, Any]]]]:
    """The phases of each plan's run, by rank and name, and their ``resident_bytes`` and ``peak_bytes``."""
    jobs = []
    for name, plan in plans.items():
        place = folder / name
        write_plan(plan, place / "plan.json", force=True)
        job = {"name": name, "plan": str(place / "plan.json"), "folder": str(place / "run"), "words": list(words)}
        jobs.append(job)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    results = folder / f"results-{num_ranks}"
    arguments = [str(folder / "jobs.json"), str(results)]
    done = run_prepared(HERE / "real_runs.py", arguments, num_ranks=num_ranks, environment=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return [json.loads(Path(f"{results}.{rank}").read_text()) for rank in range(num_ranks)]
