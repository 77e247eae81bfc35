"""Runs of the trainer in one process that may take only so much, one after the other: python limited_runs.py FOLDER

small      without a limit, so that everything is imported that a run imports
large      with ``LIMIT_MIB`` more than that
suggested  with the same limit, the plan that is suggested after ``large``

The exit codes go to codes.json.
"""

import gc
import json
import resource
import sys
from pathlib import Path

from vlmplan.catalog import load_catalog
from vlmplan.files import proc_bytes
from vlmplan.launch.out_of_memory import Planner, correction_of, smallest_remedy
from vlmplan.plan import plan_from_estimate, read_plan, write_plan
from vlmplan.run.shortage import read_shortages
from vlmplan_trainer.__main__ import main

LIMIT_MIB = 160


def limit(mib: int) -> None:
    """Linux counts private writable memory here, and refuses what would be more (man 2 getrlimit, RLIMIT_DATA)."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (proc_bytes("/proc/self/status")["VmData"] + mib * 2**20, hard))


def trained(folder: Path) -> int:
    """One step of the plan in ``folder``."""
    words = ["--plan", str(folder / "plan.json"), "--output-dir", str(folder), "--dummy-data", "16", "--max-steps", "1"]
    code = main(words)
    gc.collect()
    return code


def all_runs(root: Path) -> dict[str, int]:
    codes = {"small": trained(root / "small")}
    limit(LIMIT_MIB)
    codes["large"] = trained(root / "large")
    plan = read_plan(root / "large" / "plan.json")
    (shortage,) = read_shortages(root / "large")
    remedy = smallest_remedy(Planner(plan, load_catalog()), correction_of(shortage, plan))
    assert remedy.fits
    write_plan(plan_from_estimate(remedy.setup.estimate), root / "suggested" / "plan.json")
    return codes | {"suggested": trained(root / "suggested")}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "codes.json").write_text(json.dumps(all_runs(folder)))
