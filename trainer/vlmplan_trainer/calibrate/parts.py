"""The parts of a calibration, in the order in which they run, each with its own limit of seconds.

A part measures by its limit and is broken off at twice that, or after half a minute: what it has to do before it can
measure (importing, building, starting processes) takes its time on a busy machine. None goes beyond the budget of all.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from vlmplan_trainer.calibrate import compute, fixed_bytes, host, links
from vlmplan_trainer.calibrate.clock import Measured, TimeIsUp, within

Found = dict[str, Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is asked for. ``operations`` is the planner's small model with the number of operations that it counts."""

    device: torch.device
    num_ranks: int
    operations: dict[str, Any]
    budget_seconds: float

    @property
    def types(self) -> list[str]:
        """What products are measured in; older cards have no bfloat16."""
        if self.device.type == "cpu":
            return ["fp32", "bf16"]
        return [*(["bf16"] if torch.cuda.is_bf16_supported(including_emulation=False) else []), "fp16", "fp32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """``share`` of the budget; ``prevented``: a sentence where it cannot be measured here."""

    name: str
    share: float
    run: Callable[[Job, float], Found]
    prevented: Callable[[Job], str | None] = lambda job: None


def _no_bus(job: Job) -> str | None:
    return "a CPU is its own host" if job.device.type == "cpu" else None


def _no_deepspeed(job: Job) -> str | None:
    return None if find_spec("deepspeed") is not None else "DeepSpeed is not installed"


def _no_host_adam(job: Job) -> str | None:
    if find_spec("deepspeed") is None:
        return "DeepSpeed is not installed"
    from vlmplan_trainer.engines.optimizers import is_to_compile

    return "DeepSpeed's cpu_adam is not compiled here yet; a run that offloads compiles it" if is_to_compile() else None


def _no_images(job: Job) -> str | None:
    return None if find_spec("PIL") is not None else "Pillow is not installed"


def _one_gpu(job: Job) -> str | None:
    return "there is one GPU" if job.num_ranks < 2 else None


def _hooks(job: Job, limit_seconds: float) -> Found:
    words = [sys.executable, "-m", "vlmplan_trainer.calibrate.hooks", str(limit_seconds)]
    with subprocess.Popen(  # noqa: S603 - this interpreter
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "DS_ACCELERATOR": "cpu"}
    ) as process:
        try:
            text, _ = process.communicate()
        finally:
            process.kill()
    return {name: Measured(**value) for name, value in json.loads(text).items()}


PARTS = (
    Part(name="fixed bytes", share=0.04, run=lambda job, _: fixed_bytes.fixed_bytes(job.device)),
    Part(name="matrix products", share=0.09, run=lambda job, limit: compute.matmuls(job.device, job.types, limit)),
    Part(name="attention", share=0.07, run=lambda job, limit: compute.attention(job.device, job.types, limit)),
    Part(name="memory bandwidth", share=0.03, run=lambda job, limit: compute.bandwidth(job.device, limit)),
    Part(name="operations", share=0.04, run=lambda job, limit: host.operations(job.device, job.operations, limit)),
    Part(
        name="copies over the bus", share=0.03, run=lambda job, limit: host.copies(job.device, limit), prevented=_no_bus
    ),
    Part(name="images", share=0.03, run=lambda job, limit: host.images(limit), prevented=_no_images),
    Part(name="ZeRO-3's hooks", share=0.11, run=_hooks, prevented=_no_deepspeed),
    Part(name="CPU Adam", share=0.02, run=lambda job, limit: host.host_adam(limit), prevented=_no_host_adam),
    Part(
        name="links between GPUs",
        share=0.03,
        run=lambda job, limit: links.link_rates(job.device, job.num_ranks, limit),
        prevented=_one_gpu,
    ),
)
BREAKS_OFF_AT, LEAST_SECONDS = 2.0, 30.0
"""Times its limit, or seconds, after which a part is given up, whichever is more."""


def run_parts(job: Job, say: Callable[[str], None], parts: tuple[Part, ...] = PARTS) -> tuple[Found, dict[str, str]]:
    """What was measured, and for each part that was not, why."""
    found: Found = {}
    reasons: dict[str, str] = {}
    end = time.monotonic() + job.budget_seconds
    for part in parts:
        reason = part.prevented(job)
        limit, left = part.share * job.budget_seconds, end - time.monotonic()
        allowed = min(max(BREAKS_OFF_AT * limit, LEAST_SECONDS), left)
        if reason is None and left <= limit:
            reason = f"the parts before it left no time of the {job.budget_seconds:.0f} s"
        if reason is None:
            say(part.name)
            try:
                with within(allowed):
                    found |= part.run(job, limit)
            except TimeIsUp:
                reason = f"it took more than the {allowed:.0f} s that it may take"
            except (RuntimeError, OSError, ImportError, ValueError) as error:
                causes = [error, *([error.__cause__] if error.__cause__ else [])]
                reason = "; ".join(" ".join(f"{type(cause).__name__}: {cause}".split())[:200] for cause in causes)
            finally:
                _tidy(job.device)
        if reason is not None:
            reasons[part.name] = reason
    return found, reasons


def _tidy(device: torch.device) -> None:
    """Give memory of a part back before the next."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
