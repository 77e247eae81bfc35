"""The package flash-attn for scripts that import it themselves: its functions by torch's own flash kernel.

It is compiled for a card, so it is neither installed where there is none, nor would it run. Names are those of
flash-attn 2.8: ``flash_attn``, ``flash_attn.flash_attn_interface``, ``flash_attn.bert_padding``, and the cross-entropy
of ``flash_attn.ops.triton``, whose kernels fill what they are given.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vlmplan_trainer.rehearse.flash import flash_attn_func, flash_attn_varlen_func
from vlmplan_trainer.rehearse.flash_loss import all_gather, cross_entropy_loss

PACKAGE = "flash_attn"
VERSION = "2.8.3"


@contextmanager
def flash_attn_package() -> Iterator[None]:
    """Within, ``import flash_attn`` finds the package, installed or not."""
    import transformers.modeling_flash_attention_utils as utils

    attention = {"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func}
    padding = {
        "pad_input": utils._pad_input,
        "unpad_input": utils._unpad_input,
        "index_first_axis": _rows,
    }
    if importlib.util.find_spec("einops") is not None:  # which flash-attn depends on, and whose name it hands on
        padding["rearrange"] = importlib.import_module("einops").rearrange
    parts: dict[str, dict[str, Any]] = {
        "": {"__version__": VERSION, **attention},
        ".flash_attn_interface": attention,
        ".bert_padding": padding,
        ".ops": {},
        ".ops.triton": {},
        ".ops.triton.cross_entropy": {"cross_entropy_loss": cross_entropy_loss},
        ".utils": {},
        ".utils.distributed": {"all_gather": all_gather},
    }
    made = {PACKAGE + name: _module(PACKAGE + name, {"__path__": []} | values) for name, values in parts.items()}
    for name, module in made.items():
        owner, _, own = name.rpartition(".")
        if owner:
            setattr(made[owner], own, module)
    before = {name: sys.modules[name] for name in made if name in sys.modules}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
        sys.modules.update(before)


def _rows(rows: Any, places: Any) -> Any:
    """``index_first_axis`` takes rows that lie one behind the other; transformers' own takes those of samples."""
    return rows[places]


def _module(name: str, values: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(values)
    return module
