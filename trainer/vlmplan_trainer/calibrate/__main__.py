"""Measure this machine: ``python -m vlmplan_trainer.calibrate``, a request on standard input, the answer on standard
output.

The request is ``{"device": "cuda" or "cpu", "num_ranks": 1, "budget_seconds": 480, "operations": {"config": {...},
"tokens": 32, "num_kernels": 900, "num_recomputed": 300}}``; the answer has ``device_name``, ``num_ranks``,
``versions``, ``values`` and ``not_measured``, or only ``error``, a sentence. Progress goes to standard error, a part a
line.
"""

import platform
import sys
import warnings
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError
from vlmplan.versions import installed_version
from vlmplan_trainer.answering import Answering, say_phase_begins

PACKAGES = ("torch", "transformers", "deepspeed", "flash-attn")


def main() -> int:
    answering = Answering()
    warnings.filterwarnings("ignore")
    answering.end(answering.answer(calibrate))
    return 0


def calibrate(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that can be measured in the time that there is. Raises InputError where there is no such device."""
    import torch
    from transformers.utils import logging

    from vlmplan_trainer.calibrate.parts import Job, run_parts

    logging.set_verbosity_error()
    device = torch.device(request["device"])
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError("torch finds no GPU here")
        torch.set_float32_matmul_precision("high")  # as a plan in float32 has it (engines/make.py)
    num_ranks = request["num_ranks"] if device.type == "cpu" else min(request["num_ranks"], torch.cuda.device_count())
    job = Job(
        device=device,
        num_ranks=num_ranks,
        operations=request["operations"],
        budget_seconds=request["budget_seconds"],
    )
    found, reasons = run_parts(job, say_phase_begins)
    return {
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "num_ranks": num_ranks if "ring_bandwidth" in found else 1,
        "versions": versions(device.type),
        "values": {name: value.as_json() for name, value in found.items()},
        "not_measured": reasons,
    }


def versions(device_type: str) -> dict[str, str]:
    """Versions of the packages that are there, Python and the driver."""
    import torch

    known = {name: installed_version(name) for name in PACKAGES}
    found = {name: version for name, version in known.items() if version is not None}
    found["python"] = platform.python_version()
    if device_type == "cuda" and torch.version.cuda is not None:
        found |= {"cuda": torch.version.cuda, "driver": _driver_version()}
    return found


def _driver_version() -> str:
    """What the driver says of itself; ``unknown`` where it cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # the binding has an error class of its own for each of the driver's
        return "unknown"


def processor_name() -> str:
    """The processor's model, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
