"""Whether this machine's GPUs are the plan's: as many, the same kind, and free."""

import re
from collections.abc import Iterator, Sequence

from vlmplan.catalog import Catalog
from vlmplan.launch.facts import Facts
from vlmplan.machine.gpus import SAME_TOTAL_BYTES, LocalGpu, local_gpus, visible_gpus
from vlmplan.plan import Plan
from vlmplan.units import counted, gib_text

REPLAN = "make a plan for this machine: --gpu local"


def gpu_problems(plan: Plan, facts: Facts, catalog: Catalog) -> Iterator[str]:
    """Why the plan's GPUs are not here; nothing for a plan of CPU ranks."""
    if plan.hardware.vendor == "nvidia":
        yield from _driver_problems(plan, facts, catalog)
    if plan.hardware.vendor != "cpu":
        yield from _torch_problems(plan, facts)


def _driver_problems(plan: Plan, facts: Facts, catalog: Catalog) -> Iterator[str]:
    hardware = plan.hardware
    if facts.driver is None:
        # The advice to plan for another machine is of no use to who has such a plan.
        why = (facts.driver_problem or "").partition("; name a card of the catalog")[0]
        yield f"the plan is for {hardware.gpus_per_node} x {hardware.gpu_name}, but {why}"
        return
    devices = present = local_gpus(facts.driver, catalog.without_calibrations())
    visible = ""
    if facts.visible_devices is not None:
        devices = visible_gpus(devices, facts.visible_devices)
        visible = f" with CUDA_VISIBLE_DEVICES={facts.visible_devices}"
    if len(devices) < hardware.gpus_per_node:
        needed = counted(hardware.gpus_per_node, "GPU")
        yield f"the plan is for {needed}, but this machine has {len(devices)}{visible}; {REPLAN}"
    if plan.has_ranks and not re.fullmatch(r"[0-9, ]*", facts.visible_devices or ""):
        yield f"DeepSpeed's launcher takes GPUs by number, but CUDA_VISIBLE_DEVICES is {facts.visible_devices}"
    # Only the first ones are used.
    yield from _other_kinds(plan, devices[: hardware.gpus_per_node], _mend(plan, devices, present))


def _is_planned(device: LocalGpu, plan: Plan) -> bool:
    """Whether it is of the plan's kind, with as much memory."""
    hardware, gpu = plan.hardware, device.gpu
    return gpu.id == hardware.gpu_id and gpu.usable_bytes >= hardware.usable_bytes - SAME_TOTAL_BYTES


def _mend(plan: Plan, devices: Sequence[LocalGpu], present: Sequence[LocalGpu]) -> str:
    """What to do where the first of the visible ``devices`` are others than planned; ``present``: all that are here."""
    numbers = [str(present.index(device)) for device in devices if _is_planned(device, plan)]
    wanted = numbers[: plan.hardware.gpus_per_node]
    if len(wanted) < plan.hardware.gpus_per_node:
        return REPLAN
    return f"CUDA_VISIBLE_DEVICES={','.join(wanted)} in front of the command chooses those of the plan"


def _other_kinds(plan: Plan, devices: Sequence[LocalGpu], mend: str) -> Iterator[str]:
    hardware, needed = plan.hardware, plan.expected.peak_device_bytes
    for device in devices:
        gpu, name = device.gpu, f"GPU {device.card.index}"
        if gpu.id != hardware.gpu_id:
            yield f"{name} is {gpu.name}, but the plan is for {hardware.gpu_name}; {mend}"
        elif not _is_planned(device, plan):
            yield (
                f"{name} has {gib_text(gpu.usable_bytes)} that can be used, but the plan is for "
                f"{gib_text(hardware.usable_bytes)}; {mend}"
            )
        elif device.free_bytes < needed:
            yield (
                f"{name} has {gib_text(device.free_bytes)} free, but the plan needs {gib_text(needed)}; "
                f"end what else runs there (nvidia-smi names it)"
            )


def _torch_problems(plan: Plan, facts: Facts) -> Iterator[str]:
    sight, num_gpus = facts.torch_sight, plan.hardware.gpus_per_node
    if facts.torch_problem is not None:
        yield facts.torch_problem
    if sight is None:
        return
    installed = f"torch {facts.packages.get('torch')}"
    if sight.cuda is None and sight.hip is None:
        yield f"{installed} is built for CPUs only; install a build for GPUs: https://pytorch.org/get-started"
    elif not sight.is_available:
        built = f"CUDA {sight.cuda}" if sight.hip is None else f"ROCm {sight.hip}"
        driver = f"driver {facts.driver.driver_version}" if facts.driver else "driver"
        yield f"{installed}, built for {built}, cannot use the GPUs; this machine's {driver} may be too old for it"
    elif sight.num_gpus < num_gpus:
        yield f"the plan is for {counted(num_gpus, 'GPU')}, but torch sees {sight.num_gpus}"
