"""The package flash-attn for scripts that import it themselves: its functions by torch's own flash kernel.

It is compiled for a card, so it is neither installed where there is none, nor would it run. Names are those of
flash-attn 2.8: ``flash_attn``, ``flash_attn.flash_attn_interface`` and ``flash_attn.bert_padding``.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from vlmplan_trainer.rehearse.flash import flash_attn_func, flash_attn_varlen_func

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
        "index_first_axis": utils._index_first_axis,
    }
    package = _module(PACKAGE, {"__version__": VERSION, "__path__": [], **attention})
    parts = {"flash_attn_interface": attention, "bert_padding": padding}
    made = {PACKAGE: package} | {f"{PACKAGE}.{name}": _module(f"{PACKAGE}.{name}", parts[name]) for name in parts}
    for name in parts:
        setattr(package, name, made[f"{PACKAGE}.{name}"])
    before = {name: sys.modules[name] for name in made if name in sys.modules}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]
        sys.modules.update(before)


def _module(name: str, values: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(values)
    return module
