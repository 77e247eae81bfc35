"""Plans, machines and a stand-in for the trainer, for the tests of launch."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe_cases import plan
from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.launch.facts import FLASH_ATTENTION, PACKAGES, Facts, TorchSight
from vlmplan.machine.nvml import NvmlCard, NvmlMachine
from vlmplan.plan import Plan, PlannedHardware
from vlmplan.recipe import Recipe
from vlmplan.run.training import TrainerOptions
from vlmplan.units import GIB, MIB
from vlmplan.versions import CHECKED_VERSIONS

STAND_IN = '''
"""Writes down how it was started, does what STAND_IN says, and lets the real package's other modules through.

exit CODE (0 after a step, with a report), cut (0 without one), wait, shortage FILE: ends as a rank whose memory ran out
does, which wrote that down like this, or results NAME...: leaves what the trainer leaves, but fails in the folders of
these names.
"""
import json, os, sys, time
from pathlib import Path

record = {"argv": sys.argv[1:], "environ": dict(os.environ), "python": sys.executable}
out = Path(sys.argv[sys.argv.index("--output-dir") + 1])
(out / f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(record))
print("trained", flush=True)
what = os.environ.get("STAND_IN", "exit 0")
if what == "wait":
    time.sleep(60)
what, *words = what.split()
if what == "results" and out.name not in words:
    plan = json.loads(Path(sys.argv[sys.argv.index("--plan") + 1]).read_text())
    for name in ("model", "merged", "adapter"):
        (out / name).mkdir()
    for name in ("model", "merged"):
        (out / name / "config.json").write_text(json.dumps(plan["model"]["config"]))
        (out / name / "model.safetensors").touch()
    (out / "adapter" / "adapter_config.json").write_text("{}")
    (out / "adapter" / "adapter_model.safetensors").touch()
    (out / "report.json").touch()
    sys.exit(0)
if what == "shortage":
    (out / "out_of_memory-0.json").write_text(Path(*words).read_text())
    sys.exit(4)
if what == "cut":
    sys.exit(0)
code = 5 if what == "results" else int(words[0])
if not code:
    (out / "metrics.jsonl").write_text('{"step": 1}\\n')
    (out / "report.json").touch()
sys.exit(code)
'''


STAND_IN_LOOK = '''
"""Says of any data what LOOK says, and that it is fine where that is not set."""
import json, os

print("something that a library prints")
fine = {"train": {"name": "data.jsonl", "lines": ["7 samples to train on"]}, "eval": None}
print(os.environ.get("LOOK") or json.dumps(fine))
'''


def stand_in_trainer(folder: Path) -> Path:
    """A package vlmplan_trainer to put first on PYTHONPATH; the folder it is in."""
    package = folder / "stand_in" / "vlmplan_trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n")
    (package / "__main__.py").write_text(STAND_IN)
    (package / "look.py").write_text(STAND_IN_LOOK)
    return package.parent


def recorded(output_dir: Path, rank: int = 0) -> dict[str, Any]:
    return json.loads((output_dir / f"rank-{rank}.json").read_text())


def script(path: Path, code: str) -> list[str]:
    """The command that runs ``code`` as a Python script at ``path``."""
    path.write_text("import os, signal, subprocess, sys, time\nfrom pathlib import Path\n" + code)
    return [sys.executable, str(path)]


def wait_for(path: Path, seconds: float = 20.0) -> None:
    """Until the file is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False


def gpu_plan(recipe: Recipe | None = None, num_gpus: int = 2, num_nodes: int = 1, **expected: Any) -> Plan:
    """A plan for A100s that ``sound_facts`` has."""
    made = plan(recipe or Recipe(zero_stage=2, micro_batch=3), num_gpus, num_nodes)
    return replace(made, expected=replace(made.expected, **expected))


def cpu_plan(num_ranks: int = 2, **recipe: Any) -> Plan:
    stage = None if num_ranks == 1 else 2
    made = Recipe(**{"zero_stage": stage, "expandable_segments": True, **recipe})
    hardware = PlannedHardware(
        gpu_id="cpu", gpu_name="CPU", vendor="cpu", gpus_per_node=num_ranks, num_nodes=1, usable_bytes=8 * GIB
    )
    config = deepspeed_config(made, num_gpus=num_ranks)
    return plan(made, hardware=hardware, ds_config=config, environment={"DS_ACCELERATOR": "cpu"})


def a100(index: int, **changes: Any) -> NvmlCard:
    total = 81920 * MIB
    known: dict[str, Any] = {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": f"GPU-{index}",
        "total_bytes": total,
        "free_bytes": total,
        "pci_device_id": "20B2",
        "compute_capability": (8, 0),
    }
    return NvmlCard(index=index, **(known | changes))


def driver(*cards: NvmlCard) -> NvmlMachine:
    return NvmlMachine(driver_version="580.95.05", cuda_driver_version=(13, 0), cards=cards)


def sound_facts(**changes: Any) -> Facts:
    """A machine with four idle A100s, the versions of the plan, and plenty of everything."""
    known: dict[str, Any] = {
        "packages": {**dict.fromkeys(PACKAGES, "1.2.3"), FLASH_ATTENTION: "2.8.3", **CHECKED_VERSIONS},
        "host_ram_bytes": 512 * GIB,
        "available_ram_bytes": 500 * GIB,
        "free_disk_bytes": 1000 * GIB,
        "driver": driver(*(a100(index) for index in range(4))),
        "torch_sight": TorchSight(is_available=True, num_gpus=4, cuda="13.0"),
        "host_name": "node-1.cluster",
        "num_cpus": 16,
        "has_pdsh": True,
    }
    return Facts(**(known | changes))


def asked(folder: Path, **changes: Any) -> TrainerOptions:
    """Options that train on ``folder/data.jsonl``, which is written with a line for each of the plan's samples."""
    data = folder / "data.jsonl"
    data.write_text('{"messages": []}\n' * 2310)
    return TrainerOptions(**{"output_dir": folder / "out", "train_data": data} | changes)
