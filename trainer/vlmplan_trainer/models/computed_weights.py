"""Weights that a class computes of their own shape when it is loaded: whole for that where ZeRO-3 has sharded them.

transformers 5.23 gathers what a checkpoint lacks alone before it initialises modules (``_initialize_missing_keys`` in
``modeling_utils.py``), but Whisper's encoder reads the shape of its table of positions even where the table is loaded
(``_init_weights`` in ``modeling_whisper.py``), which is empty then: without this it ends in a TypeError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

TABLE = "embed_positions"


@contextmanager
def gathering_tables(kind: type[Any]) -> Iterator[None]:
    """While this lasts, modules of a model of class ``kind`` have their table of positions whole when they are
    initialised."""
    owner = next((one for one in kind.__mro__ if "_init_weights" in vars(one)), None)
    if owner is None:
        yield
        return
    initialise = vars(owner)["_init_weights"]

    def gathered(self: Any, module: nn.Module) -> None:
        table = getattr(getattr(module, TABLE, None), "weight", None)
        if table is None or not hasattr(table, "ds_id"):
            initialise(self, module)
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters([table], modifier_rank=0):
            initialise(self, module)

    owner._init_weights = gathered
    try:
        yield
    finally:
        owner._init_weights = initialise
