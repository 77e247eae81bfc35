"""Reading a checkpoint runs no code from it: tensors, plain data and four of DeepSpeed's classes.

DeepSpeed reads with ``torch.load(weights_only=False)``, which runs what a pickle asks for
(``runtime/checkpoint_engine/torch_checkpoint_engine.py`` and ``checkpoint/ds_to_universal.py`` 0.19.8). torch has a
variable that overrides its caller, and a list of classes that are allowed (``torch/serialization.py`` 2.13, ``load``,
``safe_globals``). Stages 0 to 3, plain PyTorch and the universal form need no others (tried: every stage with bf16,
fp16 and fp32).
"""

import os
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vlmplan.errors import InputError

FORCE, FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
UNSAFE = re.compile(r"GLOBAL ([\w.]+)")


@contextmanager
def data_only(place: Path) -> Iterator[None]:
    """Within, ``torch.load`` makes nothing but data, whatever its caller says.

    Raises InputError, naming the checkpoint ``place``, where a file asks for more or is no file of torch's at all.
    """
    before = {name: os.environ.pop(name, None) for name in (FORCE, FORCE_NOT)}
    os.environ[FORCE] = "1"
    try:
        with torch.serialization.safe_globals(_classes()):
            yield
    except pickle.UnpicklingError as error:
        asked = UNSAFE.search(str(error))
        what = f"asks for {asked[1]} to be run, which no checkpoint of this trainer does" if asked else "is damaged"
        raise InputError(f"{place} {what}; nothing of it was run or loaded") from None
    finally:
        os.environ.pop(FORCE)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _classes() -> list[Any]:
    """What DeepSpeed pickles beside tensors and plain data; nothing where a run has not loaded it."""
    if "deepspeed" not in sys.modules:
        return []
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]


def refuse_paths(folder: Path) -> None:
    """Raise InputError where a file of DeepSpeed's in ``folder`` names a weight that is a path to somewhere else: the
    universal form has a folder for each (``dump_param_fragment`` in ``ds_to_universal.py``)."""
    for file in sorted(folder.glob("*.pt")):
        content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        for name in _keys(content):
            if os.sep in name or name == os.pardir:
                raise InputError(f"{file} names a weight {name!r}, which would be written to another folder")


def _keys(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            if isinstance(key, str):
                yield key
            yield from _keys(value)
    elif isinstance(content, (list, tuple)):
        for value in content:
            yield from _keys(value)
