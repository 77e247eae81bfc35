"""Models come without their weights, and checkpoints are counted instead of written.

transformers' own ``from_pretrained`` runs, quantisation and ZeRO-3 included; in place of files it gets the names and
shapes of the model itself, in the element type that ``config.json`` names (``modeling_utils.py``, transformers 5.23).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.components import tensors_in
from vlmplan_trainer.rehearse.replaced import replaced, replaced_wherever_imported
from vlmplan_trainer.script_rehearsal.phases import ScriptPhases

NO_FILE = "weights-that-are-not-read.safetensors"
ONE_THREAD = "HF_DEACTIVATE_ASYNC_LOAD"
"""What is seen of tensors is seen in the thread that the script runs in."""


@contextmanager
def reading_no_weights(say: Callable[[str], None]) -> Iterator[None]:
    """``say`` gets a sentence for each model."""
    import transformers.modeling_utils as modeling

    os.environ[ONE_THREAD] = "1"
    load = modeling.PreTrainedModel._load_pretrained_model

    def no_files(*args: Any, **kwargs: Any) -> Any:
        return [NO_FILE], {"dtype": "float32"}

    def load_unread(model: Any, state_dict: Any, files: Any, load_config: Any, *args: Any, **kwargs: Any) -> Any:
        if state_dict is None:
            state_dict = _unread(model, load_config.dtype)
            say(f"{type(model).__name__}: weights are not read; their names and shapes are those of its config.json")
        return load(model, state_dict, None, load_config, *args, **kwargs)

    with (
        replaced(modeling, "_get_resolved_checkpoint_files", no_files),
        replaced(modeling.PreTrainedModel, "_load_pretrained_model", staticmethod(load_unread)),
    ):
        yield


def _unread(model: Any, dtype: Any) -> dict[str, torch.Tensor]:
    """A tensor for each weight, in host memory as a file that is read there. Tied weights are in no file."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    saved = set(model.state_dict())
    found: dict[str, torch.Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in saved and name not in tied:
            shape = getattr(tensor, "ds_shape", tensor.shape)
            kind = dtype if tensor.is_floating_point() and isinstance(dtype, torch.dtype) else tensor.dtype
            found[name] = torch.empty(tuple(shape), dtype=kind, device="cpu")
    return found


class Saved:
    """Bytes of this rank's files, of the largest checkpoint."""

    def __init__(self) -> None:
        self.num_bytes = self.largest_bytes = 0

    def count(self, found: Any) -> None:
        sizes: dict[int, int] = {}
        for tensor in tensors_in(found, depth=8):
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        self.num_bytes += sum(sizes.values())
        self.largest_bytes = max(self.largest_bytes, self.num_bytes)


@contextmanager
def counting_checkpoints(phases: ScriptPhases) -> Iterator[Saved]:
    """``torch.save``, safetensors and ``save_pretrained`` count bytes in the phase ``save``."""
    import safetensors.torch
    from transformers import PreTrainedModel, Trainer

    saved = Saved()

    def save(obj: Any, *args: Any, **kwargs: Any) -> None:
        with phases.inside("save"):
            saved.count(obj)

    def save_model(self: Any, folder: Any, *args: Any, state_dict: Any = None, **kwargs: Any) -> None:
        with phases.inside("save"):
            if kwargs.get("is_main_process", True):
                os.makedirs(folder, exist_ok=True)
                saved.count(dict(state_dict) if state_dict is not None else dict(self.state_dict()))
                self.config.save_pretrained(folder)

    def in_save(call: Any) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            saved.num_bytes = 0
            with phases.inside("save"):
                return call(*args, **kwargs)

        return told

    with ExitStack() as stack:
        for owner, name, value in (
            (torch, "save", save),
            (PreTrainedModel, "save_pretrained", save_model),
            (Trainer, "_save_checkpoint", in_save(Trainer._save_checkpoint)),
            (Trainer, "save_model", in_save(Trainer.save_model)),
        ):
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(replaced_wherever_imported(safetensors.torch, "save_file", save))  # peft has its own name
        yield saved
