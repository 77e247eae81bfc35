"""A script that really runs on a CPU rank, its storages counted by the phases that a rehearsal finds:
``python real_script.py ANSWER.json SCRIPT ARGUMENTS...``."""

import json
import os
import runpy
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vlmplan_trainer.measure import LiveStorages, Meter
from vlmplan_trainer.script_rehearsal.loaders import short_loaders, stopping_trainers
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NUM_STEPS = 3


class WholeMeter(Meter):
    """Counts from the first line of a script to its last."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), num_steps=NUM_STEPS + 1)

    @property
    def storages(self) -> LiveStorages:
        assert self._storages is not None
        return self._storages

    def _mode(self) -> AbstractContextManager[Any]:
        return nullcontext()


def main() -> None:
    answer, script, *arguments = sys.argv[1:]
    import deepspeed
    from transformers import Trainer

    assert Trainer
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # see engines.make.init_gloo
    meter = WholeMeter()
    phases = ScriptPhases(meter, num_steps=NUM_STEPS)
    torch.autograd.set_multithreading_enabled(False)
    sys.argv = [script, *arguments]
    with short_loaders(phases), stopping_trainers(phases), meter.storages, phases.following():
        phases.switch("load")
        runpy.run_path(script, run_name="__main__")
    if os.environ.get("RANK", "0") == "0":
        Path(answer).write_text(json.dumps({name: asdict(memory) for name, memory in meter.memory.items()}))


if __name__ == "__main__":
    main()
