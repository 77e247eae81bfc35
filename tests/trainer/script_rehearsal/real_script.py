"""A script that really runs on a CPU rank, its storages counted by the phases that a rehearsal finds:
``python real_script.py ANSWER.json SCRIPT ARGUMENTS...``, in the folder of the answer.

Writes a list of {name, step, resident_bytes, peak_bytes} of the first rank.
"""

import gc
import json
import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # what is counted is counted in this thread

import torch
from gloo_messages import let_go_of_messages

from vlmplan_trainer.gloo_threads import rest
from vlmplan_trainer.measure import LiveStorages, Meter, PhaseMemory
from vlmplan_trainer.rehearse.meter import collector_at_rest
from vlmplan_trainer.rehearse.replaced import replaced
from vlmplan_trainer.resized_storages import telling_of_resized_storages
from vlmplan_trainer.script_rehearsal.checkpoints import following_saves
from vlmplan_trainer.script_rehearsal.generation import generating_to_the_limit
from vlmplan_trainer.script_rehearsal.loaders import short_loaders, stopping_trainers
from vlmplan_trainer.script_rehearsal.meter import ScriptMeter
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NUM_STEPS = 3


class WholeMeter(Meter):
    """Counts from the first line of a script to its last. What reference cycles hold goes when a phase begins, as in a
    rehearsal."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), num_steps=NUM_STEPS + 1)
        self.found: dict[tuple[str, int], PhaseMemory] = {}

    @property
    def storages(self) -> LiveStorages:
        assert self._storages is not None
        return self._storages

    def _mode(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.memory.pop(name, None)
        key = (name, 0 if name in ScriptMeter.outside_steps else self.step)
        rest()
        gc.collect()
        with collector_at_rest(), super().phase(name):
            yield
        memory = self.memory[name]
        before = self.found.get(key, memory)
        self.found[key] = PhaseMemory(memory.resident_bytes, max(before.peak_bytes, memory.peak_bytes))


@contextmanager
def counting_mapped_files(storages: LiveStorages) -> Iterator[None]:
    """Tensors that lie in a file which is mapped into memory are made by no operation."""
    import transformers.modeling_utils as modeling

    open_file = modeling.safe_open

    class Counted:
        def __init__(self, mapped: Any) -> None:
            self._mapped = mapped

        def __getattr__(self, name: str) -> Any:
            return getattr(self._mapped, name)

        def __getitem__(self, index: Any) -> Any:
            tensor = self._mapped[index]
            storages.count(tensor)
            return tensor

    class CountingFile:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._file = open_file(*args, **kwargs)

        def __enter__(self) -> "CountingFile":
            return self

        def __exit__(self, *args: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_slice(self, name: str) -> Any:
            return Counted(self._file.get_slice(name))

        def get_tensor(self, name: str) -> Any:
            return Counted(self._file.get_slice(name))[...]

    with replaced(modeling, "safe_open", CountingFile):
        yield


def main() -> None:
    answer, script, *arguments = sys.argv[1:]
    import deepspeed
    from transformers import Trainer

    assert Trainer
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # see engines.make.init_gloo
    let_go_of_messages()
    meter = WholeMeter()
    phases = ScriptPhases(meter, num_steps=NUM_STEPS)
    torch.autograd.set_multithreading_enabled(False)
    sys.argv = [script, *arguments]
    os.chdir(Path(answer).parent)
    sys.path.insert(0, str(Path(script).parent))
    gc.freeze()
    with (
        short_loaders(phases),
        stopping_trainers(phases),
        meter.storages,
        telling_of_resized_storages(meter.resized),
        counting_mapped_files(meter.storages),
        following_saves(phases),
        generating_to_the_limit(phases, lambda note: None),
        phases.following(),
    ):
        phases.switch("load")
        runpy.run_path(script, run_name="__main__")
    if os.environ.get("RANK", "0") == "0":
        lines = [
            {"name": name, "step": step, "resident_bytes": one.resident_bytes, "peak_bytes": one.peak_bytes}
            for (name, step), one in meter.found.items()
        ]
        Path(answer).write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
