"""Plans of tiny models on CPU ranks, and running them as the launcher would."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from prepared import free_port, run_prepared

from vlmplan.plan import Plan, plan_from_estimate, write_plan
from vlmplan.request import parse
from vlmplan.requested import requested_estimate
from vlmplan.run.training import CHECKPOINTS

MANY_RUNS = Path(__file__).parent / "many_runs.py"
WORKLOADS = {
    "llama": {"seq_len": 64},
    "qwen2_vl": {"seq_len": 64, "image_size": "56x56", "images_per_sample": 1},
}


def planned(model: Path, *, num_ranks: int = 2, **options: Any) -> Plan:
    """A plan for the tiny model in a folder; ``options`` are those of ``vlmplan estimate``."""
    family = json.loads((model / "config.json").read_text())["model_type"]
    given = {"model": str(model), "gpu": f"cpu:{num_ranks}", **WORKLOADS.get(family, {}), **options}
    if given.get("micro_batch") is None:
        given["micro_batch"] = 1
    estimate, _ = requested_estimate(parse(given), ())
    return plan_from_estimate(estimate)


def train_all(
    jobs: Mapping[str, tuple[Plan, Sequence[str]]],
    folder: Path,
    *,
    num_ranks: int,
    places: Mapping[str, str] | None = None,
    stop_after: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, "Outcome"]:
    """Run several plans of ``num_ranks`` in the same processes; the outcome of each by name.

    ``places`` names the job in whose folder another one runs, ``stop_after`` the step after which a job is told to end.
    """
    listed: list[dict[str, Any]] = []
    for name, (plan, words) in jobs.items():
        place = folder / (places or {}).get(name, name)
        write_plan(plan, place / "plan.json", force=True)
        job = {"name": name, "plan": str(place / "plan.json"), "folder": str(place / "run"), "words": list(words)}
        listed.append(job | {"stop_after": (stop_after or {}).get(name)})
    (folder / "jobs.json").write_text(json.dumps(listed))
    results = folder / "results.json"
    words = [str(folder / "jobs.json"), str(results)]
    done = run_prepared(MANY_RUNS, words, num_ranks=num_ranks, environment=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    codes = json.loads(results.read_text())
    return {job["name"]: Outcome(done, Path(job["folder"]), codes[job["name"]]) for job in listed}


def train(plan: Plan, folder: Path, *words: str) -> "Outcome":
    """One run of the trainer on every rank of its plan."""
    write_plan(plan, folder / "plan.json", force=True)
    arguments = ["-m", "vlmplan_trainer", "--plan", str(folder / "plan.json"), "--output-dir", str(folder / "run")]
    process = start([*arguments, *words], plan.hardware.num_gpus)
    out, err = process.communicate(timeout=600)
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    outcome = Outcome(done, folder / "run", done.returncode)
    assert outcome.code == 0, outcome.out[-3000:] + outcome.err[-5000:]
    return outcome


def train_here(plan: Plan, folder: Path, *words: str) -> "Outcome":
    """One run of a plan for one rank without DeepSpeed, in this process: importing takes longer than a tiny run."""
    from vlmplan_trainer.__main__ import main

    write_plan(plan, folder / "plan.json", force=True)
    arguments = ["--plan", str(folder / "plan.json"), "--output-dir", str(folder / "run"), *words]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Outcome(subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue()), folder / "run", code)


def assert_goes_on_alike(plan: Plan, whole: "Outcome", folder: Path, *words: str) -> None:
    """A run that has lost its last checkpoint goes on in ``folder`` to the losses of the ``whole`` one."""
    shutil.copytree(whole.folder, folder / "run")
    (folder / "run" / "report.json").unlink()
    shutil.rmtree(max((folder / "run" / CHECKPOINTS).glob("step-*")))
    on = train_here(plan, folder, *words, "--resume")
    assert on.code == 0, on.err
    assert on.losses == pytest.approx(whole.losses, rel=1e-6)


def start(arguments: Sequence[str], num_ranks: int) -> subprocess.Popen[str]:
    """Python with these arguments on every rank, in a process group of its own."""
    command = [sys.executable, *arguments]
    if num_ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc_per_node={num_ranks}"]
        command = [sys.executable, *launcher, f"--master_port={free_port()}", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)


class Outcome:
    """What a run printed and left behind."""

    def __init__(self, done: subprocess.CompletedProcess[str], folder: Path, code: int | str) -> None:
        self.code, self.out, self.err, self.folder = code, done.stdout, done.stderr, folder

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        return [line["loss"] for line in self.metrics if "eval_loss" not in line]

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    def error_of(self, name: str) -> float:
        """(planned - measured) / measured of a line of the report."""
        return next(line["error"] for line in self.report["planned_and_measured"] if line["name"] == name)
