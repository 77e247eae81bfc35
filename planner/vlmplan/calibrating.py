"""Measuring this machine: what is asked of the trainer, and its answer as a calibration."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from vlmplan.calibration import QUANTITIES, Calibration, calibration_from_json, calibration_path, calibration_text
from vlmplan.catalog import Catalog
from vlmplan.errors import InputError, MissingPackageError, UnavailableError
from vlmplan.estimation import Estimator
from vlmplan.files import write_atomically
from vlmplan.files.json_reader import JsonDict, JsonObject
from vlmplan.gpu_choice import CPU, LOCAL, GpuChoice
from vlmplan.hardware import Gpu
from vlmplan.machine.cpu import cpu_gpu
from vlmplan.machine.gpus import local_node
from vlmplan.machine.host import num_host_cpus
from vlmplan.machine.nvml import read_machine
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Precision
from vlmplan.rehearsal.process import answer_of
from vlmplan.versions import INSTALL, installed_version
from vlmplan.workload import ModelFiles, Workload

WHAT = "the calibration"
COMMAND = ("-m", "vlmplan_trainer.calibrate")
NEEDED = ("torch", "transformers")
BUDGET_SECONDS, QUICK_SECONDS = 450.0, 105.0
"""Of 8 and of 2 minutes: what is left goes into starting Python and loading torch."""
OPERATIONS_TOKENS = 16
OPERATIONS_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
}
"""A model on which the host takes far longer to ask for an operation than any device to do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """What is measured: ``num_ranks`` GPUs, which CUDA calls ``uuids`` where the driver says so."""

    gpu: Gpu
    num_ranks: int
    uuids: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables by which the trainer sees these GPUs and no others; CPU ranks share the processor as in
        a run (``launch/start.py``)."""
        if self.gpu.is_cpu:
            return {"OMP_NUM_THREADS": str(max(1, (num_host_cpus() or 1) // self.num_ranks))}
        ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return ordered | {"CUDA_VISIBLE_DEVICES": ",".join(self.uuids)} if self.uuids else ordered


def measured_machine(choice: GpuChoice, catalog: Catalog) -> MeasuredMachine:
    """This machine's GPUs, or ranks of its CPU. Raises InputError for a card of the catalog: it is not here."""
    kind = choice.name.casefold()
    if kind == CPU:
        return MeasuredMachine(gpu=cpu_gpu(choice.num_gpus or 1), num_ranks=choice.num_gpus or 1)
    if kind != LOCAL:
        raise InputError(f"--gpu {choice} is not what is measured; local and cpu:RANKS are on this machine")
    try:
        found = local_node(
            read_machine(),
            catalog,
            num_gpus=choice.num_gpus,
            cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
    except UnavailableError as error:
        raise UnavailableError(f"{error}; --gpu cpu:2 measures two ranks of this machine's processor") from None
    uuids = tuple(member.uuid for member in found.members if member.uuid is not None)
    whole = uuids if len(uuids) == len(found.members) else ()
    return MeasuredMachine(gpu=found.node.gpu, num_ranks=found.node.num_gpus, uuids=whole)


def calibrate(machine: MeasuredMachine, *, is_quick: bool, on: date, say: Callable[[str], None]) -> Calibration:
    """Measure ``machine``; ``say`` gets the name of every part when it begins.

    Raises MissingPackageError where torch is not installed, UnavailableError where the process dies, InputError where
    it measured what cannot be.
    """
    missing = [name for name in NEEDED if installed_version(name) is None]
    if missing:
        raise MissingPackageError(f"calibrate measures with {' and '.join(missing)}, not installed here: {INSTALL}")
    request = {
        "device": "cpu" if machine.gpu.is_cpu else "cuda",
        "num_ranks": machine.num_ranks,
        "budget_seconds": QUICK_SECONDS if is_quick else BUDGET_SECONDS,
        "operations": operations(),
    }
    command = [sys.executable, *COMMAND]
    answer = answer_of(command, json.dumps(request), say, what=WHAT, environment=machine.environment)
    return calibration_of(answer, machine.gpu, is_quick=is_quick, on=on)


def calibration_of(answer: JsonDict, gpu: Gpu, *, is_quick: bool, on: date) -> Calibration:
    """The trainer's answer, held to what a file may hold. Raises InputError for what cannot be."""
    told = JsonObject(answer, source=f"{WHAT}'s answer")
    if "error" in told:
        raise InputError(f"this machine cannot be measured: {told.text('error')}")
    values = {
        name: {**told.object("values").mapping(name), "unit": known.unit.value}
        for name, known in QUANTITIES.items()
        if name in told.object("values")
    }
    file = {
        "schema": "vlmplan.calibration/2",
        "gpu": {"id": gpu.id, "name": told.text("device_name")},
        "date": on.isoformat(),
        "num_ranks": told.count("num_ranks", least=1),
        "quick": is_quick,
        "versions": told.mapping("versions"),
        "values": values,
        "not_measured": told.mapping("not_measured"),
    }
    return calibration_from_json(JsonObject(file, source=f"{WHAT}'s answer"))


def operations() -> JsonDict:
    """A small model with how many operations the time model counts in its forward and backward, and how many of them
    checkpoints run again."""
    files = ModelFiles(id="a small llama", config=OPERATIONS_CONFIG)
    workload = Workload(model=files, seq_len=OPERATIONS_TOKENS)
    recipe = Recipe(precision=Precision.FP32, loss=LossKind.MODEL, activation_checkpointing=True)
    forward, again, backward = Estimator(workload, recipe).trace(recipe, None).works()
    return {
        "config": OPERATIONS_CONFIG,
        "tokens": OPERATIONS_TOKENS,
        "num_kernels": forward.num_kernels + backward.num_kernels,
        "num_recomputed": again.num_kernels,
    }


def keep(found: Calibration, out: Path | None, *, force: bool) -> Path:
    """Write the calibration to ``out``, or where estimates look for it; the place. The file is whole or not there.

    Raises InputError if ``out`` exists and ``force`` is off, UnavailableError where nothing can be written.
    """
    path = calibration_path(found.gpu_id) if out is None else out
    if path is None:
        raise UnavailableError("there is no home folder to keep the calibration in; give --out FILE")
    write_atomically(path, calibration_text(found), force=force or out is None)
    return path
