"""Checkpoints are counted instead of written."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from vlmplan.phase_names import SAVE
from vlmplan_trainer.rehearse.components import tensors_in
from vlmplan_trainer.rehearse.replaced import replaced, replaced_wherever_imported
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

OF_SHARDS = ("save", "async_save", "save_state_dict")
"""Functions of ``torch.distributed.checkpoint``, to which each rank gives its own part."""


class Saved:
    """Bytes of this rank's files, of the largest checkpoint. What is saved between two steps or epochs is one."""

    def __init__(self) -> None:
        self.num_bytes = self.largest_bytes = 0
        self._moment: Any = None

    def count(self, found: Any, moment: Any) -> None:
        if moment != self._moment:
            self._moment, self.num_bytes = moment, 0
        sizes: dict[int, int] = {}
        for tensor in tensors_in(found, depth=8):
            own: Any = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storage = own.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        self.num_bytes += sum(sizes.values())
        self.largest_bytes = max(self.largest_bytes, self.num_bytes)


def storage_id(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """A storage's own name. Without data all have the pointer 0, by which peft takes adapters for parts of one storage,
    of which it saves copies."""
    storage = tensor.untyped_storage()
    return tensor.device, storage._cdata, storage.nbytes()


@contextmanager
def following_saves(phases: ScriptPhases, begin: Callable[[], None] = lambda: None) -> Iterator[None]:
    """What saves is in the phase ``save``; ``begin`` is called first where a checkpoint of several files begins."""
    import safetensors.torch
    import torch.distributed.checkpoint as sharded
    from accelerate import Accelerator
    from deepspeed.runtime.engine import DeepSpeedEngine
    from transformers import PreTrainedModel, Trainer

    def told(call: Any, is_whole: bool) -> Any:
        def saving(*args: Any, **kwargs: Any) -> Any:
            if is_whole:
                begin()
            with phases.inside(SAVE):
                return call(*args, **kwargs)

        return saving

    whole = (
        (Trainer, "_save_checkpoint"),
        (Trainer, "save_model"),
        (DeepSpeedEngine, "save_checkpoint"),
        (Accelerator, "save_state"),
        (Accelerator, "save_model"),
    )
    single = ((torch, "save"), (PreTrainedModel, "save_pretrained"))
    with ExitStack() as stack:
        for owner, name in (*whole, *single):
            is_whole = (owner, name) in whole
            stack.enter_context(replaced(owner, name, told(getattr(owner, name), is_whole)))
        for name in OF_SHARDS:
            save = told(getattr(sharded, name), False)
            stack.enter_context(replaced_wherever_imported(sharded, name, save))
        write = told(safetensors.torch.save_file, False)
        stack.enter_context(replaced_wherever_imported(safetensors.torch, "save_file", write))  # peft has its own name
        yield


@contextmanager
def counting_checkpoints(phases: ScriptPhases) -> Iterator[Saved]:
    """``torch.save``, safetensors and ``save_pretrained`` count bytes in the phase ``save``, and write none."""
    import safetensors.torch
    import torch.distributed.checkpoint as sharded
    from transformers import PreTrainedModel

    saved = Saved()

    def save(obj: Any, *args: Any, **kwargs: Any) -> None:
        saved.count(obj, phases.moment)

    def save_model(self: Any, folder: Any, *args: Any, state_dict: Any = None, **kwargs: Any) -> None:
        if kwargs.get("is_main_process", True):
            os.makedirs(folder, exist_ok=True)
            saved.count(dict(state_dict) if state_dict is not None else dict(self.state_dict()), phases.moment)
            self.config.save_pretrained(folder)

    def begin() -> None:
        saved.num_bytes = 0

    def save_sharded(state_dict: Any, *args: Any, **kwargs: Any) -> None:
        saved.count(state_dict, phases.moment)

    with ExitStack() as stack:
        for name in OF_SHARDS:
            stack.enter_context(replaced_wherever_imported(sharded, name, save_sharded))
        for owner, name, value in (
            (torch, "save", save),
            (PreTrainedModel, "save_pretrained", save_model),
        ):
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(replaced_wherever_imported(safetensors.torch, "save_file", save))  # peft has its own name
        if importlib.util.find_spec("peft") is not None:
            other = importlib.import_module("peft.utils.other")
            stack.enter_context(replaced_wherever_imported(other, "id_tensor_storage", storage_id))
        stack.enter_context(following_saves(phases, begin))
        yield saved
