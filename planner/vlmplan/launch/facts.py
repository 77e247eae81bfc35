"""What this machine has that a plan needs: asked of the operating system, the driver and the interpreter.

Nothing here judges; ``preflight`` does. torch is asked in a process of its own, because vlmplan does not import it.
"""

import json
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlmplan.child_process import last_words, run_python
from vlmplan.errors import UnavailableError, VlmplanError
from vlmplan.files import proc_bytes
from vlmplan.files.json_reader import JsonDict
from vlmplan.launch.extensions import held_locks
from vlmplan.machine.host import free_bytes_at, host_ram_bytes, num_host_cpus
from vlmplan.machine.nvml import NvmlMachine, read_machine
from vlmplan.plan import Plan
from vlmplan.versions import TASK_PACKAGES, installed_version

PACKAGES = (
    *("torch", "transformers", "deepspeed", "peft", "bitsandbytes", "accelerate", "safetensors", "pillow"),
    *TASK_PACKAGES,
)
MONITORS = ("tensorboard", "wandb")
FLASH_ATTENTION = "flash-attn"
MASTER_PORT, LAST_PORT = "MASTER_PORT", 65535
"""Where ranks meet (``torch/distributed/rendezvous.py``); the last that there is."""
TORCH_SECONDS = 120
"""Longest wait for torch to say what it sees; on a cold network drive its import alone takes a minute."""
TORCH_QUESTION = """
import json, torch
print(json.dumps({
    "is_available": torch.cuda.is_available(), "num_gpus": torch.cuda.device_count(),
    "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSight:
    """What torch says of the GPUs; ``cuda`` and ``hip`` are the versions that it was built for."""

    is_available: bool
    num_gpus: int
    cuda: str | None = None
    hip: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """This machine. None is what could not be found out, for packages what is not installed."""

    packages: Mapping[str, str | None] = field(hash=False)
    host_ram_bytes: int | None = None
    available_ram_bytes: int | None = None
    free_disk_bytes: int | None = None
    free_nvme_bytes: int | None = None
    driver: NvmlMachine | None = None
    driver_problem: str | None = None
    torch_sight: TorchSight | None = None
    torch_problem: str | None = None
    visible_devices: str | None = None
    host_name: str = ""
    num_cpus: int | None = None
    has_pdsh: bool = False
    port_problem: str | None = None
    """What is wrong with MASTER_PORT, where the user has set it."""
    held_locks: tuple[Path, ...] = ()
    """Of builds of kernels that the plan needs; see ``extensions``."""


def facts_of_this_machine(plan: Plan, output_dir: Path) -> Facts:
    """What ``preflight`` wants to know for this plan; GPUs are not asked for where a plan needs none."""
    packages = {name: installed_version(name) for name in (*PACKAGES, *MONITORS, FLASH_ATTENTION)}
    driver = driver_problem = sight = None
    if plan.hardware.vendor == "nvidia":
        try:
            driver = read_machine()
        except VlmplanError as error:
            driver_problem = str(error)
    if (plan.hardware.vendor == "amd" or driver is not None) and packages["torch"] is not None:
        sight = torch_sees()
    nvme_path = plan.recipe.nvme_path if plan.expected.nvme_swap_bytes else None
    try:
        ram = host_ram_bytes()
    except UnavailableError:
        ram = None
    return Facts(
        packages=packages,
        host_ram_bytes=ram,
        available_ram_bytes=available_ram_bytes(),
        free_disk_bytes=free_bytes_at(output_dir),
        free_nvme_bytes=None if nvme_path is None else free_bytes_at(Path(nvme_path)),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        host_name=socket.gethostname(),
        num_cpus=num_host_cpus(),
        has_pdsh=shutil.which("pdsh") is not None,
        port_problem=port_problem(os.environ.get(MASTER_PORT)) if plan.has_ranks else None,
        held_locks=tuple(held_locks(plan, os.environ)),
        driver=driver,
        driver_problem=driver_problem,
        torch_sight=sight if isinstance(sight, TorchSight) else None,
        torch_problem=sight if isinstance(sight, str) else None,
    )


def port_problem(port: str | None) -> str | None:
    """Why ranks cannot meet at this port of this machine; a sentence. None: they can, or at any that is free."""
    if not port:
        return None
    if not port.isascii() or not port.isdecimal() or not 1 <= int(port) <= LAST_PORT:
        return (
            f"{MASTER_PORT} is {port}; a port from 1 to {LAST_PORT} is needed, or leave it unset for one that is free"
        )
    try:
        with socket.create_server(("", int(port))):
            return None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        return f"{MASTER_PORT} is {port}, where ranks cannot meet ({why}); leave it unset for one that is free"


def torch_sees() -> TorchSight | str:
    """What another process that imports torch says, or a sentence on why it says nothing."""
    try:
        done = run_python(["-c", TORCH_QUESTION], timeout=TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"torch has not answered within {TORCH_SECONDS} seconds which GPUs it sees"
    if done.returncode:
        return f"torch is installed but cannot be imported: {last_words(done)}"
    return TorchSight(**json.loads(done.stdout.splitlines()[-1]))


def available_ram_bytes() -> int | None:
    """RAM that new processes can have without swapping, from Linux's ``MemAvailable``; None elsewhere."""
    return proc_bytes("/proc/meminfo").get("MemAvailable")


def machine_json(facts: Facts) -> JsonDict:
    """What a run was started with: versions.json."""
    driver = facts.driver
    cuda = None if driver is None or driver.cuda_driver_version is None else driver.cuda_driver_version
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "driver": None if driver is None else driver.driver_version,
        "cuda_driver": None if cuda is None else f"{cuda[0]}.{cuda[1]}",
        "packages": dict(facts.packages),
    }
